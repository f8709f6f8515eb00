"""Long maps: one pass over tiles of weights, once the log-sum-exp of each row is known."""

from __future__ import annotations

from math import log

import torch
from torch import Tensor
from torch.nn.functional import pad

from attnviz.streaming.kept import Kept
from attnviz.streaming.scoring import NEVER, Scoring
from attnviz.streaming.tiles import COLUMNS, ROWS, Block, Tiles, blocks, together
from attnviz.streaming.top import Top


def log_sum_exp(scoring: Scoring) -> Tensor:
    """Return the log-sum-exp of each row of scores, sinks among them, (H, m); -∞ for empty rows.

    Tile by tile, by the running maximum and sum of Milakov & Gimelshein 2018, arXiv:1805.02867.
    """
    H, m, n = scoring.shape
    device = scoring.query.device
    found = torch.empty(H, m, device=device)
    for heads in together(scoring, min(m, ROWS) * min(n, COLUMNS)):
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


def go_over(scoring: Scoring, kept: Kept) -> None:
    """Fill in what is kept, tile by tile; its `lse` is known."""
    _, m, n = scoring.shape
    lse = kept.lse.masked_fill(kept.lse == -torch.inf, -NEVER)
    for heads in together(scoring, min(m, ROWS) * min(n, COLUMNS)):
        _Sweep(scoring, heads, lse, kept).run()
    row = torch.arange(m, device=lse.device) + scoring.visible.offset
    for i, keys in enumerate((row, row - 1, torch.zeros_like(row))):
        kept.near[:, i] = (scoring.pairs(keys) - lse).exp()


class _Sweep:
    """One pass over the tiles of some heads."""

    def __init__(self, scoring: Scoring, heads: slice, lse: Tensor, kept: Kept) -> None:
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
        whole = -self.n % COLUMNS  # keys beyond the last have no weight
        self.marks = self.values = None
        if kept.marks is not None:
            self.marks = torch.split(pad(kept.marks.float(), (0, whole)), COLUMNS)
        if kept.value is not None:
            V = pad(scoring.read_by(heads, kept.value).float(), (0, 0, 0, whole))
            self.values = torch.split(V.expand(self.h, -1, -1), COLUMNS, dim=1)
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
            if self.marks is not None:
                marked.addmv_(flat, self.marks[tile])
            if self.values is not None:
                self.kept.attended[self.heads, rows].baddbmm_(P, self.values[tile])
            entropy += P.mul_(S).sum(-1)
        if backwards:
            within = torch.arange(height, device=self.device)
            distance += (within * self.mass[:, rows]).flatten()
        self.kept.entropy[self.heads, rows] = -entropy
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
        joined = pad(summed, (0, lacking)).reshape(*summed.shape[:2], -1, cell).sum(-1)
        self.kept.mean[heads, place] = joined
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
