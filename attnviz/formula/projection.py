"""From the tokens to queries, keys and values: projection, norm, rotary position embedding.

The steps from X to Q, K and V, as pure functions. ``*N`` is any number of leading
dimensions, ``h`` counts heads; every function keeps the dtype of its first input and lets
gradients flow.

Sources, in arXiv: Vaswani et al. 2017, 1706.03762; Ba, Kiros & Hinton 2016, 1607.06450; Zhang &
Sennrich 2019, 1910.07467; Su et al. 2021, 2104.09864; DeepSeek-AI 2024, 2405.04434.
"""

import torch
from jaxtyping import Float
from torch import Tensor


def linear(
    X: Float[Tensor, "*N d_in"],
    W: Float[Tensor, "d_in d_out"],
    b: Float[Tensor, " d_out"] | None = None,
) -> Float[Tensor, "*N d_out"]:
    """Project every token: XW + b, as in Q = XW^Q, K = XW^K, V = XW^V (Vaswani et al. 2017).

    `torch.nn.Linear` stores the transpose of W: pass its ``weight.mT``.
    """
    return torch.nn.functional.linear(X, W.mT, b)


def head_linear(
    X: Float[Tensor, "*N T d_in"],
    W: Float[Tensor, "h d_in d"],
    b: Float[Tensor, "h d"] | None = None,
) -> Float[Tensor, "*N h T d"]:
    """Project every token for every head: X W_i + b_i, as in Q_i = X W_i^Q (Vaswani et al. 2017).

    The same as `linear` with the matrices of all heads side by side, cut into heads.
    """
    tokens = X.flatten(0, -2).expand(len(W), -1, -1)
    heads = tokens @ W if b is None else torch.baddbmm(b.unsqueeze(-2), tokens, W)
    return heads.reshape(len(W), *X.shape[:-1], -1).movedim(0, -3)


def share(x: Float[Tensor, "*N T r"], beside: Float[Tensor, "*N h T d"]) -> Float[Tensor, "..."]:
    """Append features that all heads share to those of each head: (h, T, d) → (h, T, d + r).

    In latent attention the keys of all heads share the rotated features (DeepSeek-AI 2024).
    """
    return torch.cat((beside, x.unsqueeze(-3).expand(*beside.shape[:-1], -1)), -1)


def rms_norm(
    x: Float[Tensor, "*N d"], weight: Float[Tensor, "*#N d"] | None = None, eps: float = 1e-6
) -> Float[Tensor, "*N d"]:
    """Divide a vector by its root mean square: x / √(mean(x²) + eps) · weight (Zhang 2019).

    Some models normalize their queries and keys so, each head by itself or all heads together.
    """
    normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return normed if weight is None else normed * weight


def layer_norm(
    x: Float[Tensor, "*N d"],
    weight: Float[Tensor, "*#N d"] | None = None,
    bias: Float[Tensor, "*#N d"] | None = None,
    eps: float = 1e-5,
) -> Float[Tensor, "*N d"]:
    """Center a vector, then divide it by its standard deviation (Ba et al. 2016).

    (x - mean(x)) / √(var(x) + eps) · weight + bias, which is `rms_norm` of x - mean(x).
    """
    normed = rms_norm(x - x.mean(-1, keepdim=True), weight, eps)
    return normed if bias is None else normed + bias


def clip(x: Float[Tensor, "*N"], bound: float) -> Float[Tensor, "*N"]:
    """Clamp every number to the range from -bound to bound, which bounds the scores."""
    return x.clamp(-bound, bound)


def rotary(
    x: Float[Tensor, "*N T d"],
    cos: Float[Tensor, "*#N T r"],
    sin: Float[Tensor, "*#N T r"],
    *,
    interleaved: bool = False,
) -> Float[Tensor, "*N T d"]:
    """Rotate queries or keys by position, so that q_i · k_j depends on i - j (Su et al. 2021).

    The pair (a, b) at angle θ becomes (a cos θ - b sin θ, b cos θ + a sin θ). The pairs are the
    features (i, i + r/2), as in Llama, or if `interleaved` (2i, 2i + 1), as in GPT-J. Features
    beyond the first r pass through. `cos` and `sin` are those of the angles for both
    conventions, and take the dtype of x.
    """
    r = cos.shape[-1]
    cos, sin = cos[..., : r // 2].to(x), sin[..., : r // 2].to(x)  # both halves are the same
    a, b = (x[..., 0:r:2], x[..., 1:r:2]) if interleaved else x[..., :r].chunk(2, -1)
    rotated = (a * cos - b * sin, b * cos + a * sin)
    pairs = torch.stack(rotated, -1).flatten(-2) if interleaved else torch.cat(rotated, -1)
    return torch.cat((pairs, x[..., r:]), -1) if r < x.shape[-1] else pairs


def regroup(x: Float[Tensor, "*N d"]) -> Float[Tensor, "*N d"]:
    """Move the pairs (2i, 2i + 1) to (i, i + d/2): from one convention of `rotary` to the other.

    Applied to queries and keys alike, it changes no score.
    """
    return torch.cat((x[..., 0::2], x[..., 1::2]), -1)
