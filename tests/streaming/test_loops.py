"""Edge cases of the compiled loops that random inputs may miss."""

import numpy as np
import pytest
import torch
from full_maps import check, use_loops, whole
from torch.testing import assert_close

from attnviz.results.attention_record import MaskRule
from attnviz.streaming import ScoreSpec, attend
from attnviz.streaming import numba_kernels as loops
from attnviz.streaming.reference import NEVER

ENGINES = {"one head": (4, 500), "heads together": (7, 3000)}


@pytest.fixture(params=ENGINES.values(), ids=ENGINES)
def engine(monkeypatch, request):
    """Use only the loops: falling back to torch fails."""
    use_loops(monkeypatch, *request.param)


def drawn(H=2, m=30, n=30, d=8, scale=0.5, **rest):
    torch.manual_seed(0)
    return ScoreSpec(torch.randn(H, m, d), torch.randn(H, n, d), scale, **rest)


def expect_right(scoring, **how):
    """Compare the summary with the full map and return it."""
    V = torch.randn(len(scoring.key), scoring.shape[2], 6)
    P = whole(scoring)
    A, found = attend(scoring, V, cells=7, top=3, **how)
    check(found, P, scoring.visible.offset)
    assert_close(A.double(), P @ V.double(), atol=1e-5, rtol=1e-5)
    return found


SCORINGS = {
    "sinks": drawn(sinks=torch.tensor([1.0, -2.0])),
    "sinks of rows": drawn(sinks=torch.linspace(-3, 3, 60).view(2, 30)),
    "sinks and causal": drawn(sinks=torch.tensor([0.5, 2.0]), visible=MaskRule(after=0)),
    "more keys": drawn(m=9, visible=MaskRule(after=0, offset=21)),
    "more queries": drawn(n=9, visible=MaskRule(before=4)),
    "negative scale": drawn(scale=-0.5),
    "window and padding": drawn(visible=MaskRule(3, 0, keys=torch.arange(30) > 6)),
    "from 0 down to what vanishes": drawn(bias=-torch.linspace(0, 95, 30).expand(1, 30, 30)),
}


@pytest.mark.parametrize("name", SCORINGS)
def test_every_number(name, engine):
    expect_right(SCORINGS[name])


@pytest.mark.parametrize("level", [89.0, 100.0, 128.0, 177.5, 355.0, 500.0, 710.0, -100.0, -355.0])
def test_one_key_with_an_extreme_score(level, engine):
    """Its exponential exceeds float32 and must not wrap around to an ordinary number."""
    bias = torch.zeros(1, 30, 30)
    bias[..., 4] = level
    found = expect_right(drawn(bias=bias, visible=MaskRule(after=0)))
    one = drawn(bias=bias)
    S = one.query.double() @ one.key.double().mT * one.scale + one.bias
    S = S.masked_fill(torch.ones(30, 30).triu(1).bool(), -torch.inf)
    assert_close(found.lse.double(), S.logsumexp(-1), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("sink", [150.0, -30.0, -800.0])
@pytest.mark.parametrize("offset", [0, -12, -100])
def test_sinks_of_rows_without_visible_keys(sink, offset, engine):
    """Their log-sum-exp is the sink; with an offset, some rows precede all keys."""
    rule = MaskRule(5, 0, offset, keys=torch.arange(30) > 3)
    found = expect_right(drawn(sinks=torch.full((2,), sink), visible=rule))
    nothing = rule.empty(30, 30, torch.device("cpu"))
    assert nothing.any()
    assert_close(found.lse[:, nothing], torch.full((2, int(nothing.sum())), sink))


def test_ties_select_the_first_keys(engine):
    found = attend(
        ScoreSpec(torch.ones(1, 20, 4), torch.ones(1, 30, 4), 0.5), torch.ones(1, 30, 2), top=3
    )
    assert found[1].top_keys.tolist() == [[[0, 1, 2]] * 20]


def test_exponentials_match_float64():
    for x in np.linspace(-125.9, 127.9, 5001).astype(np.float32):
        assert abs(float(loops._exp2(x)) / 2.0 ** float(x) - 1) < 2e-7
    assert loops._exp2(np.float32(-200)) == 0
    assert loops._exp2(np.float32(400)) == np.inf


def test_the_loops_use_the_same_constants():
    """The loops repeat the constants, because numba recompiles only when their own file changes."""
    assert np.float32(NEVER) == loops._NEVER
    assert np.float32(NEVER / 2) == loops._HIDDEN
