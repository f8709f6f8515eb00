"""Which of the maps, queries and keys travel with a page that may weigh only so much.

In order: the maps and all that they follow from; only the latter, from which the page computes the
weights; the maps of all heads, coarser the more there are, and queries and keys of the first; and
of long texts pooled maps, with queries and keys, or the map, of the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from attnviz.interactive.heads import Head

FINEST = 2**16 - 1
_WITH_VECTORS = (FINEST, 2**14 - 1, 2**12 - 1)
_ALONE = (*_WITH_VECTORS, 3071, 2047, 1535, 1023)
_EXACT = 2**12 - 1  # levels of a map where the others are pooled
_ASKED, _DOUBT = 8, 1.2  # how many heads tell what all weigh, and how far that may be off
_ABOUT_MAP, _ABOUT_VECTORS = 110, 260  # bytes that are said of what travels of a head


@dataclass(frozen=True)
class Choice:
    """What travels of one head: its map in so many levels, its queries and keys, or neither."""

    levels: int | None
    vectors: bool


NOTHING = Choice(None, False)
Twins = Sequence[Head]  # the same head in each result that is shown


def choose(heads: Sequence[Twins], room: int) -> list[Choice]:
    """Return what travels of each head, the first being wanted most.

    Parameters
    ----------
    heads : in the order in which they are wanted. room : bytes, before they are written as text.
    """
    if not heads:
        return []
    vectors = sum(map(_vectors, heads))
    for levels in _that_may_fit(heads, _WITH_VECTORS, room - vectors):
        if _maps(heads, levels) + vectors <= room:
            return [Choice(levels, True)] * len(heads)
    if vectors <= room and all(map(_follows, heads)):
        return [Choice(None, True)] * len(heads)
    for levels in _that_may_fit(heads, _ALONE, room):
        if (left := room - _maps(heads, levels)) >= 0:
            return [Choice(levels, spent <= left) for spent in accumulate(map(_vectors, heads))]
    chosen = []
    for twins in heads:
        if room > 0:
            follows = _follows(twins) and twins[0].vectors_are_less
            room -= _vectors(twins) if follows else _map(twins, _EXACT)
            best = Choice(None, True) if follows else Choice(_EXACT, False)
        chosen.append(best if room > 0 else NOTHING)
    return chosen


def _follows(twins: Twins) -> bool:
    return all(head.follows for head in twins)


def _vectors(twins: Twins) -> int:
    return sum(head.weight_of_vectors + _ABOUT_VECTORS for head in twins)


def _map(twins: Twins, levels: int) -> int:
    return sum(head.map(levels).size + _ABOUT_MAP for head in twins)


def _maps(heads: Sequence[Twins], levels: int) -> int:
    return sum(_map(twins, levels) for twins in heads)


def _that_may_fit(heads: Sequence[Twins], several: Sequence[int], room: float) -> list[int]:
    """Return the levels in which all maps may fit, finest first, by what some of them weigh."""
    some = heads[:: max(1, len(heads) // _ASKED)]
    found: list[int] = []
    for levels in reversed(several):
        if room <= 0 or _maps(some, levels) * len(heads) / len(some) > _DOUBT * room:
            break
        found.insert(0, levels)
    return found
