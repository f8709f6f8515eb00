"""The formula compared with independent oracles, for every shape, term and magnitude.

Numbers are small integers times a power of two, so that scores are exact in any order of summation
and even the largest need no tolerance.
"""

import math
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from strategies import slower

from attnviz.formula import projection
from attnviz.formula.attention import (
    additive_scores,
    context,
    hide,
    merge_heads,
    multiplicative_scores,
    softmax,
    split_heads,
)
from attnviz.results import AttentionRecord, Axis, MaskRule

MAGNITUDES = st.sampled_from([-500, -30, 0, 0, 0, 2, 30, 500])
lengths = st.integers(1, 6)


def close(actual, expected, atol=1e-12):
    expected = torch.as_tensor(expected)
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol, check_dtype=False)


def tensors(seed, *shapes, power=0):
    draws = np.random.default_rng(seed)
    return [torch.from_numpy(draws.integers(-8, 9, shape) * 2.0**power) for shape in shapes]


def hidden(seed, *shape, share=0.4):
    """A mask with -∞ at some positions, and with fully masked rows."""
    draws = np.random.default_rng(seed)
    cells = (draws.random(shape) < share) | (draws.random((*shape[:-1], 1)) < 0.2)
    return torch.from_numpy(np.where(cells, -np.inf, 0.0))


@contextmanager
def unchanged(*given):
    before = [each.clone() for each in given]
    yield
    assert all(torch.equal(a, b) for a, b in zip(before, given, strict=True))


def terms_of(record):
    names = "query", "key", "value", "capped_bias", "bias", "mask", "sinks"
    return [term for name in names if (term := getattr(record, name)) is not None]


@st.composite
def records(draw):
    """A record with any of the optional score terms."""
    seed, power = draw(st.integers(0, 2**31)), draw(MAGNITUDES)
    G, group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    m, n, d = draw(lengths), draw(lengths), draw(lengths)
    H = G * group
    Q, K, V = tensors(seed, (H, m, d), (G, n, d), (G, n, draw(lengths)), power=power)
    one = draw(st.sampled_from([1, H]))
    biases = tensors(seed + 1, (one, m, n), (one, m, n), draw(st.sampled_from([(H,), (H, m)])))
    capped, bias, sinks = (draw(st.sampled_from([None, each])) for each in biases)
    return AttentionRecord(
        path="",
        call=0,
        layer=0,
        stack="decoder",
        query_axis=Axis.numbered(m),
        key_axis=Axis.numbered(n),
        query=Q,
        key=K,
        value=V,
        scale=draw(st.sampled_from([d**-0.5, 1.0, 0.125])),
        soft_cap=draw(st.sampled_from([None, 0.5, 50.0])),
        capped_bias=capped,
        bias=bias,
        mask=draw(st.sampled_from([None, hidden(seed, one, m, n)])),
        sinks=sinks,
    )


def plain(Q, scale):
    """A record without terms, whose keys and values are its queries in reverse order."""
    axis = Axis.numbered(Q.shape[1])
    return AttentionRecord("", 0, 0, "encoder", axis, axis, Q, Q.flip(-1), Q, scale)


def by_hand(record):
    """Compute the weights cell by cell, in numpy."""
    H, (m, n) = record.heads, (len(record.query_axis), len(record.key_axis))
    weights = np.zeros((H, m, n))

    def term(name, h, i, j):
        value = getattr(record, name)
        return 0.0 if value is None else float(value[h if len(value) > 1 else 0, i, j])

    for h in range(H):
        k = record.key[h // (H // record.key_heads)].numpy()
        for i in range(m):
            row = []
            for j in range(n):
                score = float((record.query[h, i].numpy() * k[j]).sum()) * record.scale
                score += term("capped_bias", h, i, j)
                if record.soft_cap is not None:
                    score = record.soft_cap * math.tanh(score / record.soft_cap)
                row.append(score + term("bias", h, i, j) + term("mask", h, i, j))
            if record.sinks is not None:
                row.append(
                    float(record.sinks[h] if record.sinks.dim() == 1 else record.sinks[h, i])
                )
            if max(row) > -math.inf:
                parts = [math.exp(score - max(row)) for score in row]
                weights[h, i] = [exponential / sum(parts) for exponential in parts][:n]
    return weights


NOTHING = hide(torch.tensor([[[True, True], [False, True]]])).double()


@slower(2)
@example(replace(plain(torch.ones(1, 2, 3, dtype=torch.float64), 1.0), mask=NOTHING))
@given(records())
def test_weights_match_the_direct_computation(record):
    with unchanged(*terms_of(record)):
        weights = record.weights()
    expected = by_hand(record)
    close(weights, expected)
    assert (weights[torch.from_numpy(expected == 0)] < 1e-200).all()  # what is hidden is exactly 0


@slower(2)
@given(records(), st.data())
def test_one_head_and_some_rows_equal_a_slice_of_all(record, data):
    m = len(record.query_axis)
    head = data.draw(st.integers(0, record.heads - 1))
    rows = slice(*sorted(data.draw(st.tuples(st.integers(0, m), st.integers(0, m)))))
    whole = record.weights()
    assert torch.equal(record.weights(head, rows), whole[head, rows])
    assert torch.equal(record.weights(rows=rows), whole[:, rows])
    assert torch.equal(record.scores(head), record.scores()[head])


@slower(2)
@given(records(), st.data())
def test_a_record_of_some_positions_has_their_scores(record, data):
    rows, columns = (
        torch.tensor(data.draw(st.lists(st.integers(0, len(axis) - 1), min_size=1, max_size=8)))
        for axis in (record.query_axis, record.key_axis)
    )
    cropped = record.at(rows, columns)
    assert torch.equal(cropped.scores(), record.scores()[:, rows][..., columns])
    assert cropped.query_axis.labels == tuple(str(int(row)) for row in rows)


@slower(2)
@given(records(), st.integers(0, 5), st.integers(0, 5), st.integers(0, 5))
def test_a_mask_rule_equals_its_mask(record, before, after, offset):
    rule = MaskRule(before=before, after=after, offset=offset)
    m, n = len(record.query_axis), len(record.key_axis)
    distance = torch.arange(m)[:, None] + offset - torch.arange(n)
    out = (distance > before) | (distance < -after)
    mask = torch.where(out, -torch.inf, 0.0)[None].double()
    by_rule = replace(record, mask=None, visible=rule)
    by_mask = replace(record, mask=mask)
    has_key = ~out.all(-1)
    close(by_rule.weights()[:, has_key], by_mask.weights()[:, has_key])
    assert torch.equal(rule.empty(m, n, torch.device("cpu")), ~has_key)


@given(st.integers(0, 2**31), lengths, lengths, lengths, lengths)
def test_recurrent_scores_match_the_direct_computation(seed, m, n, d_s, d_h):
    S, H, W, U, v, M = (
        each / 8 for each in tensors(seed, (m, d_s), (n, d_h), (3, d_s), (3, d_h), (3,), (d_s, d_h))
    )
    additive = [[v @ torch.tanh(W @ s + U @ h) for h in H] for s in S]
    close(additive_scores(S, H, W, U, v), torch.tensor(additive, dtype=torch.float64))
    bilinear = [[s @ M @ h for h in H] for s in S]
    close(multiplicative_scores(S, H, M), torch.tensor(bilinear, dtype=torch.float64))
    weights = softmax(multiplicative_scores(S, H, M))
    close(context(weights, H), np.einsum("ij,jd->id", weights.numpy(), H.numpy()))


@slower(0.5)
@given(st.integers(0, 2**31), lengths, lengths, st.integers(1, 4), lengths, st.booleans())
def test_projecting_by_head_equals_projecting_and_splitting(seed, T, d_in, heads, d, biased):
    X, W, b = tensors(seed, (2, T, d_in), (heads, d_in, d), (heads, d))
    together = W.transpose(0, 1).flatten(1)
    with unchanged(X, W, b):
        by_head = projection.head_linear(X, W, b if biased else None)
    whole = projection.linear(X, together, b.flatten() if biased else None)
    assert torch.equal(by_head, split_heads(whole, heads))
    assert torch.equal(merge_heads(by_head), whole)
    expected = np.einsum("btd,hde->bhte", X.numpy(), W.numpy())
    close(by_head, expected + (b.numpy()[:, None] if biased else 0))


@slower(0.5)
@given(st.integers(0, 2**31), lengths, st.integers(1, 9), MAGNITUDES)
def test_norms_match_the_direct_computation(seed, T, d, power):
    (x,) = tensors(seed, (T, d), power=min(power, 30))
    weight, bias = tensors(seed + 1, (d,), (d,))
    with unchanged(x, weight, bias):
        rms, layer = projection.rms_norm(x, weight), projection.layer_norm(x, weight, bias)
    given = x.numpy()
    expected = given / np.sqrt((given**2).mean(-1, keepdims=True) + 1e-6) * weight.numpy()
    torch.testing.assert_close(rms, torch.from_numpy(expected))
    torch.testing.assert_close(
        layer, torch.nn.functional.layer_norm(x, (d,), weight, bias), rtol=1e-9, atol=1e-9
    )
