"""Whether the rows of the maps are the tokens, patches and frames that their axes name."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from attnviz.results import AttentionRecord, PositionCheck
from attnviz.results.agreement_report import UNITS

if TYPE_CHECKING:
    from attnviz.capture.positions import MovedKeys

# Rounding in batches of different rows, relative to the longest key: changed tokens move by 0.1.
_MOVED = 1e-3
_ELSEWHERE = 0.05  # from a batch of another size, where activations may be quantized together
_SURELY = 0.25  # also where rounding adds up over layers, in float32
_MANY = 4  # changes, of which a majority says more than chance

Call: TypeAlias = tuple[str, int]
Pairs: TypeAlias = list[tuple[int, int]]


def check_positions(
    moved: Mapping[str, MovedKeys], records: Sequence[AttentionRecord], *, every: bool = False
) -> PositionCheck | None:
    """Return whether each position that was changed moved its own key; None if it cannot be told.

    The keys of the unchanged run must also be those of the recorded run, whose batch had another
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
    moved = [_moved_between(record_of[call], others) for call, others in keys.keys.items()]
    of_call = iter(torch.split(torch.cat(moved).cpu(), [len(one) for one in moved]))
    for call, distances in keys.distances.items():
        misplaced = _misplaced_by_code(keys.changed, distances)
        elsewhere = _elsewhere(record_of[call], next(of_call), is_first=not found)
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
    """Return the positions whose key is another one in the recorded run, whose batch is smaller.

    None where rounding may be the cause, which grows from layer to layer.
    """
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
    """Return each position with moved keys elsewhere; None where more moved than can read it.

    reach : how many keys on either side read a part of what was changed.
    """
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
