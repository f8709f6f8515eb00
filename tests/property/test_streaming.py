"""What is kept of a streamed map is what the whole map says, whatever its shape and its rules."""

import pytest
import torch
from anything import costing
from families import tiny
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import attnviz
from attnviz.errors import InputError
from attnviz.streaming import (
    Scoring,
    Visible,
    attend,
    crop,
    log_sum_exp,
    strips,
    summarise,
    sweep,
    tiles,
    top,
)

NEAR = {"atol": 1e-5, "rtol": 1e-5}


def whole(scoring):
    """The weights by the formula, (H, m, n), in float64, and 0 in rows that may read nothing."""
    H, m, n = scoring.shape
    K = scoring.key.double().repeat_interleave(H // scoring.key.shape[0], dim=0)
    scores = scoring.query.double() @ K.mT * scoring.scale
    if scoring.capped_bias is not None:
        scores = scores + scoring.capped_bias.double()
    if scoring.soft_cap is not None:
        scores = scoring.soft_cap * torch.tanh(scores / scoring.soft_cap)
    if scoring.bias is not None:
        scores = scores + scoring.bias.double()
    rule = scoring.visible
    distance = torch.arange(m)[:, None] + rule.offset - torch.arange(n)
    for i in range(m):
        for j in range(n):
            near = rule.after is None or distance[i, j] >= -rule.after
            near &= rule.before is None or distance[i, j] <= rule.before
            if not near or (rule.keys is not None and not rule.keys[j]):
                scores[:, i, j] = -torch.inf
    if scoring.sinks is not None:
        column = scoring.sinks.double()[:, None, None].expand(H, m, 1)
        return torch.cat([scores, column], -1).softmax(-1)[..., :-1].nan_to_num(0)
    return scores.softmax(-1).nan_to_num(0)


def check(found, P, offset=0):
    """Compare every number of a summary with the same taken from the whole map."""
    H, m, n = P.shape
    cell = found.cell
    cells = [
        [P[:, i : i + cell, j : j + cell].flatten(1) for j in range(0, n, cell)]
        for i in range(0, m, cell)
    ]

    def pooled(reduce):
        return torch.stack([torch.stack([reduce(each) for each in row], -1) for row in cells], 1)

    i = torch.arange(m)[:, None] + offset
    expected = {
        "mean": pooled(lambda each: each.mean(1)),
        "largest": pooled(lambda each: each.amax(1)),
        "received": P.sum(1),
        "entropy": -(P * P.clamp(min=1e-300).log()).sum(-1),
        "distance": (P * (i - torch.arange(n)).abs()).sum(-1),
        "first": P[:, :, 0],
    }
    for name, at in (("itself", i), ("previous", i - 1)):
        inside = (at >= 0) & (at < n)
        taken = P.gather(2, at.clamp(0, n - 1).expand(H, m, 1)) * inside
        expected[name] = taken[..., 0]
    for name, values in expected.items():
        assert_close(
            getattr(found, name).double(), values, **NEAR, msg=lambda m, n=name: f"{n}: {m}"
        )
    assert torch.equal(found.empty, P.sum((0, 2)) == 0)
    k = found.top_keys.shape[-1]
    assert_close(found.top_weights.double(), P.topk(k, -1).values, **NEAR)
    known = found.top_keys >= 0
    at = P.gather(2, found.top_keys.long().clamp(min=0)) * known
    assert_close(at, found.top_weights.double(), **NEAR)


def use_tiles(patch, rows, columns, lot):
    """No strips, and tiles of a few rows and columns, so that short texts need many."""
    patch.setattr(strips, "KEYS", 0)
    for room in (tiles, sweep):
        patch.setattr(room, "ROWS", rows)
        patch.setattr(room, "COLUMNS", columns)
    patch.setattr(sweep, "LOT", lot)
    patch.setattr(top, "_ROOM", 50 * lot)  # a row or several at once


def use_strips(patch, rows, scores):
    """Strips of a few rows, of one head or of several."""
    patch.setattr(strips, "ROWS", rows)
    patch.setattr(strips, "SCORES", scores)


SIZES = [(use_tiles, size) for size in [(4, 8, 3), (16, 16, 1), (7, 20, 6), (128, 1024, 25)]]
SIZES += [(use_strips, size) for size in [(1, 1), (4, 500), (7, 3000), (128, 2**17)]]


@pytest.fixture(params=[(use_tiles, (4, 8, 3)), (use_strips, (4, 500))], ids=["tiles", "strips"])
def small(monkeypatch, request):
    """Either engine, with little at once."""
    use, size = request.param
    use(monkeypatch, *size)


@st.composite
def scorings(draw):
    torch.manual_seed(draw(st.integers(0, 10**6)))
    H, G = draw(st.sampled_from([(1, 1), (3, 3), (4, 2), (6, 1)]))
    m, offset = draw(st.integers(1, 40)), draw(st.sampled_from([0, 0, 7]))
    n, d = m + offset, draw(st.sampled_from([4, 16]))
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16]))
    rule = Visible(
        before=draw(st.sampled_from([None, None, 0, 5])),
        after=draw(st.sampled_from([None, 0, 0, 3])),
        offset=offset,
        keys=torch.rand(n) < 0.7 if draw(st.booleans()) else None,
    )
    return Scoring(
        (torch.randn(H, m, d) * 1.5).to(dtype),
        (torch.randn(G, n, d) * 1.5).to(dtype),
        d**-0.5,
        rule,
        soft_cap=draw(st.sampled_from([None, 4.0])),
        capped_bias=draw(st.sampled_from([None, torch.randn(1, m, n)])),
        bias=draw(st.sampled_from([None, torch.randn(H, m, n)])),
        sinks=draw(st.sampled_from([None, torch.randn(H)])),
    )


@costing(8)
@given(scorings(), st.sampled_from(SIZES), st.integers(1, 50), st.data())
def test_every_number_is_that_of_the_whole_map(scoring, engine, cells, data):
    k = data.draw(st.integers(0, scoring.shape[2]))
    use, size = engine
    with pytest.MonkeyPatch.context() as patch:
        use(patch, *size)
        P = whole(scoring)
        marks = torch.rand(scoring.shape[2]) < 0.5
        V = torch.randn(scoring.key.shape[0], scoring.shape[2], 6).to(scoring.key)
        attended, found = attend(scoring, V, cells=cells, top=k, marked=marks)
        check(found, P, scoring.visible.offset)
        assert_close(found.marked.double(), P[..., marks].sum(-1), **NEAR)
        V = V.double().repeat_interleave(scoring.shape[0] // len(V), dim=0)
        assert attended.dtype == torch.float32
        assert_close(attended.double(), P @ V, **NEAR)
        alone = summarise(scoring, cells=cells, top=k, marked=marks)
        for name, number in vars(alone).items():
            assert_close(number, getattr(found, name), **NEAR)
        m, n = scoring.shape[1:]
        rows = slice(*sorted(data.draw(st.tuples(st.integers(0, m), st.integers(0, m)))))
        columns = slice(*sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n)))))
        part = crop(scoring, rows=rows, columns=columns)
        assert_close(part.double(), P[:, rows, columns], **NEAR)
        lse = log_sum_exp(scoring)
        assert_close(found.lse, lse, **NEAR)
        assert_close(crop(scoring, rows=rows, lse=lse).double(), P[:, rows], **NEAR)


@pytest.mark.parametrize(
    "family", ["bert", "gpt2", "llama", "mistral", "gemma2", "gpt-oss", "mpt", "mpnet"]
)
def test_records_of_real_families(family, tokenizer, small):
    """Grouped queries, windows, soft caps, biases and sinks, with their masks as rules."""
    model = attnviz.load(tiny(family), tokenizer=tokenizer)
    for record in model.attend("the train left the station on time and nobody minded"):
        scoring = Scoring.of(record)
        P = record.weights(dtype=torch.float64)
        check(summarise(scoring, cells=5, top=3), P)
        if record.mask is not None:
            assert scoring.visible.after == 0  # the mask became a rule
            assert scoring.bias is record.bias


def test_the_model_that_comes_along_with_padding(train, small):
    for record in train:
        check(summarise(Scoring.of(record), top=9), record.weights(dtype=torch.float64))


@pytest.mark.parametrize("keys", [0, strips.KEYS], ids=["tiles", "strips"])
def test_four_thousand_tokens(keys, monkeypatch):
    monkeypatch.setattr(strips, "KEYS", keys)
    torch.manual_seed(0)
    Q, K = torch.randn(2, 4096, 64), torch.randn(1, 4096, 64)
    scoring = Scoring(Q, K, 0.125, Visible(after=0))
    P = (Q.double() @ K.double().mT * 0.125).masked_fill(
        torch.ones(4096, 4096, dtype=torch.bool).triu(1), -torch.inf
    )
    V = torch.randn(1, 4096, 64)
    attended, found = attend(scoring, V, top=8)
    check(found, P.softmax(-1))
    assert_close(attended.double(), P.softmax(-1) @ V.double(), **NEAR)


@pytest.mark.parametrize("sinks", [None, torch.tensor([300.0, -800.0])], ids=["", "sinks"])
@pytest.mark.parametrize("level", [-700.0, 0.0, 700.0])
def test_scores_that_would_overflow(level, sinks, small):
    """Scores of ±500 and more; in float32 the product of such has but four digits after it."""
    torch.manual_seed(0)
    Q, K, V = torch.randn(2, 30, 8) * 20, torch.randn(2, 30, 8) * 20, torch.randn(2, 30, 8)
    rule = Visible(after=0, keys=torch.arange(30) != 0)
    scoring = Scoring(Q, K, 0.5, rule, bias=torch.full((1, 30, 30), level), sinks=sinks)
    P = whole(scoring)
    attended, found = attend(scoring, V, cells=7, top=3)
    near = {"atol": 2e-4, "rtol": 2e-4}
    assert_close(attended.double(), P @ V.double(), **near)
    assert_close(found.received.double(), P.sum(1), **near)
    assert_close(found.top_weights.double(), P.topk(3).values, **near)
    assert_close(found.entropy.double(), -(P * P.clamp(min=1e-300).log()).sum(-1), **near)
    assert_close(found.lse, log_sum_exp(scoring), atol=1e-3, rtol=1e-5)
    assert found.empty.tolist() == [True] + [False] * 29


def test_the_log_sum_exp_of_fast_attention_serves():
    torch.manual_seed(0)
    Q, K = torch.randn(1, 3, 700, 32), torch.randn(1, 3, 700, 32)
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    _, lse = flash(Q, K, K, 0.0, True)
    scoring = Scoring(Q[0], K[0], 32**-0.5, Visible(after=0))
    assert_close(lse[0], log_sum_exp(scoring), **NEAR)
    assert_close(summarise(scoring, lse=lse[0]).mean, summarise(scoring).mean, **NEAR)


def test_masks_that_are_no_rule_stay_what_they_are():
    mask = torch.zeros(6, 6)
    mask[2, 3] = -torch.inf
    assert Visible.of(mask) is None
    assert Visible.of(torch.full((2, 2), -0.5)) is None
    padded = torch.zeros(4, 4).masked_fill(torch.tensor([False, False, False, True]), -1e9)
    assert Visible.of(padded).keys.tolist() == [True, True, True, False]


@pytest.mark.parametrize("wrong", [{"cells": 0}, {"top": -1}])
def test_numbers_that_make_no_sense(wrong):
    scoring = Scoring(torch.randn(1, 3, 4), torch.randn(1, 3, 4), 0.5)
    with pytest.raises(InputError, match="Expected one cell or more"):
        summarise(scoring, **wrong)


def test_a_planted_fault_is_seen():
    """A rule off by one key, a scale 1 % off, a head that reads another's keys."""
    torch.manual_seed(0)
    Q, K = torch.randn(2, 60, 8), torch.randn(2, 60, 8)
    P = whole(Scoring(Q, K, 0.5, Visible(after=0)))
    for fault in (
        Scoring(Q, K, 0.5, Visible(after=1)),
        Scoring(Q, K, 0.505, Visible(after=0)),
        Scoring(Q, K.flip(0), 0.5, Visible(after=0)),
    ):
        with pytest.raises(AssertionError):
            check(summarise(fault, cells=7), P)


def test_planted_faults_in_the_strips_are_seen(monkeypatch):
    """A border off by one, sums that overflowed, keys in another order, a distance not mended."""
    torch.manual_seed(0)
    use_strips(monkeypatch, 7, 3000)
    Q, K = torch.randn(2, 60, 8), torch.randn(2, 60, 8)
    mild = Scoring(Q, K, 0.5, Visible(before=20, after=3))
    check(summarise(mild, cells=7, top=3), whole(mild))
    high = Scoring(Q, K, 0.5, bias=torch.full((1, 60, 60), 200.0))
    check(summarise(high, cells=7, top=3), whole(high))  # its sums are far beyond float32
    corner, find = strips._corner, strips._find

    def other_order(*given):
        found, keys = find(*given)
        return found, keys.flip(1)

    def off_by_one(height, after, device):
        return corner(height, after, device).roll(1, 1)

    def as_it_is(height, device):
        return torch.zeros(height, height, device=device)

    for room, name, fault, scoring in (
        (strips, "_corner", off_by_one, mild),
        (strips, "_find", other_order, mild),
        (strips, "_behind", as_it_is, mild),
        (strips._Strips, "sound", lambda *_: True, high),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(room, name, fault)
            with pytest.raises(AssertionError):
                check(summarise(scoring, cells=7, top=3), whole(scoring))


def test_planted_faults_in_the_tiles_are_seen(monkeypatch):
    """A distance not mended, lots without their first key, lots that were not looked through."""
    torch.manual_seed(0)
    use_tiles(monkeypatch, 14, 10, 3)
    Q, K = torch.randn(2, 60, 8), torch.randn(2, 60, 8)
    scoring = Scoring(Q, K, 0.5, Visible(before=20, after=3))
    check(summarise(scoring, cells=7, top=3), whole(scoring))
    views, largest = top.Lots.views, top.Lots.largest

    def as_it_is(P, here, columns):
        return torch.zeros(())

    def without_the_first(*given):
        return [(S[:, :, :, S.shape[3] > 1 :], highest) for S, highest in views(*given)]

    def the_first_alone(*given):
        found, keys = largest(*given[:-1], 1)
        return found.expand(-1, -1, 3), keys.expand(-1, -1, 3)

    for room, name, fault in (
        (sweep, "_behind", as_it_is),
        (top.Lots, "views", without_the_first),
        (top.Lots, "largest", the_first_alone),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(room, name, fault)
            with pytest.raises(AssertionError):
                check(summarise(scoring, cells=7, top=3), whole(scoring))
