"""A map cut into tiles of blocks of rows and some keys: whole cells of either, or a part of one.

A tile lies on its side, (h, keys, rows): the keys of a cell or of a lot are rows of it, which are
reduced fast, and all that is linear in the weights is one product from the left.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from attnviz.streaming.scores import LOG2_E, NEVER, Scoring

ROWS, COLUMNS = 512, 400  # of a tile: two of them and its keys stay in a core's cache
_SCORES = 2**17  # of a tile, over all heads that are taken at once


@dataclass(frozen=True)
class Block:
    """Some rows of a map: `cells` whole cells of a pooled map from `cell` on, or a part of one."""

    rows: slice
    cell: int
    cells: int

    @property
    def height(self) -> int:
        """How many rows it has."""
        return int(self.rows.stop - self.rows.start)


def blocks(m: int, cell: int, most: int) -> Iterator[Block]:
    """Cut m rows into blocks of at most `most` rows, for cells of `cell` rows; the last is less."""
    together = max(1, most // cell) * cell
    for start in range(0, m, together):
        stop = min(start + together, m)
        whole = start + (stop - start) // cell * cell
        if together > cell and whole > start:
            yield Block(slice(start, whole), start // cell, (whole - start) // cell)
            start = whole
        if start < stop:
            step = -(-(stop - start) // -(-(stop - start) // most))
            for at in range(start, stop, step):
                yield Block(slice(at, min(at + step, stop)), start // cell, 1)


def together(scoring: Scoring, each: int) -> Iterator[slice]:
    """Return which heads to take at once: several short ones, of one key head where they share.

    each : how many scores of a head are taken.
    """
    H = scoring.shape[0]
    shared = H // scoring.key.shape[0]
    size = min(max(1, _SCORES // max(1, each)), shared if shared > 1 else H)
    while shared % size and shared > 1:
        size -= 1
    for start in range(0, H, size):
        yield slice(start, min(start + size, H))


def alike(H: int, most: int) -> list[slice]:
    """Cut H heads into lots of one size, the largest that is no more than `most`, or 1."""
    size = max(each for each in range(1, max(1, min(H, most)) + 1) if H % each == 0)
    return [slice(start, start + size) for start in range(0, H, size)]


class Tiles:
    """The tiles of some heads: log₂ of the weights, once the log-sum-exp of each row is known.

    Scale and log-sum-exp are folded into the product: with q′ = [q · scale · log₂e, -lse · log₂e]
    and k′ = [k, 1], k′ q′ᵀ = log₂ P.

    heads : which of the scoring. lse : (H, m), natural; None for the scores · log₂e themselves.
    cell, lot : how many keys stay together in a tile, or else how many of them in a part of it.

    Attributes
    ----------
    columns : the keys of each tile. Keys from n on fill the last cell.
    """

    def __init__(
        self,
        scoring: Scoring,
        heads: slice,
        lse: Tensor | None = None,
        *,
        cell: int = 1,
        lot: int = 1,
    ) -> None:
        self.scoring, self.heads, self.cell = scoring, heads, cell
        self.lse = None if lse is None else lse[heads]
        self.folded = scoring.plain and lse is not None
        n, d = scoring.key.shape[1:]
        self.columns = _cut(-(-n // cell) * cell, cell, lot)
        self.starts = [columns.start for columns in self.columns]
        K = scoring.read_by(heads, scoring.key)
        packed = K.new_zeros(len(K), self.columns[-1].stop, d + self.folded, dtype=torch.float32)
        packed[:, :n, :d] = K
        packed[..., d:] = 1
        h = heads.stop - heads.start
        self.keys = [alone(packed[:, part].expand(h, -1, -1)) for part in self.columns]
        self.bent = not scoring.plain or scoring.bias is not None

    def used(self, rows: slice) -> range:
        """Return the tiles in which some rows may read a key, and the others of the same cells."""
        first, end = self.scoring.visible.columns(rows, self.scoring.key.shape[1])
        if first >= end:
            return range(0)
        start, stop = first // self.cell * self.cell, -(-end // self.cell) * self.cell
        return range(bisect_right(self.starts, start) - 1, bisect_left(self.starts, stop))

    def queries(self, rows: slice) -> Tensor:
        """Return some rows of Q as they enter the product, (h, d or d + 1, rows) or `alone`."""
        Q = self.scoring.query[self.heads, rows].float() * self.scoring.scale
        if self.folded:
            assert self.lse is not None
            Q = torch.cat([Q, -self.lse[:, rows, None]], dim=-1)
        return alone((Q * LOG2_E if self.scoring.plain else Q).mT.contiguous())

    def fill(self, out: Tensor, Q: Tensor, rows: slice, tile: int) -> None:
        """Compute a tile (h, keys, rows) into `out`, NEVER where it is hidden.

        Q : of `queries`, for these rows.
        """
        scoring, columns = self.scoring, self.columns[tile]
        multiply = torch.mm if Q.dim() == 2 else torch.bmm
        multiply(self.keys[tile], Q, out=alone(out))
        if self.bent:
            scoring.bend(out.mT, self.heads, rows, columns)
        if self.lse is not None and not self.folded:
            out.sub_(self.lse[:, None, rows] * LOG2_E)
        visible, n = scoring.visible, scoring.key.shape[1]
        if visible.hides(rows, columns, n):
            i = torch.arange(rows.start, rows.stop, dtype=torch.int32, device=out.device)
            j = torch.arange(columns.start, columns.stop, dtype=torch.int32, device=out.device)
            distance = i + visible.offset - j[:, None]
            out.masked_fill_(visible.hidden(distance.mT, columns, n).mT, NEVER)


def alone(each: Tensor) -> Tensor:
    """Return the only matrix of a batch of one, for which a product by itself is faster."""
    return each[0] if len(each) == 1 else each


def _cut(n: int, cell: int, lot: int) -> list[slice]:
    """Cut n keys into tiles of whole cells; a cell that is too long, into parts of whole lots."""
    size = max(1, COLUMNS // cell) * cell
    step = -(-size // -(-size // COLUMNS))
    step = -(-step // lot) * lot
    cuts = []
    for start in range(0, n, size):
        stop = min(start + size, n)
        cuts += [slice(at, min(at + step, stop)) for at in range(start, stop, step)]
    return cuts
