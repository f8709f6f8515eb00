"""Whether the rows of the maps are the tokens that their labels name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from attnviz.capture import MovedKeys
from attnviz.results import AttentionRecord, Axis, PositionCheck

# Rounding in batches of different rows, relative to the longest key: replaced tokens move by 0.1.
_MOVED = 1e-3


def check_positions(
    moved: MovedKeys | None, records: Sequence[AttentionRecord], axis: Axis
) -> PositionCheck | None:
    """Return whether each replaced token moved its own key; None where no keys are known.

    In the first attention every token must move its own key most. In the others this holds for more
    than half of the tokens, because attention has mixed them. No token of a causal model may move
    an earlier key in any attention.

    axis : of the text, since an encoder–decoder has other keys too.
    """
    if moved is None or not len(moved.replaced):
        return None
    of_text = {record.path: record for record in reversed(records) if record.key_axis == axis}
    known = [(of_text[path], d) for path, d in moved.distances.items() if path in of_text]
    failed: list[tuple[str, int, int]] = []
    for number, (record, distances) in enumerate(known):
        misplaced = [*_leaks(moved.replaced, distances)] if record.stack == "decoder" else []
        if number == 0 or record.stack != "decoder":
            others = [*_others(moved.replaced, distances)]
            if number == 0 or 2 * len(others) >= len(moved.replaced):
                misplaced += others
        failed += [(record.place, *pair) for pair in dict.fromkeys(misplaced)]
    return PositionCheck(len(moved.replaced), tuple(failed), layers=len(known)) if known else None


def _leaks(replaced: Tensor, distances: Tensor) -> Iterator[tuple[int, int]]:
    """Yield each replaced position that moved an earlier key, and this key."""
    before = torch.arange(distances.shape[1], device="cpu") < replaced[:, None]
    for position, row in zip(replaced.tolist(), distances.masked_fill(~before, 0.0), strict=True):
        if not row.max() < _MOVED:
            yield position, int(row.argmax())


def _others(replaced: Tensor, distances: Tensor) -> Iterator[tuple[int, int]]:
    """Yield each replaced position that did not move its own key most, and the key that moved."""
    for position, row in zip(replaced.tolist(), distances, strict=True):
        if int(row.argmax()) != position or not row[position] > _MOVED:
            yield position, int(row.argmax())
