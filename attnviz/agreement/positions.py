"""Whether the rows of the maps are the tokens that their labels name."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from attnviz.capture import MovedKeys
from attnviz.results import AttentionRecord, Axis, PositionCheck

# Rounding in batches of different rows, relative to the longest key: replaced tokens move by 0.1.
_MOVED = 1e-3


def check_positions(
    moved: MovedKeys | None, records: Sequence[AttentionRecord], axis: Axis
) -> PositionCheck | None:
    """Return whether each replaced token moved its own key; None where no keys are known.

    In the first attention every token must move its own key most. In a causal model the first key
    that a token moves must be its own, in every attention. Attention that is not causal has mixed
    the tokens: beyond the first one, more than half of them must move their own key most, and none
    may exchange their keys.

    axis : of the text, since an encoder–decoder has other keys too.
    """
    if moved is None or not len(moved.replaced):
        return None
    of_text = {record.path: record for record in reversed(records) if record.key_axis == axis}
    known = [(of_text[path], d) for path, d in moved.distances.items() if path in of_text]
    failed: list[tuple[str, int, int]] = []
    for number, (record, distances) in enumerate(known):
        causal, most = record.stack == "decoder", []
        if number == 0 or not causal:
            most = _misplaced(moved.replaced, distances, distances.argmax(1))
        if number > 0 and 2 * len(most) < len(moved.replaced):
            most = _exchanged(most)
        if causal:
            first = (distances > _MOVED).double().argmax(1)
            most += _misplaced(moved.replaced, distances, first)
        failed += [(record.place, *pair) for pair in dict.fromkeys(most)]
    return PositionCheck(len(moved.replaced), tuple(failed), layers=len(known)) if known else None


def _exchanged(misplaced: list[tuple[int, int]]) -> list[tuple[int, int]]:
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


def _misplaced(replaced: Tensor, distances: Tensor, moved: Tensor) -> list[tuple[int, int]]:
    """Return each replaced position whose own key is not the one that moved, and that key."""
    own = distances.gather(1, replaced[:, None])[:, 0]
    fails = (moved != replaced) | ~(own > _MOVED)
    return [(int(replaced[n]), int(moved[n])) for n in fails.nonzero().flatten().tolist()]
