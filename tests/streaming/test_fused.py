"""Fused attention and the weights for single keys, as on a GPU, with operators that run here."""

from dataclasses import replace

import pytest
import torch
from full_maps import log_sum_exp, scores_by_formula, whole
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from attnviz.results import MaskRule, attention_record
from attnviz.streaming import ScoreSpec, attend, gpu, reference
from attnviz.streaming.reference import MapBuffers

NEAR = {"atol": 1e-5, "rtol": 1e-5}
VIEWS = {"slice", "view", "select", "unsqueeze", "expand", "transpose", "alias", "_unsafe_view"}
N = 16
HOLES = torch.arange(N) % 5 > 1
RULES = {
    "all": MaskRule(),
    "causal": MaskRule(after=0),
    "window": MaskRule(4, 0),
    "alone": MaskRule(0, 0),
    "both sides": MaskRule(4, 3),
    "ahead": MaskRule(-2, 9),
    "behind": MaskRule(9, -2),
    "no later limit": MaskRule(before=5),
    "padding before": MaskRule(after=0, keys=torch.arange(N) > 6),
    "padding before a window": MaskRule(5, 0, keys=torch.arange(N) > 6),
    "padding after": MaskRule(after=0, keys=torch.arange(N) < 11),
    "padding, all keys": MaskRule(keys=torch.arange(N) < 11),
    "holes": MaskRule(after=0, keys=HOLES),
    "nothing": MaskRule(keys=torch.zeros(N, dtype=torch.bool)),
}
# Heads, key heads, queries, and the position of the first.
SHAPES = {
    "square": (4, 2, N, 0),
    "cache": (2, 1, 6, N - 6),
    "early": (2, 1, 6, 3),
    "far": (2, 2, 7, -40),
    "end": (2, 1, 5, 20),
}


class Counter(TorchDispatchMode):
    """Counts some operators; by default those that are no views, a launch or more on a GPU."""

    def __init__(self, *names):
        super().__init__()
        self.names, self.count = names, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result, name = func(*args, **(kwargs or {})), func.overloadpacket.__name__
        empty = isinstance(result, torch.Tensor) and not result.numel()
        self.count += name in self.names if self.names else name not in VIEWS and not empty
        return result


def launches(run):
    with torch.no_grad(), Counter() as counter:
        run()
    return counter.count


def drawn(shape="square", rule="causal", d=8, **terms):
    """Return a spec and its values."""
    torch.manual_seed(0)
    H, G, m, offset = SHAPES[shape]
    visible = replace(RULES[rule], offset=offset)
    K, V = torch.randn(2, G, N, d)
    return ScoreSpec(torch.randn(H, m, d), K, 0.5, visible, **terms), V


# ------------------------------------------------------- the weights for itself, previous, first


def near_weights(spec):
    P = whole(spec)
    i = torch.arange(spec.shape[1]) + spec.visible.offset
    columns = torch.stack([i, i - 1, torch.zeros_like(i)])
    inside = (columns >= 0) & (columns < N)
    index = columns.clamp(0, N - 1).mT.expand(len(P), -1, -1)
    return P.gather(2, index).mT * inside


@pytest.mark.pairs
@pytest.mark.parametrize("limit", [1, 2**27])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("shape", SHAPES)
def test_weights_for_single_keys(shape, rule, limit, monkeypatch):
    monkeypatch.setattr(gpu, "_PAIRS", limit)  # of one key head at a time, and of all
    spec, _ = drawn(shape, rule)
    for terms in ({}, {"sinks": torch.ones(len(spec.query))}, {"soft_cap": 0.7}):
        spec = replace(spec, **terms)
        lse = log_sum_exp(spec).float()
        near = torch.zeros(len(spec.query), 3, spec.shape[1])
        gpu._fill_near(spec, lse.masked_fill(lse == -torch.inf, 1e30), near)
        assert_close(near.double(), near_weights(spec), **NEAR)


def test_a_hidden_key_with_a_large_score_has_no_weight():
    spec, _ = drawn(rule="holes")
    spec.key[:, 0] *= 1e4
    assert (scores_by_formula(replace(spec, visible=MaskRule()))[..., 0] > 1000).any()
    near = torch.zeros(4, 3, N)
    lse = log_sum_exp(spec).float()
    gpu._fill_near(spec, lse.masked_fill(lse == -torch.inf, 1e30), near)
    assert_close(near.double(), near_weights(spec), **NEAR)


def test_weights_for_single_keys_take_a_few_launches():
    """It was 1,600 for 131,072 queries, since 4,096 of them were gathered at a time."""
    spec = ScoreSpec(torch.randn(2, 20_000, 2), torch.randn(1, 20_000, 2), 0.5, MaskRule(after=0))
    lse, near = torch.zeros(2, 20_000), torch.zeros(2, 3, 20_000)
    assert launches(lambda: gpu._fill_near(spec, lse, near)) <= 20


# --------------------------------------------------------------------------- the loops in torch


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_vectors_and_top_keys_from_the_log_sum_exp(rule, sinks, monkeypatch):
    monkeypatch.setitem(reference.SCORES, "cpu", 100)
    monkeypatch.setattr(reference, "_FEWEST_ROWS", 1)
    spec, V = drawn(rule=rule, sinks=torch.ones(4) if sinks else None)
    buffers = MapBuffers(spec, 4, 3, None, None)
    buffers.lse = log_sum_exp(spec).float()
    reference.find_top(spec, buffers)
    P = whole(spec)
    output = reference.attend(spec, V, buffers.lse)
    assert_close(output.double(), P @ V.double().repeat_interleave(2, dim=0), **NEAR)
    assert_close(buffers.top_weights.double(), P.topk(3).values, **NEAR)
    weights = P.gather(2, buffers.top_keys.long().clamp(min=0)) * (buffers.top_keys >= 0)
    assert_close(weights, P.topk(3).values, **NEAR)


@pytest.mark.parametrize("is_known", [False, True])
def test_a_gpu_takes_every_number_from_the_kernels_but_the_top_keys(is_known, monkeypatch):
    """The loops in torch get the log-sum-exp of the kernel, or what the model's own returned."""
    spec, V = drawn(rule="window")
    lse = log_sum_exp(spec).float()
    vectors = whole(spec) @ V.double().repeat_interleave(2, dim=0)

    def fill(spec, buffers, lse):
        assert_close(lse.double(), log_sum_exp(spec), **NEAR)
        buffers.lse = lse

    monkeypatch.setattr(gpu, "log_sum_exp", None if is_known else lambda spec: lse)
    monkeypatch.setattr(gpu, "supports", lambda spec: True)
    monkeypatch.setattr(gpu, "reduce_map", fill)
    monkeypatch.setattr(reference, "reduce_map", None)
    P = whole(spec)
    output, summary = attend(spec, V, top=3, lse=lse if is_known else None)
    assert_close(summary.top_weights.double(), P.topk(3).values, **NEAR)
    assert_close(output.double(), vectors, **NEAR)


def test_blocks_of_a_window_are_large():
    """As few launches as the window allows, not as the length of the text asks for."""
    spec = ScoreSpec(torch.empty(8, 20_000, 2), torch.empty(8, 20_000, 2), 0.5, MaskRule(511, 0))
    groups, blocks, work = reference._blocks(spec)
    assert len(groups) * len(blocks) <= 8 * 20_000 * 1200 / reference.SCORES["cpu"]
    assert work.numel() < 4 * reference.SCORES["cpu"]


def test_a_gpu_takes_larger_blocks(simulated_gpu):
    Q = torch.empty(2, 20_000, 2)
    sizes = []
    for device in ("cpu", "cuda"):
        spec = ScoreSpec(Q.to(device), Q.to(device), 0.5)
        sizes.append(len(reference._blocks(spec)[1]))
    assert sizes[0] > 10 * sizes[1]


@pytest.mark.parametrize("rule", RULES)
def test_nothing_waits_for_a_gpu_or_mixes_devices(rule):
    """Tensors on the meta device refuse both."""
    spec, V = drawn(rule=rule)
    Q, K, V = (tensor.to("meta") for tensor in (spec.query, spec.key, V))
    visible, marked = spec.visible, torch.ones(N, dtype=torch.bool, device="meta")
    if visible.keys is not None:
        visible = replace(visible, keys=visible.keys.to("meta"))
    for terms in ({}, {"sinks": torch.ones(4, device="meta")}, {"soft_cap": 2.0}):
        spec = replace(spec, query=Q, key=K, visible=visible, **terms)
        buffers = MapBuffers(spec, 7, 3, marked, V)
        reference.reduce_map(spec, buffers)
        reference.find_top(spec, buffers)
        assert reference.attend(spec, V, buffers.lse).is_meta
        gpu._fill_near(spec, buffers.lse, buffers.near)
        summary = buffers.summary(spec.visible.empty(N, N, Q.device))
        tensors = [term for term in vars(summary).values() if isinstance(term, torch.Tensor)]
        assert all(tensor.is_meta for tensor in tensors)


def test_stored_summaries_leave_the_gpu(simulated_gpu):
    spec = ScoreSpec(*torch.zeros(2, 2, N, 8, device="cuda").unbind(), 0.5)
    summary = MapBuffers(spec, 4, 2, None, None).summary(torch.zeros(N, device="cuda") > 0)
    stored = vars(summary.cpu())
    assert summary.mean.is_cuda
    assert {number.device.type for number in stored.values() if not isinstance(number, int)} == {
        "cpu"
    }


def test_a_mask_rule_is_read_with_two_copies_for_each_block(monkeypatch):
    """Each copy makes the CPU wait for the GPU."""
    monkeypatch.setitem(attention_record._CELLS, "cpu", 4 * N)  # four blocks
    copies = []
    read, equal = torch.Tensor.tolist, torch.equal
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: copies.append(1) or read(self))
    monkeypatch.setattr(torch, "equal", lambda *args: copies.append(1) or equal(*args))
    for rule in ("causal", "window", "both sides", "all"):
        spec, _ = drawn(rule=rule)
        i = torch.arange(N)
        hidden = spec.visible.hidden_at(i, i)
        for mask in (~hidden, torch.zeros(N, N).masked_fill(hidden, -torch.inf)):
            copies.clear()
            with torch.no_grad(), Counter("_local_scalar_dense", "nonzero", "equal") as counter:
                same = MaskRule.of(mask)
            assert (same.before, same.after) == (RULES[rule].before, RULES[rule].after)
            assert len(copies) == 8
            assert counter.count <= 4 + 1  # `torch.equal`, and whether all keys are read
