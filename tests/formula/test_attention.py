"""The formula, compared with cases computed by hand and with the numbers of the lessons."""

import inspect
import math

import pytest
import torch
from torch import tensor

from attnviz.formula.attention import (
    additive_scores,
    attention,
    attention_weights,
    causal_mask,
    context,
    hide,
    masked_scores,
    merge_heads,
    multi_head_attention,
    multiplicative_scores,
    padding_mask,
    repeat_heads,
    scaled_scores,
    scores,
    self_attention,
    softmax,
    split_heads,
)

INF = math.inf


def close(actual, expected, atol=1e-12):
    expected = torch.as_tensor(expected, dtype=actual.dtype)
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


def f64(*rows):
    return tensor(rows, dtype=torch.float64)


def random(*shape, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator).to(dtype)


# ------------------------------------------------------------------------ the worked examples


def test_one_updated_vector():
    the_cat_sat = f64([0.1, 0.2], [0.3, 0.4], [0.5, 0.6])
    weights = f64([0.10, 0.40, 0.50])
    close(context(weights, the_cat_sat), [[0.38, 0.48]])
    # With log-weights as scores, the whole formula gives the same vector.
    close(attention(weights.log(), torch.eye(3).double(), the_cat_sat, scale=1.0), [[0.38, 0.48]])


def test_i_like_cats_is_the_true_softmax():
    weights = softmax(f64([0.9, 0.1, 0.0], [0.2, 0.8, 0.1], [0.0, 0.3, 0.7]))
    expected = [[0.539, 0.242, 0.219], [0.268, 0.489, 0.243], [0.229, 0.309, 0.461]]
    close(weights, expected, atol=5e-4)


class TestILoveApplePhones:
    """Every stage of head 1 of the lesson, computed from X and the three matrices."""

    X = f64([1.0, 0.5, 0.2, 0.1], [0.9, 1.1, 0.1, 0.0], [0.1, 0.2, 1.0, 0.5], [0.0, 0.1, 0.4, 1.2])
    W_q = f64([1, 0], [0, 1], [1, 0], [0, 1])
    W_k = f64([1, 0], [0, 1], [0, 1], [1, 0])
    W_v = f64([1, 0], [0, 1], [1, 1], [0, 1])
    Q = f64([1.2, 0.6], [1.0, 1.1], [1.1, 0.7], [0.4, 1.3])
    K = f64([1.1, 0.7], [0.9, 1.2], [0.6, 1.2], [1.2, 0.5])
    V = f64([1.2, 0.8], [1.0, 1.2], [1.1, 1.7], [0.4, 1.7])
    QK = f64(
        [1.74, 1.80, 1.44, 1.74],
        [1.87, 2.22, 1.92, 1.75],
        [1.70, 1.83, 1.50, 1.67],
        [1.35, 1.92, 1.80, 1.13],
    )
    weights = f64(
        [0.260, 0.271, 0.210, 0.260],
        [0.236, 0.302, 0.245, 0.217],
        [0.254, 0.278, 0.220, 0.248],
        [0.212, 0.317, 0.291, 0.181],
    )
    output = f64([0.917, 1.331], [0.942, 1.336], [0.924, 1.333], [0.963, 1.351])

    def test_scores(self):
        close(scores(self.Q, self.K), self.QK)

    def test_scaled_scores(self):
        close(scaled_scores(self.Q, self.K), self.QK / math.sqrt(2))

    def test_weights(self):
        close(attention_weights(self.Q, self.K), self.weights, atol=5e-4)

    def test_output(self):
        close(attention(self.Q, self.K, self.V), self.output, atol=5e-4)

    def test_from_the_tokens_to_the_output(self):
        output = multi_head_attention(
            self.X, self.W_q, self.W_k, self.W_v, torch.eye(2).double(), heads=1
        )
        close(output, self.output, atol=5e-4)


# -------------------------------------------------------------------------- the identities


@pytest.mark.parametrize("scale", [None, 1.0, 0.3])
def test_self_attention_is_attention_of_the_tokens_themselves(scale):
    X = random(2, 5, 4)
    weights, output = self_attention(X, scale)
    close(weights, attention_weights(X, X, scale=scale))
    close(output, attention(X, X, X, scale=scale))


def test_a_constant_divides_the_scores():
    X, constant = random(3, 4), 7.0
    close(self_attention(X, 1 / constant)[0], torch.softmax(X @ X.mT / constant, -1))


def test_one_over_root_d_k_keeps_the_variance_of_the_scores_at_one():
    Q, K = random(2, 400, 256)
    assert scores(Q, K).var().item() == pytest.approx(256, rel=0.05)
    assert scaled_scores(Q, K).var().item() == pytest.approx(1, rel=0.05)


# -------------------------------------------------------------------------------- masks


def test_causal_mask_hides_only_the_future():
    assert causal_mask(2, 3).tolist() == [[0, -INF, -INF], [0, 0, -INF]]


def test_causal_mask_of_a_block_of_rows():
    whole = causal_mask(6, 6)
    assert torch.equal(causal_mask(2, 6, first=3), whole[3:5])
    assert torch.equal(causal_mask(1, 6, first=5), torch.zeros(1, 6))


def test_padding_mask_hides_padded_keys_from_every_query():
    mask = padding_mask(tensor([[True, True, False], [True, True, True]]))
    assert mask.tolist() == [[[0, 0, -INF]], [[0, 0, 0]]]
    weights = attention_weights(random(2, 4, 5), random(2, 3, 5, seed=1), mask=mask)
    assert (weights[0, :, 2] == 0).all()
    assert (weights[1] > 0).all()


def test_a_hidden_key_equals_an_absent_key():
    Q, K, V = random(3, 4), random(5, 4, seed=1), random(5, 2, seed=2)
    visible = tensor([0, 1, 3])
    mask = padding_mask(tensor([True, True, False, True, False]))
    close(attention(Q, K, V, mask=mask), attention(Q, K[visible], V[visible]))


def test_a_very_negative_number_hides_a_key():
    Q, K = random(3, 4), random(3, 4, seed=1)
    hidden = torch.ones(3, 3, dtype=torch.bool).triu(1)
    lowest = torch.zeros(3, 3).masked_fill(hidden, torch.finfo(torch.float32).min)
    assert torch.equal(
        attention_weights(Q, K, mask=lowest), attention_weights(Q, K, mask=hide(hidden))
    )


def test_a_fully_masked_row_has_zero_weights_and_output():
    Q, K, V = random(2, 4), random(3, 4, seed=1), random(3, 2, seed=2)
    mask = hide(tensor([[True, True, True], [False, True, False]]))
    assert attention_weights(Q, K, mask=mask)[0].tolist() == [0, 0, 0]
    output = attention(Q, K, V, mask=mask)
    assert output[0].tolist() == [0, 0]
    assert (output[1] != 0).all()


def test_a_fully_masked_row_has_no_gradient():
    logits = f64([-INF, -INF], [1.0, 0.0]).requires_grad_()
    (softmax(logits) * f64([1, 2], [3, 4])).sum().backward()
    assert logits.grad[0].tolist() == [0, 0]
    p = 1 / (1 + math.exp(-1))
    close(logits.grad[1], [-p * (1 - p), p * (1 - p)])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_long_row_of_half_precision_does_not_overflow(dtype):
    weights = softmax(torch.zeros(70_000, dtype=dtype))
    assert weights.dtype == dtype
    torch.testing.assert_close(weights, torch.zeros(70_000, dtype=dtype).softmax(-1))


def test_no_keys_and_no_features():
    assert softmax(torch.zeros(3, 0)).shape == (3, 0)
    nothing = torch.zeros(2, 0)
    close(attention_weights(nothing, nothing), [[0.5, 0.5]] * 2)


# --------------------------------------------------------------------------------- heads


def test_split_heads_gives_each_head_its_slice_of_features():
    X = random(2, 3, 8)
    for head in range(4):
        assert torch.equal(split_heads(X, 4)[:, head], X[..., 2 * head : 2 * head + 2])
    assert torch.equal(merge_heads(split_heads(X, 4)), X)


# ------------------------------------------------------------------------- dtypes and errors


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_dtype_is_preserved(dtype):
    X, W, v = random(3, 4, dtype=dtype), random(4, 4, dtype=dtype), random(4, dtype=dtype)
    mask = causal_mask(3, 3)  # float32: it must not promote half precision
    results = [
        additive_scores(X, X, W, W, v),
        multiplicative_scores(X, X, W),
        *self_attention(X),
        attention(X, X, X, mask=mask),
        multi_head_attention(X, W, W, W, W, heads=2, mask=mask),
    ]
    assert [result.dtype for result in results] == [dtype] * len(results)
    assert all(result.isfinite().all() for result in results)


@pytest.mark.parametrize("heads", [0, 3])
def test_heads_must_divide_the_width(heads):
    with pytest.raises(ValueError, match=rf"expected heads .* width 8, got {heads}; take .*config"):
        split_heads(random(5, 8), heads)


@pytest.mark.parametrize("heads", [0, 1, 5])
def test_query_heads_must_be_a_multiple_of_the_key_heads(heads):
    with pytest.raises(ValueError, match=rf"multiple of the 2 key heads, got {heads} .*; take"):
        repeat_heads(random(2, 3, 4), heads)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64])
def test_a_non_additive_mask_is_refused(dtype):
    # Unwrapped: with run-time shape and dtype checks, the signature fails first.
    with pytest.raises(ValueError, match=rf"additive mask.*, got {dtype}; make one with hide"):
        inspect.unwrap(masked_scores)(random(3, 3), torch.ones(3, 3, dtype=dtype))
