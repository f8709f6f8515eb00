"""Whether the rows of the maps are the tokens, patches and frames that their axes name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from torch import Tensor

from attnviz.capture import MovedKeys
from attnviz.inputs import UNITS
from attnviz.results import AttentionRecord, PositionCheck

# Rounding in batches of different rows, relative to the longest key: changed tokens move by 0.1.
_MOVED = 1e-3
_MANY = 4  # changes, of which a majority says more than chance

Pairs: TypeAlias = list[tuple[int, int]]


def check_positions(
    moved: Mapping[str, MovedKeys], records: Sequence[AttentionRecord]
) -> PositionCheck | None:
    """Return whether each position that was changed moved its own key; None if it cannot be told.

    In a causal model the first key that a change moves must be its own, in every attention. The
    other rules are those of `_misplaced_in_first` and, without a causal mask, `_misplaced_later`.

    moved : by kind of input.
    """
    record_of = {(record.path, record.call): record for record in records}
    failed: list[tuple[str, int, int]] = []
    changed = dict.fromkeys(UNITS.values(), 0)
    for kind, keys in moved.items():
        rows, before = keys.changed, None
        for call, distances in keys.distances.items():
            record = record_of[call]
            pairs: Pairs = []
            causal = record.stack == "decoder"
            if before is None:
                first = _misplaced_in_first(rows, distances, keys.reach, UNITS[kind])
                if first is None:
                    return None
                pairs += first
            elif not causal:
                pairs += _misplaced_later(rows, distances, keys.reach, before)
            if causal:
                pairs += _misplaced(rows, distances, (distances > _MOVED).double().argmax(1))
            failed += [(record.place, *pair) for pair in dict.fromkeys(pairs)]
            before = distances
        changed[UNITS[kind]] += len(rows)
    if not any(changed.values()):
        return None
    layers = min(len(keys.distances) for keys in moved.values())
    return PositionCheck(
        changed["tokens"], changed["patches"], changed["frames"], tuple(failed), layers
    )


def _misplaced_in_first(rows: Tensor, distances: Tensor, reach: int, units: str) -> Pairs | None:
    """Return the changes that move the keys of others in the first attention; None if unknown.

    The keys that a change moves must lie around its own: no other key reads a token or a patch, and
    neighboring frames read some of the same sound. If the model mixes the tokens of a text before,
    the own key must move most. If it mixes patches or frames, this must hold for most of them.
    """
    around = _not_around(rows, distances, reach)
    if around is not None:
        return around
    misplaced = _misplaced(rows, distances, distances.argmax(1), reach)
    if units == "tokens":
        return misplaced
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
    """Return misplaced positions; only those that exchange their keys if more than half fit."""
    return misplaced if 2 * len(misplaced) >= len(rows) else _exchanged(misplaced)


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


def _exchanged(misplaced: Pairs) -> Pairs:
    """Return those that lead back to themselves: token 2 moves key 5, and token 5 moves key 2."""
    key_of = dict(misplaced)

    def leads_back(token: int) -> bool:
        key = key_of[token]
        for _ in misplaced:
            if key == token:
                return True
            key = key_of.get(key, -1)
        return False

    return [pair for pair in misplaced if pair[0] != pair[1] and leads_back(pair[0])]


def _misplaced(rows: Tensor, distances: Tensor, moved: Tensor, reach: int = 0) -> Pairs:
    """Return each position whose own key is not near the one that moved, and that key."""
    own = distances.gather(1, rows[:, None])[:, 0]
    fails = ((moved - rows).abs() > reach) | ~(own > _MOVED)
    return [(int(rows[n]), int(moved[n])) for n in fails.nonzero().flatten().tolist()]
