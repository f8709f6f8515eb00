"""One pass over the tiles of a map, reducing each to what a person can look at."""

from __future__ import annotations

from math import log

import torch
from torch import Tensor
from torch.nn.functional import pad

from attnviz.errors import InputError, whole_number
from attnviz.records import Summary
from attnviz.streaming.scoring import NEVER, Scoring
from attnviz.streaming.tiles import COLUMNS, ROWS, Block, Tiles, blocks, together
from attnviz.streaming.top import Top


def log_sum_exp(scoring: Scoring) -> Tensor:
    """Return the log-sum-exp of each row of scores, sinks among them, (H, m); -∞ for empty rows.

    Tile by tile, by the running maximum and sum of Milakov & Gimelshein 2018, arXiv:1805.02867.
    """
    H, m, _ = scoring.shape
    device = scoring.query.device
    found = torch.empty(H, m, device=device)
    for heads in together(scoring):
        tiles, h = Tiles(scoring, heads), heads.stop - heads.start
        room = torch.empty(h * ROWS * COLUMNS, device=device)
        for block in blocks(m, 1, ROWS):
            Q, S = tiles.queries(block.rows), _view(room, (h, block.height, COLUMNS))
            top = torch.full((h, block.height), NEVER, device=device)
            total = torch.zeros_like(top)
            for tile in tiles.used(block.rows):
                tiles.fill(S, Q, block.rows, tile)
                higher = torch.maximum(top, S.amax(-1))
                total *= torch.exp2(top - higher)
                total += S.sub_(higher[..., None]).exp2_().sum(-1)
                top = higher
            lse = (top + total.log2()) * log(2)
            found[heads, block.rows] = lse.masked_fill(top <= NEVER / 2, -torch.inf)
    return found if scoring.sinks is None else torch.logaddexp(found, _by_row(scoring.sinks))


def summarise(
    scoring: Scoring,
    *,
    cells: int = 512,
    top: int = 0,
    lse: Tensor | None = None,
    marked: Tensor | None = None,
) -> Summary:
    """Reduce the weights of every head exactly, never more than a tile of them in memory.

    Parameters
    ----------
    cells : how many rows and columns the pooled maps have at most.
    top : of how many keys to keep the weight for each query.
    lse : (H, m), the log-sum-exp of each row, sinks among them, where a fast attention has told it;
        else a first pass finds it.
    marked : (n,), True for keys of which is to be told what each query gives to all of them.

    Raises
    ------
    InputError : cells or top are no such numbers.
    """
    cells, top = whole_number(cells, "cells"), whole_number(top, "top")
    if cells < 1 or top < 0:
        raise InputError(
            f"Expected one cell or more and no less than 0 keys, got {cells} and {top}."
        )
    m, n = scoring.shape[1:]
    known = log_sum_exp(scoring) if lse is None else lse.float()
    empty = scoring.visible.empty(m, n, known.device)
    lse = known.masked_fill(empty, -NEVER)
    kept = _Kept(scoring, -(-max(m, n) // cells), min(top, n), marked)
    for heads in together(scoring):
        _Sweep(scoring, heads, lse, kept).run()
    row = torch.arange(m, device=lse.device) + scoring.visible.offset
    return Summary(
        cell=kept.cell,
        mean=kept.mean,
        largest=kept.largest,
        received=kept.received.float(),
        entropy=kept.entropy.mul_(-log(2)),
        distance=kept.distance,
        itself=(scoring.pairs(row) - lse).exp(),
        previous=(scoring.pairs(row - 1) - lse).exp(),
        first=(scoring.pairs(torch.zeros_like(row)) - lse).exp(),
        marked=kept.marked,
        lse=known,
        empty=empty,
        top_keys=kept.top_keys,
        top_weights=kept.top_weights,
    )


def crop(
    scoring: Scoring, *, rows: slice, columns: slice | None = None, lse: Tensor | None = None
) -> Tensor:
    """Return the exact weights of a part of the map, (H, rows, columns); of whole rows by default.

    Parameters
    ----------
    lse : (H, m), as in `summarise`; else that of these rows is found.
    """
    m, n = scoring.shape[1:]
    start, stop, _ = rows.indices(m)
    part = scoring.rows(slice(start, stop))
    first, end, _ = (columns or slice(None)).indices(n)
    lse = log_sum_exp(part) if lse is None else lse[:, start:stop]
    scores = part.scores(slice(0, max(0, stop - start)), slice(first, end))
    return (scores - lse.masked_fill(lse.isinf(), -NEVER)[..., None]).exp()


class _Kept:
    """What sweeps fill in, for all heads."""

    def __init__(self, scoring: Scoring, cell: int, top: int, marks: Tensor | None) -> None:
        H, m, n = scoring.shape
        # As whole tiles, since keys beyond the last have no weight.
        self.marks = None if marks is None else pad(marks.float(), (0, -n % COLUMNS))
        self.cell, self.top = cell, top

        def made(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(H, *shape, dtype=dtype, device=scoring.query.device)

        self.mean = made(-(-m // cell), -(-n // cell))
        self.largest = torch.zeros_like(self.mean)
        self.received = made(n, dtype=torch.float64)
        self.entropy, self.distance, self.marked = made(m), made(m), made(m)
        self.top_keys, self.top_weights = made(m, top, dtype=torch.int32), made(m, top)


class _Sweep:
    """One pass over the tiles of some heads."""

    def __init__(self, scoring: Scoring, heads: slice, lse: Tensor, kept: _Kept) -> None:
        self.visible, self.heads, self.kept = scoring.visible, heads, kept
        self.m, self.n = scoring.shape[1:]
        self.h, self.device = heads.stop - heads.start, lse.device
        self.tiles = Tiles(scoring, heads, lse)
        taken = torch.zeros_like(lse)  # of each row, by its sink
        if scoring.sinks is not None:
            taken = (_by_row(scoring.sinks) - lse).exp()
        self.mass = (1 - taken).masked_fill(lse >= -NEVER / 2, 0)[heads]
        self.top = Top(self.h, self.n, kept.top, self.device) if kept.top else None
        self.rooms = torch.empty(2, self.h * ROWS * COLUMNS, device=self.device)
        self.places = torch.arange(len(self.tiles.keys) * COLUMNS, device=self.device).float()

    def run(self) -> None:
        """Go over all blocks of rows."""
        for block in blocks(self.m, self.kept.cell, self.top.rows if self.top else ROWS):
            if block.first:
                shape = len(self.tiles.keys), self.h, block.cells, COLUMNS
                sums = torch.zeros(shape, device=self.device)
                tops = torch.full(shape, NEVER, device=self.device)
            self._rows(block, sums, tops)
            if block.last:
                self._pool(block, sums, tops)

    def _rows(self, block: Block, sums: Tensor, tops: Tensor) -> None:
        """Reduce the tiles of a block: S = log₂ P, P, and P · S in the place of P."""
        h, rows, height = self.h, block.rows, block.height
        used, Q = self.tiles.used(rows), self.tiles.queries(rows)
        S, P = (_view(room, (h, height, COLUMNS)) for room in self.rooms)
        strips = self.top.begin(used, height) if self.top else None
        flat = P.view(h * height, COLUMNS)
        ones = torch.ones(1, height, device=self.device)
        entropy = torch.zeros(h, height, device=self.device)
        distance = torch.zeros(h * height, device=self.device)
        marked = torch.zeros_like(distance)
        here = rows.start + self.visible.offset
        backwards = self.visible.after == 0
        behind = torch.split(here - self.places, COLUMNS)
        whole = block.first and block.last and block.cells == 1
        for tile in used:
            S = S if strips is None else strips[tile]
            self.tiles.fill(S, Q, rows, tile)
            if self.top:
                self.top.see(S)
            if whole:
                torch.amax(S, 1, keepdim=True, out=tops[tile])
            else:
                torch.maximum(tops[tile], _by_cell(S, block.cells).amax(2), out=tops[tile])
            torch.exp2(S, out=P)
            if h == block.cells == 1:
                sums[tile, 0].addmm_(ones, P[0])
            else:
                sums[tile] += _by_cell(P, block.cells).sum(2)
            if backwards:  # i - j = (i - here) + (here - j)
                distance.addmv_(flat, behind[tile])
            else:
                distance += _distances(P, rows, tile, self.visible.offset).flatten()
            if self.kept.marks is not None:
                marked.addmv_(flat, self.kept.marks[tile * COLUMNS : (tile + 1) * COLUMNS])
            entropy += P.mul_(S).sum(-1)
        if backwards:
            within = torch.arange(height, device=self.device)
            distance += (within * self.mass[:, rows]).flatten()
        self.kept.entropy[self.heads, rows] = entropy
        self.kept.distance[self.heads, rows] = distance.view(h, height)
        self.kept.marked[self.heads, rows] = marked.view(h, height)
        if self.top:
            weights, keys = self.top.take(height)
            self.kept.top_weights[self.heads, rows] = weights
            self.kept.top_keys[self.heads, rows] = keys

    def _pool(self, block: Block, sums: Tensor, tops: Tensor) -> None:
        """Join the columns of finished rows of cells."""
        n, cell, heads = self.n, self.kept.cell, self.heads
        place, lacking = slice(block.cell, block.cell + block.cells), -n % cell
        summed, highest = (
            each.permute(1, 2, 0, 3).flatten(2)[..., :n] for each in (sums, tops)
        )  # (h, cells, n)
        self.kept.received[heads] += summed.sum(1, dtype=torch.float64)
        widths = torch.full((-(-n // cell),), cell, device=self.device)
        widths[-1] -= lacking
        height = min(cell, self.m - block.cell * cell)
        joined = pad(summed, (0, lacking)).reshape(*summed.shape[:2], -1, cell).sum(-1)
        self.kept.mean[heads, place] = joined / (height * widths)
        highest = pad(highest, (0, lacking), value=NEVER).reshape(*joined.shape, cell)
        self.kept.largest[heads, place] = highest.amax(-1).exp2()


def _by_cell(tile: Tensor, cells: int) -> Tensor:
    """Return (h, rows, columns) as (h, cells, rows of each, columns)."""
    return tile.reshape(len(tile), cells, -1, tile.shape[-1])


def _distances(P: Tensor, rows: slice, tile: int, offset: int) -> Tensor:
    """Return what a tile with keys on both sides adds to the mean distance, (h, rows)."""
    i = torch.arange(rows.start, rows.stop, device=P.device) + offset
    j = torch.arange(tile * COLUMNS, (tile + 1) * COLUMNS, device=P.device)
    left, right = (min(max(int(at) - int(j[0]), 0), COLUMNS) for at in (i[0], i[-1] + 1))
    found = (P[..., left:right] * (i[:, None] - j[left:right]).abs()).sum(-1)
    # From the border of the rows: both parts have one sign, and nothing is lost by cancelling.
    for side, border, sign in ((slice(0, left), left - 1, 1), (slice(right, None), right, -1)):
        if len(there := j[side]):
            moment = P[..., side] @ (j[border] - there).to(P)
            found += sign * (P[..., side].sum(-1) * (i - j[border]) + moment)
    return found


def _by_row(sinks: Tensor) -> Tensor:
    """Return sinks as (H, m or 1)."""
    return (sinks if sinks.dim() == 2 else sinks[:, None]).float()


def _view(room: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Return a tile's room, contiguous."""
    return room[: shape[0] * shape[1] * shape[2]].view(shape)
