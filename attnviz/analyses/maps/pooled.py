"""The map of a text that was streamed: pooled as a whole, exact in parts."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from attnviz.errors import InputError
from attnviz.results import (
    Axis,
    AxisGeometry,
    Landmark,
    Special,
    StreamedAttention,
    cell_sizes,
)
from attnviz.results.words import TokenGroups

_WORDS, _LETTERS = 3, 24  # of a landmark at most


def landmarks(axis: Axis, start: int, stop: int, most: int = 10) -> tuple[Landmark, ...]:
    """Return positions from `start` to `stop` in steps of a round number, `most` of them or fewer.

    >>> [mark.position for mark in landmarks(Axis.numbered(2345), 0, 2345)]
    [0, 500, 1000, 1500, 2000]
    """
    step = _round((stop - start) / most)
    first = -(-start // step) * step
    return tuple(Landmark(at, _words(axis, at)) for at in range(first, stop, step))


def _round(step: float) -> int:
    """Return the next of 1, 2, 5, 10, 20, 50 and so on."""
    power = int(10 ** math.floor(math.log10(max(step, 1))))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step)


def _words(axis: Axis, at: int) -> str:
    """Return the first words from a position on."""
    found: list[int] = []
    for word in axis.words[at:]:
        if word is not None and word not in found:
            found.append(word)
        if len(found) == _WORDS:
            break
    said = " ".join(axis.word_labels[word] for word in found)
    return said if len(said) <= _LETTERS else f"{said[:_LETTERS]}…"


_LARGEST = 2**24  # cells of an exact part


def expect_kept(special: Special) -> None:
    """Raise InputError where special tokens are to be taken out of pooled maps."""
    if special != "keep":
        raise InputError(
            f"Expected special tokens to be kept in the map of a long text, got {special!r}: they "
            "are joined with others, or left out by choosing rows and columns."
        )


def expect_part(part: slice | None, length: int, name: str) -> slice:
    """Return a part as a slice from start to stop, all for None; raise InputError if it is none."""
    if part is None:
        return slice(0, length)
    start, stop, step = part.indices(length)
    outside = (part.stop or 0) > length or (part.start or 0) < -length
    if start >= stop or step != 1 or outside:
        got = ":".join("" if at is None else str(at) for at in (part.start, part.stop))
        raise InputError(
            f"Expected {name} from 0 to {length}, as START:STOP without STOP itself, got {got}."
        )
    return slice(start, stop)


def streamed_map(
    found: StreamedAttention,
    heads: tuple[int, ...],
    rows: slice | None,
    columns: slice | None,
    said: list[str],
) -> tuple[Tensor, TokenGroups, TokenGroups]:
    """Return the mean map of some heads: pooled, or exact where a part is asked for."""
    if rows is None and columns is None:
        weights, left, across = pooled(found, said)
        return weights[[found.of_head(head) for head in heads]].mean(0), left, across
    sides = found.query_axis, found.key_axis
    cut = [
        expect_part(part, len(axis), name)
        for part, axis, name in zip((rows, columns), sides, ("rows", "columns"), strict=True)
    ]
    m, n = (part.stop - part.start for part in cut)
    if m * n > _LARGEST:
        raise InputError(
            f"Expected a part of at most {_LARGEST:,} weights, got {m:,} × {n:,}. Choose fewer "
            "rows or columns, or none for the pooled map."
        )
    weights = torch.stack([found.crop(head, cut[0], cut[1]).cpu() for head in heads]).mean(0)
    said.append(
        f"exact weights of tokens {cut[0].start:,} to {cut[0].stop - 1:,} for tokens "
        f"{cut[1].start:,} to {cut[1].stop - 1:,}, of {len(sides[0]):,}"
    )
    left, across = (_units(axis, part, 1) for axis, part in zip(sides, cut, strict=True))
    return weights, left, across


def pooled(
    found: StreamedAttention, said: list[str], most: int | None = None
) -> tuple[Tensor, TokenGroups, TokenGroups]:
    """Return the maps of the heads that were kept, (kept, rows, columns): each row sums to 1.

    A cell joins several tokens as a word joins its pieces: columns are summed, rows averaged.

    most : how many rows and columns there are to be at most; by default as many as were kept.
    """
    summary, sides = found.summary, (found.query_axis, found.key_axis)
    m, n = map(len, sides)
    joined = 1 if most is None else -(-max(summary.mean.shape[1:]) // most)
    heights, widths = (cell_sizes(length, summary.cell) for length in (m, n))
    area = summary.mean.cpu() * heights[:, None] * widths  # the weight in each cell
    cell = summary.cell * joined
    weights = _joined(area, joined) / cell_sizes(m, cell)[:, None]
    if cell > 1:
        said.append(
            f"each cell joins {cell} × {cell} of the {len(sides[0]):,} × {n:,} weights (columns "
            "summed, rows averaged)"
        )
    whole = (slice(0, len(axis)) for axis in sides)
    left, across = (_units(axis, part, cell) for axis, part in zip(sides, whole, strict=True))
    return weights, left, across


def pool(weights: Tensor, cell: int) -> Tensor:
    """Join cell × cell weights of (H, m, n): columns are summed, rows averaged."""
    return _joined(weights, cell) / cell_sizes(weights.shape[1], cell)[:, None]


def _joined(weights: Tensor, cell: int) -> Tensor:
    """Sum cell × cell weights of (H, m, n); the last row and column may join fewer."""
    H, m, n = weights.shape
    filled = pad(weights, (0, -n % cell, 0, -m % cell))
    return filled.reshape(H, -(-m // cell), cell, -(-n // cell), cell).sum((2, 4))


def _units(axis: Axis, part: slice, cell: int) -> TokenGroups:
    """Return what the rows or columns stand for: tokens, or several that are joined."""
    starts = range(part.start, part.stop, cell)
    joined = [tuple(range(at, min(at + cell, part.stop))) for at in starts]
    return TokenGroups(
        positions=tuple(joined),
        labels=tuple(axis.labels[at] for at in starts),
        special=tuple(all(axis.special[at] for at in each) for each in joined),
        segments=tuple(axis.segments[at] for at in starts),
        side=AxisGeometry(
            landmarks=landmarks(axis, part.start, part.stop), start=part.start, cell=cell
        ),
    )
