"""A map cut into tiles: rows in blocks that hold whole cells, columns in tiles of one width."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from attnviz.streaming.scoring import LOG2_E, NEVER, Scoring

ROWS, COLUMNS = 200, 512  # of a tile: two of them and its keys stay in a core's cache
_SCORES = 2**17  # of a tile, over all heads that are taken at once


@dataclass(frozen=True)
class Block:
    """Some rows of a map: `cells` whole cells of a pooled map from `cell` on, or a part of one.

    first, last : whether the block is the first and the last part of its cell.
    """

    rows: slice
    cell: int
    cells: int
    first: bool = True
    last: bool = True

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
                end = min(at + step, stop)
                yield Block(slice(at, end), start // cell, 1, at == start, end == stop)


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


class Tiles:
    """The tiles of some heads: log₂ of the weights, once the log-sum-exp of each row is known.

    Scale and log-sum-exp are folded into the product: with q′ = [q · scale · log₂e, -lse · log₂e]
    and k′ = [k, 1], q′ k′ᵀ = log₂ P.

    heads : which of the scoring. lse : (H, m), natural; None for the scores · log₂e themselves.
    """

    def __init__(self, scoring: Scoring, heads: slice, lse: Tensor | None = None) -> None:
        self.scoring, self.heads = scoring, heads
        self.lse = None if lse is None else lse[heads, :, None]
        self.folded = scoring.plain and lse is not None
        # Each tile of keys by itself and transposed: products with a far stride are slow.
        self.keys = [
            self._packed(part)
            for part in torch.split(scoring.read_by(heads, scoring.key), COLUMNS, dim=1)
        ]

    def _packed(self, K: Tensor) -> Tensor:
        h, n, d = K.shape
        packed = K.new_zeros(h, d + self.folded, COLUMNS, dtype=torch.float32)
        packed[:, :d, :n] = K.mT
        if self.folded:
            packed[:, d] = 1
        return packed

    def used(self, rows: slice) -> range:
        """Return the tiles in which some rows may read a key."""
        first, end = self.scoring.visible.columns(rows, self.scoring.key.shape[1])
        return range(first // COLUMNS, -(-end // COLUMNS))

    def queries(self, rows: slice) -> Tensor:
        """Return some rows of Q as they enter the product, (h, rows, d or d + 1)."""
        Q = self.scoring.query[self.heads, rows].float() * self.scoring.scale
        if not self.scoring.plain:
            return Q
        if self.lse is None:
            return Q * LOG2_E
        return torch.cat([Q, -self.lse[:, rows]], dim=-1) * LOG2_E

    def fill(self, out: Tensor, Q: Tensor, rows: slice, tile: int) -> None:
        """Compute a tile (h, rows, COLUMNS) into `out`, NEVER where it is hidden.

        Q : of `queries`, for these rows.
        """
        scoring, K = self.scoring, self.keys[tile]
        if len(Q) == 1:
            torch.mm(Q[0], K[0], out=out[0])
        else:
            torch.bmm(Q, K.expand(len(Q), -1, -1), out=out)
        columns = slice(tile * COLUMNS, (tile + 1) * COLUMNS)
        scoring.bend(out, self.heads, rows, columns)
        if self.lse is not None and not self.folded:
            out.sub_(self.lse[:, rows] * LOG2_E)
        visible, n = scoring.visible, scoring.key.shape[1]
        if visible.hides(rows, columns, n):
            i = torch.arange(rows.start, rows.stop, dtype=torch.int32, device=out.device)
            j = torch.arange(columns.start, columns.stop, dtype=torch.int32, device=out.device)
            distance = i[:, None] + visible.offset - j
            out.masked_fill_(visible.hidden(distance, columns, n), NEVER)
