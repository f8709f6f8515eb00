"""Laws of the formula that hold for every input."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from attnviz.formula.attention import (
    attention,
    attention_weights,
    causal_mask,
    hide,
    merge_heads,
    multi_head_attention,
    repeat_heads,
    self_attention,
    softmax,
    split_heads,
)

seeds = st.integers(0, 2**31)
lengths = st.integers(1, 7)


def close(actual, expected, atol=1e-12):
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


def random(seed, *shapes):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes]


def rows_of_scores(largest):
    return arrays(
        np.float64,
        array_shapes(min_dims=2, max_dims=3, max_side=6),
        elements=st.floats(-largest, largest),
    ).map(torch.from_numpy)


@given(rows_of_scores(1e300))
def test_weights_sum_to_one(scores):
    weights = softmax(scores)
    assert (weights >= 0).all()
    close(weights.sum(-1), torch.ones(scores.shape[:-1], dtype=torch.float64))


@given(rows_of_scores(100), seeds)
def test_hidden_keys_have_no_weight_and_the_others_sum_to_one(scores, seed):
    hidden = torch.rand(scores.shape, generator=torch.Generator().manual_seed(seed)) < 0.5
    weights = softmax(scores + hide(hidden))
    assert (weights[hidden] == 0).all()
    close(weights.sum(-1), (~hidden).any(-1).double())


@given(rows_of_scores(100), st.floats(-100, 100))
def test_softmax_is_invariant_to_a_shift(scores, shift):
    close(softmax(scores + shift), softmax(scores))


@given(rows_of_scores(100))
def test_a_larger_score_never_weighs_less(scores):
    order = scores.argsort(-1)
    assert (softmax(scores).gather(-1, order).diff(dim=-1) >= 0).all()


@given(seeds, lengths, st.integers(1, 5))
def test_causal_weights_are_zero_above_the_diagonal(seed, T, d):
    Q, K = random(seed, (2, T, d), (2, T, d))
    weights = attention_weights(Q, K, mask=causal_mask(T, T))
    assert (weights.triu(1) == 0).all()
    close(weights.sum(-1), torch.ones(2, T, dtype=torch.float64))


@given(seeds, st.integers(2, 7), st.data())
def test_the_future_does_not_change_the_past(seed, T, data):
    now = data.draw(st.integers(1, T - 1))
    X, other = random(seed, (T, 3), (T, 3))
    changed = torch.cat((X[:now], other[now:]))
    mask = causal_mask(T, T)
    before, after = (attention(x, x, x, mask=mask) for x in (X, changed))
    close(after[:now], before[:now])
    assert not torch.equal(after[now:], before[now:])


@given(seeds, st.integers(2, 7), st.booleans())
def test_self_attention_permutes_with_its_tokens(seed, T, heads):
    X, W = random(seed, (T, 4), (4, 4))

    def attend(x):
        return multi_head_attention(x, W, W, W, W, heads=2) if heads else self_attention(x)[1]

    order = torch.randperm(T, generator=torch.Generator().manual_seed(seed))
    close(attend(X[order]), attend(X)[order], atol=1e-10)


@given(seeds, lengths, lengths, st.data())
def test_a_block_of_queries_gives_the_same_rows(seed, m, n, data):
    start = data.draw(st.integers(0, m - 1))
    stop = data.draw(st.integers(start + 1, m))
    Q, K, V = random(seed, (2, m, 4), (2, n, 4), (2, n, 3))
    whole = attention(Q, K, V, mask=causal_mask(m, n))
    block = attention(Q[:, start:stop], K, V, mask=causal_mask(stop - start, n, first=start))
    close(block, whole[:, start:stop])


@given(seeds, lengths, lengths)
def test_the_output_lies_between_the_values(seed, m, n):
    Q, K, V = random(seed, (m, 4), (n, 4), (n, 3))
    output = attention(Q, K, V)
    assert (output >= V.amin(0) - 1e-12).all()
    assert (output <= V.amax(0) + 1e-12).all()


@given(seeds, lengths, lengths)
def test_one_head_is_plain_attention(seed, m, n):
    X, C, W_q, W_k, W_v, W_o = random(seed, (m, 4), (n, 5), (4, 3), (5, 3), (5, 2), (2, 4))
    close(
        multi_head_attention(X, W_q, W_k, W_v, W_o, heads=1, context=C),
        attention(X @ W_q, C @ W_k, C @ W_v) @ W_o,
    )


@given(seeds, st.integers(1, 3), st.integers(1, 3))
def test_grouped_queries_are_full_heads_with_repeated_keys(seed, key_heads, group):
    heads, width = key_heads * group, 2 * key_heads
    X, W_q, W_k, W_v, W_o = random(
        seed, (5, 4), (4, 2 * heads), (4, width), (4, width), (2 * heads, 4)
    )

    def repeat(W):  # repeat the matrices, one per query head
        return merge_heads(split_heads(W, key_heads)[[i // group for i in range(heads)]])

    close(
        multi_head_attention(X, W_q, W_k, W_v, W_o, heads=heads, key_heads=key_heads),
        multi_head_attention(X, W_q, repeat(W_k), repeat(W_v), W_o, heads=heads),
    )


@given(seeds, lengths, st.integers(1, 4), st.integers(1, 4))
def test_merging_undoes_splitting(seed, T, heads, d):
    (X,) = random(seed, (2, T, heads * d))
    assert torch.equal(merge_heads(split_heads(X, heads)), X)
    assert torch.equal(repeat_heads(split_heads(X, heads), heads), split_heads(X, heads))


@given(seeds, st.integers(2, 7))
def test_the_scale_is_a_temperature(seed, n):
    Q, K = random(seed, (1, 4), (n, 4))
    assert attention_weights(Q, K, scale=2.0).max() >= attention_weights(Q, K, scale=1.0).max()
    close(attention_weights(Q, K, scale=0.0), torch.full((1, n), 1 / n, dtype=torch.float64))
