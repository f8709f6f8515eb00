"""A slightly wrong recipe gives wrong queries, keys or values: each such fault is caught."""

from dataclasses import replace
from functools import cache

import captures
import pytest
import torch
from faults import cut_the_other_way, two_per_cent_off
from rotary_angles import rotary_angles

from attnviz.results import Clip, Factor, Gate, Norm, Rotation

DTYPES = [torch.float32, torch.bfloat16]


def step(kind, /, **changes):
    """Return a fault: one kind of step is changed, or removed if no change is given."""

    def fault(part):
        assert any(isinstance(each, kind) for each in part.after)
        steps = (
            replace(each, **changes) if isinstance(each, kind) else each for each in part.after
        )
        left = (each for each in part.after if not isinstance(each, kind))
        return replace(part, after=tuple(steps if changes else left))

    return fault


def unit_weight(part):
    norm = next(each for each in part.after if isinstance(each, Norm))
    return step(Norm, weight=torch.ones_like(norm.weight), offset=0.0)(part)


def norm_and_rotation_swapped(part):
    assert {type(each) for each in part.after} == {Norm, Rotation}
    return replace(part, after=part.after[::-1])


def one_weight_for_all_heads(part):
    norm = next(each for each in part.after if isinstance(each, Norm))
    shared = norm.weight.reshape(len(part.weight), -1)[:1].expand(len(part.weight), -1)
    weight = shared.flatten() if norm.over == "width" else shared
    return step(Norm, weight=weight)(part)


def each_head_by_itself(part):
    norm = next(each for each in part.after if isinstance(each, Norm))
    assert norm.over == "width"
    return step(Norm, over="head", weight=norm.weight.reshape(len(part.weight), -1))(part)


def latent_norm_left_out(part):
    assert len(part.before) == 2
    return replace(part, before=part.before[:1])


def the_wrong_part_shared(part):
    order = torch.arange(part.beside.weight.shape[-1]).roll(1)
    return replace(part, beside=replace(part.beside, weight=part.beside.weight[:, order]))


def in_another_order(part):
    """Swap contiguous and interleaved head layouts."""
    return replace(part, weight=cut_the_other_way(part.weight))


# description, fault, stages in which it is planted, families
FAULTS = [
    ("norm-left-out", step(Norm), ("query", "key"), ("gemma3", "olmo2", "cohere", "hunyuan")),
    ("norm-left-out", step(Norm), ("query",), ("stablelm", "persimmon", "phi", "llama4")),
    ("norm-left-out", step(Norm), ("value",), ("gemma4",)),
    ("weight-ignored", unit_weight, ("query", "key"), ("gemma3", "olmo2", "cohere", "phi")),
    ("offset-dropped", step(Norm, offset=0.0), ("query", "key"), ("gemma3", "qwen3-next")),
    ("offset-added", step(Norm, offset=1.0), ("query", "key"), ("qwen3", "olmo2")),
    ("not-centered", step(Norm, kind="rms"), ("query", "key"), ("cohere", "stablelm", "phi")),
    ("centered", step(Norm, kind="layer"), ("query", "key"), ("qwen3", "gemma3")),
    ("bias-dropped", step(Norm, bias=None), ("query", "key"), ("phi", "persimmon")),
    ("norm-first", norm_and_rotation_swapped, ("query", "key"), ("hunyuan",)),
    ("norm-last", norm_and_rotation_swapped, ("query", "key"), ("qwen3", "gemma3")),
    ("shared-weight", one_weight_for_all_heads, ("query",), ("stablelm", "cohere", "olmo2")),
    ("head-by-head", each_head_by_itself, ("query", "key"), ("olmo2", "minimax-m2")),
    ("clip-dropped", step(Clip), ("query", "key", "value"), ("olmo", "dbrx")),
    ("clip-elsewhere", step(Clip, bound=1.3), ("query", "key", "value"), ("olmo", "dbrx")),
    ("halves", step(Rotation, interleaved=False), ("query", "key"), ("cohere", "glm", "llama4")),
    ("pairs", step(Rotation, interleaved=True), ("query", "key"), ("llama-yarn", "gpt-neox")),
    ("not-regrouped", step(Rotation, regrouped=False), ("query", "key"), ("deepseek-v3",)),
    ("forwards", step(Rotation, backwards=False), ("query", "key"), ("nanochat",)),
    ("first-features", step(Rotation, first=0), ("query", "key"), ("deepseek-v2", "minicpm3")),
    ("not-turned", step(Rotation), ("query", "key"), ("phi", "deepseek-v3-yarn", "smollm3")),
    ("factor-dropped", step(Factor), ("query",), ("opt", "esm")),
    ("position-scaling", step(Factor), ("query",), ("ministral3",)),
    ("latent-norm", latent_norm_left_out, ("query", "key", "value"), ("deepseek-v3", "minicpm3")),
    ("shared-part", the_wrong_part_shared, ("key",), ("deepseek-v2", "minicpm3")),
    ("other-order", in_another_order, ("query", "key", "value"), ("phi3", "gpt-neox")),
    ("two-per-cent", two_per_cent_off, ("query", "key"), ("gpt-neox", "phi3", "glm", "opt")),
    ("two-per-cent", two_per_cent_off, ("value",), ("gpt-neox", "phi3", "dbrx", "deepseek-v3")),
]  # fmt: skip
# Each fault of a stage in both dtypes, in one of its families; the others with `-m long`
CASES = [
    pytest.param(
        fault, stage, family, dtype, id=f"{name}-{family}-{stage}-{dtype}",
        marks=() if number == len(name) % len(families) else pytest.mark.long,
    )
    for name, fault, stages, families in FAULTS
    for number, family in enumerate(families)
    for stage in stages
    for dtype in DTYPES
]  # fmt: skip


def verify(each, changed):
    return captures.verify([changed], each.references[:1])


@pytest.fixture(scope="module")
def verified(captured):
    """Return what captured does, verified without a fault."""

    @cache
    def of(family, dtype):
        (each,) = captured(family, dtype, 1)
        assert verify(each, each.records[0]).verdict == "verified"
        return each

    return of


@pytest.mark.parametrize(("fault", "stage", "family", "dtype"), CASES)
def test_a_wrong_recipe_is_caught(fault, stage, family, dtype, verified):
    each = verified(family, dtype)
    record = each.records[0]
    wrong = fault(getattr(record.projection, stage))
    report = verify(each, replace(record, projection=replace(record.projection, **{stage: wrong})))
    assert [check.stage for check in report.checks if not check.passed] == [stage]
    assert report.first_difference.layer == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", ["phi", "stablelm", "glm"])
def test_a_wrong_width_of_the_rotation_is_caught(family, dtype, captured):
    (each,) = captured(family, dtype, 1)
    record = each.records[0]
    assert record.rotation[0].shape[-1] < record.query.shape[-1]
    all_features = rotary_angles(torch.arange(len(record.query_axis)), record.query.shape[-1])
    report = verify(each, replace(record, rotation=all_features))
    assert [check.stage for check in report.checks if not check.passed] == ["query", "key"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("family", "kind"), [("qwen3-next", Gate), ("bitnet", Norm)])
def test_operations_before_the_output_are_included(family, kind, dtype, captured):
    (each,) = captured(family, dtype, 1)
    record = each.records[0]
    assert [type(each) for each in record.projection.before_output] == [kind]
    forgotten = replace(record.projection, before_output=())
    report = verify(each, replace(record, projection=forgotten))
    assert report.first_difference.stage == "output"
