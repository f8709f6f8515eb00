"""What is kept of a streamed map is what the whole map says, whatever its shape and its rules."""

import pytest
import torch
from anything import costing
from families import tiny
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close
from whole_maps import NEAR, check, use_loops, use_tiles, whole

import attnviz
from attnviz.errors import InputError
from attnviz.results.attention_record import MaskRule
from attnviz.streaming import (
    ScoreSpec,
    attend,
    cpu,
    crop,
    log_sum_exp,
    summarise,
)

SIZES = [(use_tiles, size) for size in [(4, 8, 3), (16, 16, 1), (7, 20, 6), (128, 1024, 25)]]
LOOPS = [(1, 1), (4, 500), (7, 3000), (128, 2**18), (1, 1, 0), (5, 60, 0), (16, 500, 0)]
SIZES += [(use_loops, size) for size in LOOPS]


SMALL = {
    "tiles": (use_tiles, (4, 8, 3)),
    "loops": (use_loops, (4, 500)),
    "looped tiles": (use_loops, (4, 30, 0)),
}


@pytest.fixture(params=SMALL.values(), ids=SMALL)
def small(monkeypatch, request):
    """Each engine, with little at once."""
    use, size = request.param
    use(monkeypatch, *size)


@st.composite
def scorings(draw):
    torch.manual_seed(draw(st.integers(0, 10**6)))
    H, G = draw(st.sampled_from([(1, 1), (3, 3), (4, 2), (6, 1)]))
    m, offset = draw(st.integers(1, 40)), draw(st.sampled_from([0, 0, 7]))
    n, d = m + offset, draw(st.sampled_from([4, 16]))
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16]))
    rule = MaskRule(
        before=draw(st.sampled_from([None, None, 0, 5])),
        after=draw(st.sampled_from([None, 0, 0, 3])),
        offset=offset,
        keys=torch.rand(n) < 0.7 if draw(st.booleans()) else None,
    )
    return ScoreSpec(
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
        scoring = ScoreSpec.of(record)
        P = record.weights(dtype=torch.float64)
        check(summarise(scoring, cells=5, top=3), P)
        if record.mask is not None:
            assert scoring.visible.after == 0  # the mask became a rule
            assert scoring.bias is record.bias


def test_the_model_that_comes_along_with_padding(train, small):
    for record in train:
        check(summarise(ScoreSpec.of(record), top=9), record.weights(dtype=torch.float64))


@pytest.mark.parametrize("keys", [0, cpu.KEYS], ids=["tiles", "whole rows"])
@pytest.mark.parametrize("least", [cpu.LEAST, 2**62], ids=["loops", "torch"])
def test_four_thousand_tokens(keys, least, monkeypatch):
    monkeypatch.setattr(cpu, "KEYS", keys)
    monkeypatch.setattr(cpu, "LEAST", least)
    torch.manual_seed(0)
    Q, K = torch.randn(2, 4096, 64), torch.randn(1, 4096, 64)
    scoring = ScoreSpec(Q, K, 0.125, MaskRule(after=0))
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
    rule = MaskRule(after=0, keys=torch.arange(30) != 0)
    scoring = ScoreSpec(Q, K, 0.5, rule, bias=torch.full((1, 30, 30), level), sinks=sinks)
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
    scoring = ScoreSpec(Q[0], K[0], 32**-0.5, MaskRule(after=0))
    assert_close(lse[0], log_sum_exp(scoring), **NEAR)
    assert_close(summarise(scoring, lse=lse[0]).mean, summarise(scoring).mean, **NEAR)


def test_masks_that_are_no_rule_stay_what_they_are():
    mask = torch.zeros(6, 6)
    mask[2, 3] = -torch.inf
    assert MaskRule.of(mask) is None
    assert MaskRule.of(torch.full((2, 2), -0.5)) is None
    padded = torch.zeros(4, 4).masked_fill(torch.tensor([False, False, False, True]), -1e9)
    assert MaskRule.of(padded).keys.tolist() == [True, True, True, False]


@pytest.mark.parametrize("wrong", [{"cells": 0}, {"top": -1}])
def test_numbers_that_make_no_sense(wrong):
    scoring = ScoreSpec(torch.randn(1, 3, 4), torch.randn(1, 3, 4), 0.5)
    with pytest.raises(InputError, match="Expected one cell or more"):
        summarise(scoring, **wrong)
