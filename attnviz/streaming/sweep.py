"""Long maps: one pass over tiles of weights, once the log-sum-exp of each row is known."""

from __future__ import annotations

from dataclasses import dataclass
from math import log

import torch
from torch import Tensor

from attnviz.runtime.progress import track
from attnviz.streaming.buffers import Kept
from attnviz.streaming.scores import NEVER, Scoring
from attnviz.streaming.tiles import (
    COLUMNS,
    ROWS,
    Block,
    Tiles,
    alone,
    blocks,
    together,
)
from attnviz.streaming.topk import LOT, Lots, split

_LANES = 32  # rows that are reduced at once; others one by one, which takes far longer


@torch.no_grad()
def log_sum_exp(scoring: Scoring) -> Tensor:
    """Return the log-sum-exp of each row of scores, sinks among them, (H, m); -∞ for empty rows.

    Tile by tile, by the running maximum and sum of Milakov & Gimelshein 2018, arXiv:1805.02867.
    """
    H, m, n = scoring.shape
    device = scoring.query.device
    found = torch.empty(H, m, device=device)
    for heads in track(list(together(scoring, min(m, ROWS) * min(n, COLUMNS)))):
        tiles, h = Tiles(scoring, heads), heads.stop - heads.start
        room = torch.empty(h * min(m, ROWS) * COLUMNS, device=device)
        for block in blocks(m, 1, ROWS):
            Q = tiles.queries(block.rows)
            top = torch.full((h, block.height), NEVER, device=device)
            total = torch.zeros_like(top)
            for tile in tiles.used(block.rows):
                S = _view(room, h, tiles.columns[tile], block.height)
                tiles.fill(S, Q, block.rows, tile)
                higher = torch.maximum(top, S.amax(1))
                total *= torch.exp2(top - higher)
                total += S.sub_(higher[:, None]).exp2_().sum(1)
                top = higher
            lse = (top + total.log2()) * log(2)
            found[heads, block.rows] = lse.masked_fill(top <= NEVER / 2, -torch.inf)
    sinks = scoring.sinks_by_row
    return found if sinks is None else torch.logaddexp(found, sinks)


def go_over(scoring: Scoring, kept: Kept) -> None:
    """Fill in what is kept, tile by tile; its `lse` is known."""
    _, m, n = scoring.shape
    lse = kept.lse.masked_fill(kept.lse == -torch.inf, -NEVER)
    for heads in track(list(together(scoring, min(m, ROWS) * min(n, COLUMNS)))):
        _Sweep(scoring, heads, lse, kept).run()
    kept.find_near(scoring)


@dataclass(frozen=True)
class _Tile:
    """The room of one tile, (h, keys, rows), and where to put what it is reduced to.

    S, P : log₂ of the weights, and these. columns : its keys.
    logs, powers : the same, with rows to fill the lanes. lots : as of `Lots.views`, with these.
    All others are `alone`, as they enter products: `weights`, which are P; `turned`, P by rows;
    linear : (h, sums, keys), by which to multiply P; ones : (h, 1, keys);
    given : (h, cells of the block, keys), what is received.
    """

    columns: slice
    lots: list[tuple[Tensor, Tensor]]
    S: Tensor
    P: Tensor
    logs: Tensor
    powers: Tensor
    weights: Tensor
    turned: Tensor
    linear: Tensor
    ones: Tensor
    given: Tensor


class _Sweep:
    """One pass over the tiles of some heads."""

    def __init__(self, scoring: Scoring, heads: slice, lse: Tensor, kept: Kept) -> None:
        self.scoring, self.visible, self.heads = scoring, scoring.visible, heads
        self.kept, self.cell, self.lse = kept, kept.cell, lse
        self.m, self.n = scoring.shape[1:]
        h = heads.stop - heads.start
        self.h, self.device = h, lse.device
        lot = min(self.cell, LOT) if kept.top or self.cell > COLUMNS else self.cell
        self.tiles = Tiles(scoring, heads, lse, cell=self.cell, lot=lot)
        keys = self.tiles.columns[-1].stop
        self.lots = Lots(h, keys // self.cell, self.cell, lot)
        widest = max(columns.stop - columns.start for columns in self.tiles.columns)
        self.rooms = torch.zeros(2, h * _wide(min(self.m, ROWS)) * widest, device=self.device)
        self.ones = torch.ones(h, 1, widest, device=self.device)
        # What is summed over the weights of each row: how far the key is from the first row of the
        # block, and the sign of that, written for every block; whether it is marked; its value.
        away = torch.arange(keys + self.m, device=self.device) - self.m - self.visible.offset
        self.away = torch.stack([away.abs(), torch.where(away < 0, 1, -1)]).float()
        self.linear = torch.zeros(h, 3 + kept.attended.shape[2], keys, device=self.device)
        if kept.marks is not None:
            self.linear[:, 2, : self.n] = kept.marks.float()
        if kept.value is not None:
            self.linear[:, 3:, : self.n] = scoring.read_by(heads, kept.value).mT

    def run(self) -> None:
        """Go over all blocks of rows."""
        shape = None
        for block in blocks(self.m, self.cell, ROWS):
            if shape != (shape := (block.height, block.cells)):
                self._make_room(block)
            if used := self.tiles.used(block.rows):
                self._rows(block, used)

    def _make_room(self, block: Block) -> None:
        """Make room for blocks of this shape; looking it up for each tile would take its time."""
        h, height = self.h, block.height
        part = torch.eye(block.cells, device=self.device)
        part = part.repeat_interleave(height // block.cells, dim=1)
        self.by_cell = alone(part.expand(h, -1, -1))
        self.given = torch.empty(h, block.cells, self.tiles.columns[-1].stop, device=self.device)
        self.lots.begin(_wide(height), self.device)
        self.all = []
        for columns in self.tiles.columns:
            logs, powers = (_view(room, h, columns, _wide(height)) for room in self.rooms)
            S, P = logs[..., :height], powers[..., :height]
            linear, ones = self.linear[..., columns], self.ones[..., : S.shape[1]]
            factors = (alone(each) for each in (P, P.mT, linear, ones, self.given[..., columns]))
            lots = self.lots.views(logs, columns)
            self.all.append(_Tile(columns, lots, S, P, logs, powers, *factors))

    def _rows(self, block: Block, used: range) -> None:
        """Reduce the tiles of a block: S = log₂ P, P, and P · S in the place of P."""
        rows, height, Q = block.rows, block.height, self.tiles.queries(block.rows)
        here = rows.start + self.visible.offset
        self.linear[:, :2] = self.away.narrow(1, self.m - rows.start, self.linear.shape[2])
        sums = torch.zeros(self.h, self.linear.shape[1], height, device=self.device)
        entropy = torch.zeros(self.h, 1, height, device=self.device)
        behind = torch.zeros(self.h, height, device=self.device)
        totals, least = alone(sums), alone(entropy)
        multiply, add = (torch.mm, torch.addmm) if self.h == 1 else (torch.bmm, torch.baddbmm)
        for at in used:
            tile = self.all[at]
            columns = tile.columns
            self.tiles.fill(tile.S, Q, rows, at)
            for lots, highest in tile.lots:
                torch.amax(lots, 3, out=highest)
            torch.exp2(tile.logs, out=tile.powers)
            add(totals, tile.linear, tile.weights, out=totals)
            multiply(self.by_cell, tile.turned, out=tile.given)
            if columns.start < here + height and columns.stop > here:
                behind += _behind(tile.P, here, columns)
            tile.powers.mul_(tile.logs)
            add(least, tile.ones, tile.weights, out=least)
        kept, heads = self.kept, self.heads
        within = torch.arange(height, device=self.device)
        kept.entropy[heads, rows] = -entropy[:, 0]
        kept.distance[heads, rows] = sums[:, 0] + within * sums[:, 1] + behind
        kept.marked[heads, rows] = sums[:, 2]
        kept.attended[heads, rows] = sums[:, 3:].mT
        self._pool(block, slice(self.all[used[0]].columns.start, self.all[used[-1]].columns.stop))

    def _pool(self, block: Block, columns: slice) -> None:
        """Join cells, and find the largest in what is known of them."""
        kept, heads, rows, last = self.kept, self.heads, block.rows, min(columns.stop, self.n)
        cells = slice(block.cell, block.cell + block.cells)
        across = slice(columns.start // self.cell, columns.stop // self.cell)
        given = self.given[..., columns]
        received = given.sum(1)[:, : last - columns.start]
        kept.received[heads, columns.start : last] += received
        kept.mean[heads, cells, across] += split(given, 2, self.cell).sum(-1)
        highest = self.lots.of_cells(across).amax(2)[..., : block.height]  # (h, across, rows)
        largest = split(highest, 2, block.height // block.cells).amax(-1).mT.exp2()
        pooled = kept.largest[heads, cells, across]
        torch.maximum(pooled, largest, out=pooled)
        if kept.top:
            found, keys = self.lots.largest(self.scoring, heads, rows, across, highest, kept.top)
            k = found.shape[2]
            kept.top_weights[heads, rows, :k] = (found - self.lse[heads, rows, None]).exp()
            kept.top_keys[heads, rows, :k] = keys.masked_fill(found <= NEVER / 2, -1).int()


def _behind(P: Tensor, here: int, columns: slice) -> Tensor:
    """Return what to add to the distance of rows from keys that lie among them, (h, rows).

    i - j = (i - here) - (j - here) is what a block sums, with the wrong sign where j ≥ here.
    """
    low, high = max(here, columns.start), min(here + P.shape[2], columns.stop)
    i = torch.arange(here, here + P.shape[2], device=P.device)
    j = torch.arange(low, high, device=P.device)
    twice = 2.0 * (i - j[:, None]).clamp(min=0)
    return (P[:, low - columns.start : high - columns.start] * twice).sum(1)


def _wide(rows: int) -> int:
    """Return how many rows fill whole lanes."""
    return -(-rows // _LANES) * _LANES


def _view(room: Tensor, h: int, columns: slice, height: int) -> Tensor:
    """Return the room of a tile (h, keys, rows), contiguous."""
    width = columns.stop - columns.start
    return room[: h * width * height].view(h, width, height)
