"""Which projections a module computes: those that reproduce the recorded Q, K and V."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from attnviz.capture.projections import find
from attnviz.capture.projections.find import AttentionModule
from attnviz.formula.attention import HIDDEN, repeat_heads
from attnviz.results import (
    AttentionRecord,
    Axis,
    Clip,
    Factor,
    HeadProjection,
    Linear,
    Projection,
    Rotation,
    Rounding,
    Step,
)
from attnviz.results.projection import Angles, begin, follow, join_inputs, source
from attnviz.runtime.compat import relative_distances

_ROUGHLY = 0.02  # far more than rounding, far less than a wrong candidate
_ROUNDING = 2  # steps of the model's precision: nothing fits better
_SUMMATION = 1e-5  # what the order of long sums leaves in float32
_MISFIT = (RuntimeError, ValueError, TypeError)  # raised where shapes do not fit
_Pair: TypeAlias = tuple[Tensor, Tensor]  # what was computed, what was recorded
_Candidate: TypeAlias = tuple[HeadProjection, Tensor, tuple[Step, ...]]


@dataclass(frozen=True, eq=False)
class Executed:
    """An attention that was recorded, and the module that executed it."""

    record: AttentionRecord
    module: AttentionModule | None  # None if it is of no known kind
    head_output: Tensor | None = None  # (H, m, d_v), A·V of each head, if known
    merged_heads: Tensor | None = None  # the input of W^O in this shape
    # The input and the key input of the whole batch, if the record is only a part of it.
    batch: tuple[Tensor | None, Tensor | None] | None = None
    known: Collection[str] = ()  # the stages that are known
    exactly: bool = False  # whether nothing is returned that is not close


@torch.no_grad()
def match_projections(executed: Sequence[Executed]) -> list[AttentionRecord]:
    """Return records with the projections that reproduce their Q, K and V, as far as possible.

    A candidate must reproduce the recorded values at least roughly. If none does, the module
    computes something that attnviz does not know, and this stage is not compared. Of a stage that
    is known from another layer, the closest candidate is returned: what it does not reproduce is a
    difference.

    All stages of all records try one candidate each, then those that go on a second one, and so on:
    a device is waited for only once in each of these rounds.
    """
    searches = [{stage: _Search.of(one, stage) for stage in find.STAGES} for one in executed]
    pending = [s for of_one in searches for s in of_one.values() if s is not None]
    merged = [widened(one.head_output, one.merged_heads) for one in executed]
    errors = _distances([*(search.try_next() for search in pending), *merged])
    others = errors[len(pending) :]
    while pending:
        tried = zip(pending, errors, strict=False)
        pending = [search for search, error in tried if not search.judge(error)]
        errors = _distances([search.try_next() for search in pending])
    return [
        one.record if one.module is None else _with_projection(one, one.module, found, error == 0)
        for one, found, error in zip(executed, searches, others, strict=True)
    ]


def widened(heads: Tensor | None, merged: Tensor | None) -> _Pair | None:
    """Return two tensors in float32 or wider; None without one, or if their shapes differ."""
    if heads is None or merged is None or heads.shape != merged.shape:
        return None
    wide = torch.promote_types(heads.dtype, torch.float32)
    return heads.to(wide), merged.to(wide)


def _distances(pairs: Sequence[_Pair | None]) -> list[float]:
    """Return the relative distance of each pair, infinity in place of None, copied at once."""
    if not (known := [pair for pair in pairs if pair is not None]):
        return [torch.inf] * len(pairs)
    computed, recorded = map(list, zip(*known, strict=True))
    copied = iter(relative_distances(computed, recorded).tolist())
    return [torch.inf if pair is None else next(copied) for pair in pairs]


def match_batch(
    batch: Sequence[Sequence[Executed]], copy: Callable[[Any], Any]
) -> list[list[AttentionRecord]]:
    """Return the records of each attention for N texts, with what `match_projections` returns.

    A projection that reproduces all tokens of the batch is found once, and shared. copy : returns
    it without memory of the model.
    """
    shared: list[Projection | None] = [None] * len(batch)
    several = [*map(_join_tokens, batch)] if batch and len(batch[0]) > 1 else []
    for n, joined in enumerate(match_projections(several)):
        if joined.projection is not None and _is_of_every_text(joined.projection, batch[n][0]):
            shared[n] = copy(joined.projection)
    pairs = [*zip(batch, shared, strict=True)]
    found = iter(match_projections([one for of, known in pairs if known is None for one in of]))
    return [
        [
            next(found) if known is None else replace(one.record, projection=known)
            for one in of_texts
        ]
        for of_texts, known in pairs
    ]


def _join_tokens(of_texts: Sequence[Executed]) -> Executed:
    """Return an attention of several texts as one with the tokens of all."""
    first, records = of_texts[0], [one.record for one in of_texts]
    fields: dict[str, Any] = {
        s: torch.cat([getattr(r, s) for r in records], 1) for s in find.STAGES
    }
    for side in ("query", "key"):
        fields[f"{side}_axis"] = _numbered(fields[side].shape[1])
    heads, merged = (
        torch.cat(known, 1)
        if len(known := [x for x in side if x is not None]) == len(side)
        else None
        for side in zip(*((one.head_output, one.merged_heads) for one in of_texts), strict=True)
    )
    record = replace(join_inputs(records), mask=None, **fields)
    return replace(first, record=record, head_output=heads, merged_heads=merged, exactly=True)


_numbered = lru_cache(8)(Axis.numbered)  # of all layers


def _is_of_every_text(projection: Projection, one: Executed) -> bool:
    """Whether a projection for a batch is complete, and depends on no position in it."""
    parts = {stage: getattr(projection, stage) for stage in find.STAGES}
    steps = [step for part in parts.values() if part is not None for step in part.after]
    return (
        all(part is not None or source(one.record, stage) is None for stage, part in parts.items())
        and projection.before_output is not None
        and not any(isinstance(step, Factor) and isinstance(step.factor, Tensor) for step in steps)
    )


def _with_projection(
    one: Executed, module: AttentionModule, searches: Mapping[str, _Search | None], is_merged: bool
) -> AttentionRecord:
    """Return the record with what was found; is_merged : whether W^O reads A·V as it is."""
    record, heads, merged = one.record, one.head_output, one.merged_heads
    query, key, value = (None if s is None else s.best for s in searches.values())
    output = find.plain_linear(module.output)
    if output is not None and len(output.weight) != record.heads * record.value.shape[-1]:
        output = None
    before_output: tuple[Step, ...] | None = ()
    if heads is not None and merged is not None and not is_merged:
        before_output = _before_output(record, module.module, heads, merged)
        if before_output is None and "output" in one.known:
            before_output = ()
    projection = Projection(record.heads, query, key, value, output, before_output)
    return replace(record, projection=projection)


def reproduced(record: AttentionRecord) -> frozenset[str]:
    """Return the stages whose projections are known."""
    made = record.projection
    stages = {} if made is None else {**vars(made), "output": made.before_output}
    names = ("query", "key", "value", "output")
    return frozenset(name for name in names if stages.get(name) is not None)


class _Search:
    """A search for the closest projection of one stage, candidate by candidate."""

    def __init__(self, one: Executed, stage: str, module: nn.Module, X: Tensor) -> None:
        record, recorded = one.record, getattr(one.record, stage)
        dtype = torch.promote_types(recorded.dtype, torch.float32)
        self._record, self._recorded = record, recorded.to(dtype)
        self._exact = max(_ROUNDING * torch.finfo(recorded.dtype).eps, _SUMMATION)
        self._ignored = _ignored(record, stage)
        batch = one.batch or (record.input, record.key_input)
        rounded = batch[X is record.key_input]
        sizes = replace(_sizes(record), roundings=lambda: _roundings(rounded))
        X = X.to(dtype)
        self._candidates = _round_robin(
            _candidates(record, module, stage, layout, X)
            for layout in find.layouts(module, stage, sizes)
        )
        self._tried: _Candidate | None = None
        self.best: HeadProjection | None = None
        most = 2 * self._exact if one.exactly else _ROUGHLY
        self._least = torch.inf if stage in one.known else most  # a relative distance

    @classmethod
    def of(cls, one: Executed, stage: str) -> _Search | None:
        """Return the search; None where the input of the stage is not known."""
        X = source(one.record, stage)
        return None if X is None or one.module is None else cls(one, stage, one.module.module, X)

    def try_next(self) -> _Pair | None:
        """Return what the next candidate makes; None if its shapes do not fit, or without one."""
        self._tried = next(self._candidates, None)
        if self._tried is None:
            return None
        _, heads, steps = self._tried
        angles = self._record.rotation
        return _followed(steps, heads, self._recorded, self._ignored, angles=angles)

    def judge(self, error: float) -> bool:
        """Keep the candidate if it is the closest; return whether the search is over."""
        if self._tried is None:
            return True
        layout, _, steps = self._tried
        if any(isinstance(step, Rounding) for step in layout.before) and error > self._exact:
            return False  # another rounding is close too
        if error < self._least:
            self.best, self._least = replace(layout, after=steps), error
        return error <= self._exact


def _ignored(record: AttentionRecord, stage: str) -> Tensor | None:
    """Return which rows have no meaning: padding, keys that no query reads; None if none."""
    if stage != "query" and record.through_interface:
        return None
    padding = (record.query_axis if stage == "query" else record.key_axis).padding
    ignored = None
    if any(padding) and not all(padding):
        ignored = torch.tensor(padding, device=record.query.device)
    if stage != "query" and record.mask is not None:
        hidden = (record.mask <= HIDDEN).all(-2).all(0)
        ignored = hidden if ignored is None else hidden | ignored
    return ignored


def _roundings(X: Tensor | None) -> tuple[Rounding, ...]:
    """Return how dynamic quantization rounds the input of a layer: to 7 bits, or to 8."""
    if X is None or X.dtype != torch.float32:
        return ()
    low, high = X.amin().clamp(max=0).item(), X.amax().clamp(min=0).item()
    scales = [torch.tensor((high - low) / top).item() for top in (127, 255)]  # float32, as stored
    return tuple(Rounding(scale, round(-low / scale)) for scale in scales if scale)


def _candidates(
    record: AttentionRecord, module: nn.Module, stage: str, layout: HeadProjection, X: Tensor
) -> Iterator[_Candidate]:
    """Yield one layout with the heads that it makes, and each sequence of steps after it."""
    try:
        heads = begin(layout, X)
    except _MISFIT:
        return
    count, _, width = layout.weight.shape
    temperatures = _temperatures(module, record) if stage == "query" else ()
    others = list(
        itertools.product(
            _clips(module),
            [*find.norms(module, find.NORMS[stage], count, width), None],
            [None] if stage == "value" else _rotations(width, record.rotation, layout.beside),
        )
    )
    factors = itertools.chain(_factors(module, width), temperatures)
    for factor, (clip, norm, rotation) in ((one, rest) for one in factors for rest in others):
        orders: list[tuple[Step | None, ...]] = [(norm, clip, rotation, factor)]
        if norm is not None and clip is not None:
            orders.append((clip, norm, rotation, factor))
        if norm is not None and rotation is not None:
            orders.append((clip, rotation, norm, factor))
        for order in orders:
            yield layout, heads, tuple(step for step in order if step is not None)


def _round_robin(by_layout: Iterable[Iterator[_Candidate]]) -> Iterator[_Candidate]:
    """Yield the likeliest candidate of each layout, looked for when needed, then the second."""
    while by_layout:
        others = []
        for candidates in by_layout:
            if (candidate := next(candidates, None)) is not None:
                others.append(candidates)
                yield candidate
        by_layout = others


def _before_output(
    record: AttentionRecord, module: nn.Module, heads: Tensor, merged_heads: Tensor
) -> tuple[Step, ...] | None:
    """Return the steps from A·V of each head to the input of W^O, or None if not known."""
    sizes = _sizes(record)
    wide = torch.promote_types(heads.dtype, torch.float32)
    X = None if record.input is None else record.input.to(wide)
    heads, merged_heads = heads.to(wide), merged_heads.to(wide)
    possible: list[Step] = [*find.gates(module, sizes)]
    possible += find.norms(module, find.NORMS["output"], sizes.heads, sizes.value)
    errors = _distances([_followed((step,), heads, merged_heads, X=X) for step in possible])
    close = [(error, number) for number, error in enumerate(errors) if error < _ROUGHLY]
    return (possible[min(close)[1]],) if close else None


def _sizes(record: AttentionRecord) -> find.Sizes:
    return find.Sizes(record.heads, record.key.shape[-1], record.value.shape[-1])


def _followed(
    steps: tuple[Step, ...],
    heads: Tensor,
    recorded: Tensor,
    ignored: Tensor | None = None,
    angles: Angles | None = None,
    X: Tensor | None = None,
) -> _Pair | None:
    """Return a candidate's heads beside the recorded ones; None if the shapes do not fit."""
    try:
        computed = repeat_heads(follow(steps, heads, angles, X), len(recorded))
        if computed.shape != recorded.shape:
            return None
    except _MISFIT:
        return None
    if ignored is not None:
        computed, recorded = (x.masked_fill(ignored[:, None], 0.0) for x in (computed, recorded))
    return computed, recorded


def _rotations(
    width: int, angles: Angles | None, beside: Linear | None
) -> Iterator[Rotation | None]:
    if angles is not None:
        whole_width = width if beside is None else width + beside.weight.shape[-1]
        first = max(whole_width - angles[0].shape[-1], 0)
        for start in (0, first) if first else (0,):
            yield Rotation(start)
            yield Rotation(start, interleaved=True)
        yield None  # a layer without positions
        yield Rotation(first, regrouped=True)
        yield Rotation(backwards=True)
    else:
        yield None


def _clips(module: nn.Module) -> Iterator[Clip | None]:
    for owner in (module, getattr(module, "config", None)):
        if isinstance(bound := getattr(owner, "clip_qkv", None), int | float):
            yield Clip(float(bound))
    yield None


def _factors(module: nn.Module, width: int) -> Iterator[Factor | None]:
    yield None
    for terms in (1, 2, 3):  # the scale of the scores, or of a sum of terms, applied early
        yield Factor((terms * width) ** -0.5)
    for name, value in vars(module).items():
        if isinstance(value, float) and value and ("scal" in name or "multiplier" in name):
            yield Factor(value)
            yield Factor(1 / value)


def _temperatures(module: nn.Module, record: AttentionRecord) -> Iterator[Factor]:
    """Yield factors that grow with the logarithm of the position, in models of long texts."""
    rope = getattr(getattr(module, "config", None), "rope_parameters", None) or {}
    logarithmic = (
        (getattr(module, "attn_scale", None), getattr(module, "floor_scale", None), 1),
        (rope.get("llama_4_scaling_beta"), rope.get("original_max_position_embeddings"), 0),
    )
    # Positions count from the first token, also where padding stands before it.
    padding = record.query_axis.padding
    first_token = 0 if all(padding) else padding.index(False)
    count = torch.arange(record.query.shape[-2], device=record.query.device)
    positions = (count - first_token).clamp(min=0).unsqueeze(-1)
    for slope, period, first in logarithmic:
        if slope is not None and period is not None:
            yield Factor(1 + slope * torch.log1p((positions + first) // period))
    if "attention_scaling" in inspect.signature(module.forward).parameters:  # Beam
        yield Factor(torch.exp(0.1 * torch.log1p((positions + 1) / 2048)))
