"""Which recipe a module follows: the one that makes the Q, K and V that were recorded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import TypeAlias

import torch
from torch import Tensor, nn

from attnviz.capture.projections.find import (
    KEY_NORMS,
    OUTPUT_NORMS,
    QUERY_NORMS,
    VALUE_NORMS,
    Holder,
    norms,
    plain,
)
from attnviz.capture.projections.layouts import (
    STAGES,
    Sizes,
    gates,
    layouts,
)
from attnviz.formula.attention import repeat_heads
from attnviz.results import (
    AttentionRecord,
    Clip,
    Factor,
    HeadProjection,
    Linear,
    Projection,
    Rotation,
    Step,
)
from attnviz.results.recompute import (
    Angles,
    begin,
    follow,
    source,
)

_ROUGHLY = 0.02  # far more than rounding, far less than another recipe
_ROUNDING = 2  # steps of the model's precision: nothing fits better
_SUMMATION = 1e-5  # what the order of long sums leaves in float32
_MISFIT = (RuntimeError, ValueError, TypeError)  # what shapes that do not fit raise
_Try: TypeAlias = tuple[HeadProjection, Tensor, tuple[Step, ...]]
_NORMS = {"query": QUERY_NORMS, "key": KEY_NORMS, "value": VALUE_NORMS}


def understood(
    record: AttentionRecord,
    holder: Holder | None,
    head_output: Tensor | None = None,
    given: Tensor | None = None,
) -> AttentionRecord:
    """Return the record with the projections that make its Q, K and V, as far as there are such.

    A recipe is taken only if it makes what the model computed at least roughly: then a difference
    is a difference. If none does, the module does something that attnviz does not know, and there
    is nothing to compare with.

    Parameters
    ----------
    head_output, given : (H, m, d_v), A·V of each head, and what the model multiplied by W^O; None
        if they were not seen.
    """
    if holder is None:
        return record
    query, key, value = (_recipe(record, holder.module, stage) for stage in STAGES)
    projection = Projection(
        heads=record.heads,
        query=query,
        key=key,
        value=value,
        output=_output(record, holder),
        before_output=_before_output(record, holder.module, head_output, given),
    )
    return replace(record, projection=projection)


def _output(record: AttentionRecord, holder: Holder) -> Linear | None:
    output = None if holder.output is None else plain(holder.output)
    width = record.heads * record.value.shape[-1]
    return output if output is not None and len(output.weight) == width else None


@torch.no_grad()
def _recipe(record: AttentionRecord, module: nn.Module, stage: str) -> HeadProjection | None:
    """Return the way to make one stage that comes closest to what was recorded, if one is close."""
    X, had = source(record, stage), getattr(record, stage)
    if X is None:
        return None
    dtype = torch.promote_types(had.dtype, torch.float32)
    exact = max(_ROUNDING * torch.finfo(had.dtype).eps, _SUMMATION)
    best, least = None, _ROUGHLY
    ways = [
        _tries(part, X.to(dtype), _followed(module, stage, part, record))
        for part in layouts(module, stage, _sizes(record))
    ]
    rows = _real(record) if stage == "query" else slice(None)
    for part, heads, steps in _in_turn(ways):
        error = _distance(steps, heads, record.rotation, had.to(dtype), rows=rows)
        if error < least:
            best, least = replace(part, after=steps), error
        if error <= exact:
            break
    return best


def _tries(part: HeadProjection, X: Tensor, followed: Iterator[tuple[Step, ...]]) -> Iterator[_Try]:
    """Return one layout with the heads that it makes, and each way to go on from there."""
    try:
        heads = begin(part, X)
    except _MISFIT:
        return
    for steps in followed:
        yield part, heads, steps


def _in_turn(ways: list[Iterator[_Try]]) -> Iterator[_Try]:
    """Return the likeliest of each layout, then the second likeliest of each, and so on."""
    while ways:
        for way in ways.copy():
            found = next(way, None)
            if found is None:
                ways.remove(way)
            else:
                yield found


@torch.no_grad()
def _before_output(
    record: AttentionRecord, module: nn.Module, heads: Tensor | None, given: Tensor | None
) -> tuple[Step, ...] | None:
    """Return the steps from A·V of each head to what W^O was given, or None if not known."""
    if heads is None or given is None:
        return ()
    if torch.equal(heads, given):
        return ()
    sizes = _sizes(record)
    closing: list[Step] = [
        *gates(module, sizes),
        *norms(module, OUTPUT_NORMS, sizes.heads, sizes.value),
    ]
    wide = torch.promote_types(heads.dtype, torch.float32)
    X = None if record.input is None else record.input.to(wide)
    best: tuple[Step, ...] | None = None
    least = _ROUGHLY
    for step in closing:
        error = _distance((step,), heads.to(wide), None, given.to(wide), X)
        if error < least:
            best, least = (step,), error
    return best


def _sizes(record: AttentionRecord) -> Sizes:
    return Sizes(record.heads, record.key.shape[-1], record.value.shape[-1])


def _real(record: AttentionRecord) -> Tensor | slice:
    """Return which queries are no padding, where positions mean nothing; all if none is."""
    real = ~torch.tensor(record.query_axis.padding, device=record.query.device)
    return real if real.any() else slice(None)


def _distance(
    steps: tuple[Step, ...],
    heads: Tensor,
    angles: Angles | None,
    had: Tensor,
    X: Tensor | None = None,
    rows: slice | Tensor = slice(None),
) -> float:
    """Return how far the heads are from those recorded, as a fraction; infinite if no such."""
    try:
        made = repeat_heads(follow(steps, heads, angles, X), len(had))
        if made.shape != had.shape:
            return torch.inf
    except _MISFIT:
        return torch.inf
    made, had = made[:, rows], had[:, rows]
    smallest = torch.finfo(had.dtype).tiny
    return float(torch.dist(made, had) / torch.linalg.vector_norm(had).clamp(min=smallest))


def _followed(
    module: nn.Module, stage: str, part: HeadProjection, record: AttentionRecord
) -> Iterator[tuple[Step, ...]]:
    """Return the steps that may follow the projection, the likeliest first.

    Most models norm, then clip, then turn; some clip before they norm, some norm last.
    """
    heads, _, width = part.weight.shape
    choices = product(
        [*_factors(module, width), *_temperatures(module, stage, record)],
        _clips(module),
        [*norms(module, _NORMS[stage], heads, width), None],
        [None] if stage == "value" else _rotations(width, record.rotation, part.beside),
    )
    for factor, clip, norm, rotation in choices:
        orders: list[tuple[Step | None, ...]] = [(norm, clip, rotation, factor)]
        if norm is not None and clip is not None:
            orders.append((clip, norm, rotation, factor))
        if norm is not None and rotation is not None:
            orders.append((clip, rotation, norm, factor))
        for order in orders:
            yield tuple(step for step in order if step is not None)


def _rotations(
    width: int, angles: Angles | None, beside: Linear | None
) -> Iterator[Rotation | None]:
    if angles is not None:
        own = width if beside is None else width + beside.weight.shape[-1]
        first = max(own - angles[0].shape[-1], 0)
        for start in (0, first) if first else (0,):
            yield Rotation(start)
            yield Rotation(start, interleaved=True)
        yield None  # a layer that leaves the positions out
        yield Rotation(first, regrouped=True)
        yield Rotation(backwards=True)
    else:
        yield None


def _clips(module: nn.Module) -> Iterator[Clip | None]:
    for holder in (module, getattr(module, "config", None)):
        if isinstance(bound := getattr(holder, "clip_qkv", None), int | float):
            yield Clip(float(bound))
    yield None


def _factors(module: nn.Module, width: int) -> Iterator[Factor | None]:
    yield None
    for terms in (1, 2, 3):  # the scale of the scores, or of as many terms of them, taken early
        yield Factor((terms * width) ** -0.5)
    for name, value in vars(module).items():
        if isinstance(value, float) and value and ("scal" in name or "multiplier" in name):
            yield Factor(value)
            yield Factor(1 / value)


def _temperatures(module: nn.Module, stage: str, record: AttentionRecord) -> Iterator[Factor]:
    """Return queries' growth with the logarithm of their position, in models of long texts."""
    rope = getattr(getattr(module, "config", None), "rope_parameters", None) or {}
    grows = (
        (getattr(module, "attn_scale", None), getattr(module, "floor_scale", None), 1),
        (rope.get("llama_4_scaling_beta"), rope.get("original_max_position_embeddings"), 0),
    )
    # Positions count from the first token, also where padding stands before it.
    padding = record.query_axis.padding
    first_token = 0 if all(padding) else padding.index(False)
    count = torch.arange(record.query.shape[-2], device=record.query.device)
    positions = (count - first_token).clamp(min=0).unsqueeze(-1)
    for slope, period, first in grows:
        if stage == "query" and slope is not None and period is not None:
            yield Factor(1 + slope * torch.log1p((positions + first) // period))
