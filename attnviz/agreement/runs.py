"""The recorded run against others: of the model as it was loaded, and on changed inputs.

A run is recorded under eager attention, in eval mode, with random numbers of its own. If the model
computes something else as it was loaded, its output differs. Runs on changed inputs show whether
the rows of the maps are the tokens, patches and frames that their axes name.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from math import sqrt
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from attnviz.agreement.verdict import SMALLEST
from attnviz.results import (
    AgreementReport,
    AnalysisCheck,
    AttentionRecord,
    Axis,
    OutputCheck,
    PositionCheck,
)
from attnviz.results.agreement_report import UNITS
from attnviz.runtime.libraries import copy_to_cpu

if TYPE_CHECKING:
    from attnviz.capture.positions import Call, MovedKeys
    from attnviz.capture.watch import Output, Outputs

# What rounding adds in a layer, relative to the norm of the output: at least 1e-5, and 8 rounding
# steps. In models of 3 layers with sharp attention, eager and fused attention differ by 1e-6 in
# float32, and by 4 steps in half precision. It adds up like a random walk.
_LEAST, _STEPS = 1e-5, 8
# Some models amplify rounding. Then this many times the effect of one step in every module passes.
_AMPLIFIED = 4
# Rounding in batches of different rows, relative to the longest key: changed tokens move by 0.1.
_MOVED = 1e-3
_ELSEWHERE = 0.05  # from a batch of another size, where activations may be quantized together
_SURELY = 0.25  # also where rounding adds up over layers, in float32
_MANY = 4  # changes, of which a majority says more than chance

Pairs: TypeAlias = list[tuple[int, int]]


def check_output(
    outputs: Outputs,
    axes: Mapping[str, Sequence[Axis]],
    texts: int,
    layers: int,
    moved: Mapping[str, float],
) -> list[OutputCheck | None]:
    """Compare the outputs of each of N texts; None where a model returns no real numbers.

    The output of the first attention is compared too, where no rounding has added up yet. Its check
    is returned if it alone fails.

    moved : how much the output moves by another attention in a module, by its path.
    """
    if not outputs.loaded.model:
        return [None] * texts
    eps = max(torch.finfo(tensor.dtype).eps for tensor in outputs.loaded.model)
    in_a_layer, of_all = _rounding(eps), _rounding(eps, layers)
    between = outputs.between_runs
    if between > of_all:  # also where the output hides it; the stages report NaN
        return [OutputCheck(between, of_all, between, outputs.tokens)] * texts
    blind = tuple(path for path, share in moved.items() if share <= SMALLEST)
    canary = min(moved.values(), default=None), blind
    rerun = cache(outputs.rerun)

    def check(part: Callable[[Output], tuple[Tensor, ...]], tolerance: float) -> list[OutputCheck]:
        def difference(run: Output, other: Output = outputs.loaded) -> list[float]:
            return _differences(part(run), part(other), axes, texts)

        differences = difference(outputs.recorded)
        repeated: list[Any] = [None] * texts
        is_eager = False
        if not all(value <= tolerance for value in differences):
            repeated = difference(rerun(seed=3))
            if all(value <= tolerance for value in repeated):
                tolerance = max(tolerance, _AMPLIFIED * max(difference(rerun(rounded=True))))
                if outputs.only_attention and not max(differences) <= tolerance:
                    eager = rerun(attention="eager")
                    is_eager = max(difference(eager, outputs.recorded)) <= tolerance
        return [
            OutputCheck(value, tolerance, other, outputs.tokens, *canary, is_eager)
            for value, other in zip(differences, repeated, strict=True)
        ]

    of_model = check(attrgetter("model"), of_all)
    if not (outputs.recorded.attention and outputs.loaded.attention):
        return [*of_model]
    of_attention = check(attrgetter("attention"), in_a_layer)
    return [
        first if not first.passed and whole.passed else whole
        for whole, first in zip(of_model, of_attention, strict=True)
    ]


def check_hidden_states(
    report: AgreementReport,
    ours: Tensor,
    loaded: Tensor,
    *,
    name: str = "hidden states",
    scale: float | None = None,
) -> AgreementReport:
    """Return a report on hidden states (S, …), relative to their norm as loaded, or to `scale`."""
    if report.output is None:
        return report
    size = loaded.flatten(1).norm(dim=1) if scale is None else scale or 1.0
    difference = (ours - loaded).flatten(1).norm(dim=1) / size
    check = AnalysisCheck(name, difference.max().item(), report.output.tolerance)
    return replace(report, analysis=(*report.analysis, check))


def _rounding(eps: float, layers: int = 1) -> float:
    """Return what rounding may add in some layers, relative to the norm of the output."""
    return sqrt(max(1, layers)) * max(_LEAST, _STEPS * eps)


def check_hidden_runs(
    report: AgreementReport, ours: Tensor, own: Tensor, effects: Tensor, layers: int, scale: float
) -> AgreementReport:
    """Return a report on runs in which tokens are hidden, relative to `scale`.

    With none hidden the numbers (1, R) must be those of the model as loaded. The canary is another
    attention: the effects (…, R) of hiding tokens must show in them.
    """
    eps = torch.finfo(getattr(torch, report.dtype)).eps
    tolerance = _rounding(eps, layers)
    scale = scale or 1.0  # logits that are all 0
    difference = ((ours - own).norm() / scale).item()
    moved = effects.abs().max().item() / scale if effects.numel() else None
    blind = ("any layer",) if moved is not None and moved <= SMALLEST else ()
    return replace(report, output=OutputCheck(difference, tolerance, moved=moved, blind=blind))


def _differences(
    ours: Sequence[Tensor], theirs: Sequence[Tensor], axes: Mapping[str, Sequence[Axis]], texts: int
) -> list[float]:
    """Return the largest relative difference of each text; infinite for other shapes."""
    if [tensor.shape for tensor in ours] != [tensor.shape for tensor in theirs]:
        return [float("inf")] * texts
    pairs = zip(ours, theirs, strict=True)
    by_tensor = [_relative(x, y, axes, texts) for x, y in pairs if x.numel()]
    on_one_device = [one.to(by_tensor[0].device) for one in by_tensor]
    return torch.stack(on_one_device).amax(0).tolist() if by_tensor else [0.0] * texts


def _relative(x: Tensor, y: Tensor, axes: Mapping[str, Sequence[Axis]], texts: int) -> Tensor:
    """Return the norm of x - y relative to that of y, for each text (N,)."""
    x, y = x.double(), y.double()
    same = (x == y) | (x.isnan() & y.isnan())
    if (padding := _padding(y, axes, texts)) is not None:
        same |= padding.view(*padding.shape, *[1] * (y.dim() - 2))
    difference = torch.where(same, 0.0, x - y)
    rows = 1 if y.dim() == 0 or len(y) != texts else texts  # 1 : of all texts together
    difference, y = difference.reshape(rows, -1), y.reshape(rows, -1)
    norms = y.nan_to_num(0.0, 0.0, 0.0).norm(dim=1).clamp(min=SMALLEST)
    relative: Tensor = (difference.norm(dim=1) / norms).nan_to_num(torch.inf, torch.inf)
    return relative.expand(texts)


def _padding(y: Tensor, axes: Mapping[str, Sequence[Axis]], texts: int) -> Tensor | None:
    """Return which positions of an output (N, T, …) only fill up the batch, (N, T)."""
    if y.dim() < 2 or len(y) != texts:
        return None
    for of_texts in axes.values():
        if len(of_texts) == texts and all(len(axis) == y.shape[1] for axis in of_texts):
            padding = torch.tensor([axis.padding for axis in of_texts], device="cpu")
            return padding.to(y.device) if padding.any() else None
    return None


def check_positions(
    moved: Mapping[str, MovedKeys], records: Sequence[AttentionRecord], *, every: bool = False
) -> PositionCheck | None:
    """Return whether each position that was changed moved its own key; None if it cannot be told.

    The keys of the unchanged run must also be those of the recorded run, if its batch had another
    size. The number of layers is that of those that could be told.

    moved : by kind of input. every : whether all positions were changed one at a time.
    """
    record_of = {(record.path, record.call): record for record in records}
    failed: list[tuple[str, int, int]] = []
    changed, layers, of = dict.fromkeys(UNITS.values(), 0), [], 0
    for kind, keys in moved.items():
        found = _by_code(keys, record_of) if keys.coded else None
        found = found or _one_by_one(keys, record_of, UNITS[kind], every=every)
        told = [pairs for pairs in found.values() if pairs is not None]
        first = record_of[next(iter(found))]
        if not told or (found[first.path, first.call] is None and not any(told)):
            return None
        failed += [
            (record_of[call].place, *pair)
            for call, pairs in found.items()
            for pair in dict.fromkeys(pairs or ())
        ]
        changed[UNITS[kind]] += int(keys.changed.any(0).sum())
        layers.append(len(told))
        of += first.key_axis.special.count(False)
    if not any(changed.values()):
        return None
    counts: dict[str, Any] = changed
    return PositionCheck(**counts, failed=tuple(failed), layers=min(layers), of=of)


def can_be_told(moved: MovedKeys) -> bool:
    """Whether the keys of the first attention move as the code of some position says."""
    return _misplaced_by_code(moved.changed, next(iter(moved.distances.values()))) is not None


def _by_code(
    keys: MovedKeys, record_of: Mapping[Call, AttentionRecord]
) -> dict[Call, Pairs | None]:
    """Return the misplaced positions of each attention; None where it cannot be told."""
    found: dict[Call, Pairs | None] = {}
    moved = {call: _moved_between(record_of[call], one) for call, one in keys.keys.items()}
    (of_call,) = copy_to_cpu([moved])
    for call, distances in keys.distances.items():
        misplaced = _misplaced_by_code(keys.changed, distances)
        elsewhere: Pairs | None = []
        if call in of_call:
            elsewhere = _elsewhere(record_of[call], of_call[call], is_first=not found)
        known = [pairs for pairs in (misplaced, elsewhere) if pairs is not None]
        found[call] = [*itertools.chain(*known)] if len(known) == 2 or any(known) else None
    return found


def _misplaced_by_code(code: Tensor, distances: Tensor) -> Pairs | None:
    """Return the positions whose code another key moves by; None where a key moves by no code."""
    moved = distances > _MOVED
    fails = (moved != code).any(0).nonzero().flatten().tolist()
    position_of = {tuple(half.tolist()): n for n, half in enumerate(code.T) if half.any()}
    pairs = [(position_of.get(tuple(moved[:, key].tolist()), -1), key) for key in fails]
    return [pair for pair in pairs if pair[0] >= 0] or (None if pairs else [])


def _moved_between(record: AttentionRecord, keys: Tensor) -> Tensor:
    """Return how far the keys of the recorded run are from these, relative to the longest."""
    longest = keys.double().norm(dim=-1).amax().clamp(min=1e-30)
    moved: Tensor = (record.key - keys).double().norm(dim=(0, 2)) / longest
    return moved


def _elsewhere(record: AttentionRecord, moved: Tensor, *, is_first: bool) -> Pairs | None:
    """Return positions with other keys in the recorded run; None if rounding may explain them."""
    real = ~torch.tensor(record.key_axis.padding, device="cpu")
    fails = (real & ~(moved <= _ELSEWHERE)).nonzero().flatten().tolist()
    is_float32 = record.key.dtype == torch.float32
    is_sure = is_first or (is_float32 and len(fails) and moved.amax() > _SURELY)
    return [(key, -1) for key in fails] if is_sure or not fails else None


def _one_by_one(
    keys: MovedKeys, record_of: Mapping[Call, AttentionRecord], units: str, *, every: bool
) -> dict[Call, Pairs | None]:
    """Return the misplaced positions of each attention, if each run changed one position.

    In a causal model the first key that a change moves must be its own too, in every attention.
    """
    found: dict[Call, Pairs | None] = {}
    rows, before = keys.changed.int().argmax(1), None
    for call, distances in keys.distances.items():
        record = record_of[call]
        pairs: Pairs | None = []
        if before is None:
            pairs = _misplaced_in_first(rows, distances, keys.reach, units, every=every)
            if pairs is not None:
                moved = _moved_between(record, keys.keys[call]).cpu()
                pairs += _elsewhere(record, moved, is_first=True) or ()
        elif record.stack != "decoder":
            pairs = _misplaced_later(rows, distances, keys.reach, before)
        if record.stack == "decoder" and pairs is not None:
            pairs += _misplaced(rows, distances, (distances > _MOVED).double().argmax(1))
        found[call], before = pairs, distances
    return found


def _misplaced_in_first(
    rows: Tensor, distances: Tensor, reach: int, units: str, *, every: bool
) -> Pairs | None:
    """Return the changes that move the keys of others in the first attention; None if unknown.

    The keys that a change moves must lie around its own: no other key reads a token or a patch, and
    neighboring frames read some of the same sound. If the model mixes the tokens of a text before,
    the own key must move most; unless every token was changed, this is no proof. If it mixes
    patches or frames, this must hold for most of them.
    """
    if (around := _not_around(rows, distances, reach)) is not None:
        return around
    misplaced = _misplaced(rows, distances, distances.argmax(1), reach)
    if units == "tokens":
        return misplaced if every or not misplaced else None
    return _unless_most_fit(misplaced, rows) if len(rows) >= _MANY else None


def _misplaced_later(rows: Tensor, distances: Tensor, reach: int, before: Tensor) -> Pairs:
    """Return the changes that move the keys of others, after attention has mixed the positions.

    The own key moves most, or the same changes move it as in the attention `before`, more than any
    other key is moved by them. This must hold for most of the changes.
    """
    others = dict(_misplaced(rows, distances, distances.argmax(1), reach))
    first, second = (d - d.mean(1, keepdim=True) for d in (before, distances))
    first, second = (d / d.norm(dim=0).clamp(min=1e-30) for d in (first[:, rows], second))
    alike = _misplaced(rows, distances, (first.T @ second).argmax(1), reach)
    return _unless_most_fit([pair for pair in alike if pair[0] in others], rows)


def _unless_most_fit(misplaced: Pairs, rows: Tensor) -> Pairs:
    """Return misplaced positions; only those that exchange their keys if more than half fit.

    Those lead back to themselves: token 2 moves key 5, and token 5 moves key 2.
    """
    if 2 * len(misplaced) >= len(rows):
        return misplaced
    key_of = dict(misplaced)
    in_circle = set(key_of)
    for _ in misplaced:  # at last only what leads back to itself is left
        in_circle = {key_of[token] for token in in_circle} & key_of.keys()
    return [pair for pair in misplaced if pair[0] != pair[1] and pair[0] in in_circle]


def _not_around(rows: Tensor, distances: Tensor, reach: int) -> Pairs | None:
    """Return positions with moved keys out of `reach`; None where more moved than can read it."""
    moved, last = distances > _MOVED, distances.shape[1] - 1
    first_moved = moved.double().argmax(1)
    last_moved = last - moved.flip(1).double().argmax(1)
    if bool((last_moved - first_moved > 2 * reach).any()):
        return None
    middle = (rows - reach).clamp(min=0) + (rows + reach).clamp(max=last)
    shift = (first_moved + last_moved - middle) / 2
    fails = (shift.abs() >= 1) | ~moved.any(1)
    return [(int(rows[n]), int(rows[n] + shift[n])) for n in fails.nonzero().flatten().tolist()]


def _misplaced(rows: Tensor, distances: Tensor, moved: Tensor, reach: int = 0) -> Pairs:
    """Return each position whose own key is not near the one that moved, and that key."""
    own = distances.gather(1, rows[:, None])[:, 0]
    fails = ((moved - rows).abs() > reach) | ~(own > _MOVED)
    return [(int(rows[n]), int(moved[n])) for n in fails.nonzero().flatten().tolist()]
