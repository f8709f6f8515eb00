"""A streamed summary equals that of the full map, for any shape and mask rule."""

import pytest
import torch
from full_maps import NEAR, check, log_sum_exp, use_loops, use_reference, whole
from hypothesis import given
from hypothesis import strategies as st
from strategies import slower
from torch.testing import assert_close

from attnviz.results.attention_record import MaskRule
from attnviz.streaming import ScoreSpec, attend

SIZES = [(use_reference, (scores,)) for scores in (1, 100, 3000, 2**18)]
LOOPS = [(1, 1), (4, 500), (7, 3000), (128, 2**18)]
SIZES += [(use_loops, size) for size in LOOPS]


SMALL = {
    "reference": (use_reference, (100,)),
    "loops": (use_loops, (4, 500)),
}


@pytest.fixture(params=SMALL.values(), ids=SMALL)
def small(monkeypatch, request):
    """Each engine, with small blocks."""
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


@slower(8)
@given(scorings(), st.sampled_from(SIZES), st.integers(1, 50), st.data())
def test_every_number_matches_the_full_map(scoring, engine, cells, data):
    k = data.draw(st.integers(0, scoring.shape[2]))
    use, size = engine
    with pytest.MonkeyPatch.context() as patch:
        use(patch, *size)
        P = whole(scoring)
        marks = torch.rand(scoring.shape[2]) < 0.5
        V = torch.randn(scoring.key.shape[0], scoring.shape[2], 6).to(scoring.key)
        attended, summary = attend(scoring, V, cells=cells, top=k, marked=marks)
        check(summary, P, scoring.visible.offset)
        assert_close(summary.marked.double(), P[..., marks].sum(-1), **NEAR)
        V = V.double().repeat_interleave(scoring.shape[0] // len(V), dim=0)
        assert attended.dtype == torch.float32
        assert_close(attended.double(), P @ V, **NEAR)
        alone = attend(scoring, cells=cells, top=k, marked=marks)[1]
        for name, number in vars(alone).items():
            assert_close(number, getattr(summary, name), **NEAR)
        assert_close(summary.lse.double(), log_sum_exp(scoring), **NEAR)
        heads = data.draw(st.permutations(range(scoring.shape[0])))[: scoring.shape[0] - 1 or 1]
        some = attend(scoring.select_heads(heads), cells=cells, top=k)[1]
        assert_close(some.mean, summary.mean[heads], **NEAR)
        assert_close(some.top_weights, summary.top_weights[heads], **NEAR)


@pytest.mark.parametrize("sinks", [None, torch.tensor([300.0, -800.0])], ids=["", "sinks"])
@pytest.mark.parametrize("level", [-700.0, 0.0, 700.0])
def test_scores_that_would_overflow(level, sinks, small):
    """Scores beyond ±500; in float32 their products have only four decimals."""
    torch.manual_seed(0)
    Q, K, V = torch.randn(2, 30, 8) * 20, torch.randn(2, 30, 8) * 20, torch.randn(2, 30, 8)
    rule = MaskRule(after=0, keys=torch.arange(30) != 0)
    scoring = ScoreSpec(Q, K, 0.5, rule, bias=torch.full((1, 30, 30), level), sinks=sinks)
    P = whole(scoring)
    attended, summary = attend(scoring, V, cells=7, top=3)
    near = {"atol": 2e-4, "rtol": 2e-4}
    assert_close(attended.double(), P @ V.double(), **near)
    assert_close(summary.received.double(), P.sum(1), **near)
    assert_close(summary.top_weights.double(), P.topk(3).values, **near)
    assert_close(summary.entropy.double(), -(P * P.clamp(min=1e-300).log()).sum(-1), **near)
    assert_close(summary.lse.double(), log_sum_exp(scoring), atol=1e-3, rtol=1e-5)
    assert summary.empty.tolist() == [True] + [False] * 29


def test_masks_without_a_rule_stay_masks():
    mask = torch.zeros(6, 6)
    mask[2, 3] = -torch.inf
    assert MaskRule.of(mask) is None
    assert MaskRule.of(torch.full((2, 2), -0.5)) is None
    padded = torch.zeros(4, 4).masked_fill(torch.tensor([False, False, False, True]), -1e9)
    assert MaskRule.of(padded).keys.tolist() == [True, True, True, False]
