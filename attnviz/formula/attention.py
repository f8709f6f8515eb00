"""Attention, written out from the formula. The file is a lesson: read it from top to bottom.

In recurrent attention the states of a decoder attend to those of an encoder; in self-attention a
sequence attends to itself, without parameters or through queries, keys and values. The stages:
scores, scale, mask, softmax, weights, output. Many heads do the same side by side. Some models add
a soft cap after the scale, or a sink beside the scores in the softmax.

Shapes: ``m`` queries, ``n`` keys, ``T`` tokens, ``h`` heads; ``d_…`` counts features; ``*N`` is any
number of leading dimensions (a batch, heads, or none). Every function keeps the dtype of its
inputs and lets gradients flow.

Sources, in arXiv: Bahdanau, Cho & Bengio 2015, 1409.0473; Luong, Pham & Manning 2015, 1508.04025;
Vaswani et al. 2017, 1706.03762; Ainslie et al. 2023, 2305.13245.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

HIDDEN = -6e4  # masks use numbers below this for -∞, in any precision

# ------------------------------------------------------------------------- recurrent attention


def additive_scores(
    S: Float[Tensor, "*N m d_s"],
    H: Float[Tensor, "*N n d_h"],
    W: Float[Tensor, "d_a d_s"],
    U: Float[Tensor, "d_a d_h"],
    v: Float[Tensor, " d_a"],
) -> Float[Tensor, "*N m n"]:
    """Score every decoder state s_i against every encoder state h_j (Bahdanau et al. 2015).

    e_ij = vᵀ tanh(W s_i + U h_j)

    >>> S, H, one = torch.tensor([[1.0]]), torch.tensor([[0.0], [1.0], [-1.0]]), torch.ones(1, 1)
    >>> additive_scores(S, H, W=one, U=one, v=one[0])
    tensor([[0.7616, 0.9640, 0.0000]])
    """
    return torch.tanh((S @ W.mT).unsqueeze(-2) + (H @ U.mT).unsqueeze(-3)) @ v


def multiplicative_scores(
    S: Float[Tensor, "*N m d_s"],
    H: Float[Tensor, "*N n d_h"],
    W: Float[Tensor, "d_s d_h"] | None = None,
) -> Float[Tensor, "*N m n"]:
    """Score every decoder state s_i against every encoder state h_j (Luong et al. 2015).

    e_ij = s_iᵀ W h_j; without W the plain dot product s_iᵀ h_j, where d_s = d_h.

    >>> the_cat_sat = torch.tensor([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
    >>> multiplicative_scores(S=torch.tensor([[1.0, 2.0]]), H=the_cat_sat)
    tensor([[0.5000, 1.1000, 1.7000]])
    """
    return (S if W is None else S @ W) @ H.mT


def context(
    weights: Float[Tensor, "*N m n"], H: Float[Tensor, "*N n d_h"]
) -> Float[Tensor, "*N m d_h"]:
    """Mix the encoder's states into one context vector per decoder state (Bahdanau et al. 2015).

    c_i = Σ_j α_ij h_j, so C = α H, where α = softmax(e).

    >>> the_cat_sat = torch.tensor([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
    >>> context(torch.tensor([[0.10, 0.40, 0.50]]), the_cat_sat)
    tensor([[0.3800, 0.4800]])
    """
    return weights @ H


# ---------------------------------------------------------------- self-attention without parameters
def self_attention(
    X: Float[Tensor, "*N T d"], scale: float | None = None
) -> tuple[Float[Tensor, "*N T T"], Float[Tensor, "*N T d"]]:
    """Replace every token x_i by the mean of all tokens, weighted by its dot products with them.

    α = softmax(X Xᵀ · scale), A = α X. Where the formula divides by a constant, scale = 1/constant;
    by default 1/√d. This is `attention` with Q = K = V = X. Returns α and A.

    >>> X = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> self_attention(X, scale=1.0)[1]
    tensor([[0.8446, 0.5777],
            [0.5777, 0.8446],
            [0.7881, 0.7881]])
    """
    weights = softmax(scaled_scores(X, X, scale))
    return weights, weights @ X


# ------------------------------------------------------ queries and keys: scores, scaled and masked
def scores(Q: Float[Tensor, "*N m d_k"], K: Float[Tensor, "*N n d_k"]) -> Float[Tensor, "*N m n"]:
    """Match every query against every key: QKᵀ, whose cell (i, j) is q_i · k_j.

    >>> scores(Q=torch.tensor([[1.0, 2.0]]), K=torch.tensor([[1.0, 0], [0, 1], [1, 1]]))
    tensor([[1., 2., 3.]])
    """
    return Q @ K.mT


def scaled_scores(
    Q: Float[Tensor, "*N m d_k"], K: Float[Tensor, "*N n d_k"], scale: float | None = None
) -> Float[Tensor, "*N m n"]:
    """Scale the scores into alignment scores: QKᵀ · scale, by default QKᵀ/√d_k (Vaswani 2017).

    Dot products of standard-normal vectors have variance d_k; 1/√d_k brings it back to 1.

    >>> scaled_scores(Q=torch.tensor([[2.0, 0.0, 0.0, 0.0]]), K=torch.eye(3, 4))
    tensor([[1., 0., 0.]])
    """
    return scores(Q, K) * (max(Q.shape[-1], 1) ** -0.5 if scale is None else scale)


def hide(hidden: Bool[Tensor, "*N"]) -> Float[Tensor, "*N"]:
    """Turn "is hidden" into an additive mask: 0 where visible, -∞ where hidden.

    Masks add up: `causal_mask(T, T) + padding_mask(real)` hides what either hides.

    >>> hide(torch.tensor([False, False, True]))
    tensor([0., 0., -inf])
    """
    return torch.where(hidden, -torch.inf, 0.0)


def additive_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Turn "is visible" into an additive mask as models have it; other masks are returned as is.

    Hidden keys have the least number of `dtype`, which adds up without -∞ - ∞.
    """
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)


def causal_mask(m: int, n: int, first: int = 0) -> Float[Tensor, "m n"]:
    """Hide later keys: query i is at position first + i and reads the keys up to there.

    For a block of rows from position t, first = t; for m queries that end n keys, first = n - m.

    >>> causal_mask(3, 3)
    tensor([[0., -inf, -inf],
            [0., 0., -inf],
            [0., 0., 0.]])
    """
    return hide(torch.ones(m, n, dtype=torch.bool).triu(first + 1))


def padding_mask(real: Bool[Tensor, "*N n"]) -> Float[Tensor, "*N 1 n"]:
    """Hide the keys that are padding, from every query.

    >>> padding_mask(torch.tensor([True, True, False]))
    tensor([[0., 0., -inf]])
    """
    return hide(~real).unsqueeze(-2)


def masked_scores(
    scores: Float[Tensor, "*N m n"], mask: Float[Tensor, "*#N #m #n"]
) -> Float[Tensor, "*N m n"]:
    """Add the mask, 0 where visible and -∞ (or a very negative number) where hidden.

    The mask takes the dtype of the scores, never the reverse; a bias is added in the same way.
    Raises ValueError for a mask of booleans or integers, which would hide nothing.

    >>> masked_scores(torch.ones(1, 3), padding_mask(torch.tensor([True, True, False])))
    tensor([[1., 1., -inf]])
    """
    if not mask.is_floating_point():
        raise ValueError(
            f"expected an additive mask, 0 or -inf, got {mask.dtype}; make one with hide(~visible)"
        )
    return scores + mask.to(scores)


# ------------------------------------------------------------------------- softmax, weights, output
def softmax(scores: Float[Tensor, "*N n"]) -> Float[Tensor, "*N n"]:
    """Turn each row of scores into weights that sum to 1: e^{s_j} / Σ_k e^{s_k}.

    The largest score of the row is subtracted first: it keeps e^s finite and changes no weight. A
    row whose keys are all hidden by -∞ has the weights 0, not NaN. Half precision is summed in
    float32, where a long row does not overflow.

    >>> softmax(torch.tensor([[0.9, 0.1, 0.0], [0.0, -torch.inf, 0.0], [-torch.inf] * 3]))
    tensor([[0.5388, 0.2421, 0.2191],
            [0.5000, 0.0000, 0.5000],
            [0.0000, 0.0000, 0.0000]])
    """
    if not scores.shape[-1]:
        return scores.clone()
    largest = scores.detach().amax(-1, keepdim=True)
    exp = torch.exp(scores - largest.clamp(min=torch.finfo(scores.dtype).min))
    # The largest score adds e^0, so a row sums to 1 at least, unless all its keys are hidden.
    total = exp.sum(-1, keepdim=True, dtype=torch.promote_types(exp.dtype, torch.float32))
    return (exp / total.clamp(min=1)).to(exp.dtype)


def attention_weights(
    Q: Float[Tensor, "*N m d_k"],
    K: Float[Tensor, "*N n d_k"],
    *,
    mask: Float[Tensor, "*#N #m #n"] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "*N m n"]:
    """Weigh every key for every query: W = softmax(QKᵀ/√d_k + mask) (Vaswani et al. 2017).

    Row i is one query matched against all keys, a soft lookup in a dictionary.

    >>> Q = K = torch.tensor([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
    >>> attention_weights(Q, K, mask=causal_mask(3, 3))
    tensor([[1.0000, 0.0000, 0.0000],
            [0.4753, 0.5247, 0.0000],
            [0.2830, 0.3307, 0.3863]])
    """
    alignment = scaled_scores(Q, K, scale)
    return softmax(alignment if mask is None else masked_scores(alignment, mask))


def attention(
    Q: Float[Tensor, "*N m d_k"],
    K: Float[Tensor, "*N n d_k"],
    V: Float[Tensor, "*N n d_v"],
    *,
    mask: Float[Tensor, "*#N #m #n"] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "*N m d_v"]:
    """Return for each query the mean of the values, weighted by relevance (Vaswani et al. 2017).

    attention(Q, K, V) = softmax(QKᵀ/√d_k + mask) V

    >>> Q = K = V = torch.tensor([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
    >>> attention(Q, K, V, mask=causal_mask(3, 3))[2]
    tensor([0.3207, 0.4207])
    """
    return attention_weights(Q, K, mask=mask, scale=scale) @ V


# --------------------------------------------------------------- some models: soft caps and sinks
def soft_cap(scores: Float[Tensor, "*N m n"], cap: float) -> Float[Tensor, "*N m n"]:
    """Keep scores within ±c: c · tanh(score / c) (Gemma 2; Riviere et al. 2024).

    >>> soft_cap(torch.tensor([[0.0, 1.0, 100.0]]), cap=10.0)
    tensor([[ 0.0000,  0.9967, 10.0000]])
    """
    return cap * torch.tanh(scores / cap)


def softmax_with_sink(
    scores: Float[Tensor, "*N h m n"], sinks: Float[Tensor, " h"] | Float[Tensor, "h m"]
) -> Float[Tensor, "*N h m n"]:
    """Normalize the scores together with a sink, a score that belongs to no key (Xiao et al. 2023).

    The sink is one more column in the softmax and is dropped afterwards, so that the weights of a
    row sum to 1 minus that of the sink. It is a parameter of the head (GPT-OSS) or of each query.

    >>> softmax_with_sink(torch.zeros(1, 1, 3), sinks=torch.zeros(1))
    tensor([[[0.2500, 0.2500, 0.2500]]])
    """
    column = sinks.reshape(len(sinks), -1, 1).expand(*scores.shape[:-1], 1)
    return softmax(torch.cat([scores, column], dim=-1))[..., :-1]


# --------------------------------------------------------------------------------------- many heads
def split_heads(X: Float[Tensor, "*N T h_d"], heads: int) -> Float[Tensor, "*N h T d"]:
    """Split the features of every token into heads: (T, h·d) → (h, T, d).

    Raises ValueError where the heads do not divide the width.

    >>> split_heads(torch.tensor([[0.0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]), heads=2)[1]
    tensor([[ 2.,  3.],
            [ 6.,  7.],
            [10., 11.]])
    """
    if heads < 1 or X.shape[-1] % heads:
        raise ValueError(
            f"expected heads that divide the width {X.shape[-1]}, got {heads}; "
            "take their number from the model's configuration"
        )
    return X.reshape(*X.shape[:-1], heads, -1).transpose(-3, -2)


def merge_heads(X: Float[Tensor, "*N h T d"]) -> Float[Tensor, "*N T h*d"]:
    """Concatenate the heads again, the inverse of `split_heads`: (h, T, d) → (T, h·d).

    >>> merge_heads(torch.tensor([[[0.0], [1.0], [2.0]], [[3.0], [4.0], [5.0]]]))
    tensor([[0., 3.],
            [1., 4.],
            [2., 5.]])
    """
    return X.transpose(-3, -2).flatten(-2)


def repeat_heads(K: Float[Tensor, "*N g n d"], heads: int) -> Float[Tensor, "*N h n d"]:
    """Share g key (or value) heads among h query heads: head i reads i // (h/g) (Ainslie 2023).

    Raises ValueError where h is not a multiple of g.

    >>> K = torch.tensor([[[0.0], [1.0], [2.0]], [[3.0], [4.0], [5.0]]])
    >>> repeat_heads(K, heads=4)[:, 0, 0]
    tensor([0., 0., 3., 3.])
    """
    if heads < 1 or heads % K.shape[-3]:
        raise ValueError(
            f"expected a multiple of the {K.shape[-3]} key heads, got {heads} query heads; "
            "take both numbers from the model's configuration"
        )
    shared = heads // K.shape[-3]
    return K if shared == 1 else K.repeat_interleave(shared, dim=-3)


def multi_head_attention(
    X: Float[Tensor, "*N m d_model"],
    W_q: Float[Tensor, "d_model h_d_k"],
    W_k: Float[Tensor, "d_context g_d_k"],
    W_v: Float[Tensor, "d_context g_d_v"],
    W_o: Float[Tensor, "h_d_v d_out"],
    *,
    heads: int,
    key_heads: int | None = None,
    b_q: Float[Tensor, " h_d_k"] | float = 0.0,
    b_k: Float[Tensor, " g_d_k"] | float = 0.0,
    b_v: Float[Tensor, " g_d_v"] | float = 0.0,
    b_o: Float[Tensor, " d_out"] | float = 0.0,
    mask: Float[Tensor, "*#N #m #n"] | None = None,
    context: Float[Tensor, "*N n d_context"] | None = None,
) -> Float[Tensor, "*N m d_out"]:
    """Attend with several heads at once: Concat(head_1, …, head_h) W^O (Vaswani et al. 2017).

    head_i = attention(X W_i^Q, C W_i^K, C W_i^V), where C = X in self-attention and the other
    sequence, `context`, in cross-attention. The heads' matrices stand side by side in W_q, W_k, W_v
    (so d_k = d_model/h as a rule); fewer `key_heads` are shared (Ainslie et al. 2023).

    >>> X, I = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), torch.eye(2)
    >>> multi_head_attention(X, I, I, I, I, heads=2, mask=causal_mask(3, 3))[2]
    tensor([0.8446, 0.8446])
    """
    C = X if context is None else context
    Q = split_heads(X @ W_q + b_q, heads)
    K = repeat_heads(split_heads(C @ W_k + b_k, key_heads or heads), heads)
    V = repeat_heads(split_heads(C @ W_v + b_v, key_heads or heads), heads)
    mask = None if mask is None else mask.unsqueeze(-3)  # the same for every head
    return merge_heads(attention(Q, K, V, mask=mask)) @ W_o + b_o
