"""Short maps: strips of some rows with all their keys, from one product q kᵀ for everything.

A strip lies on its side, (h, keys, rows). So the keys of a cell are rows of it, which are reduced
fast; a causal strip is the first of them; and all that is linear in the weights, the attention
vectors among it, is one product from the left.
"""

from __future__ import annotations

from functools import lru_cache
from math import log

import torch
from torch import Tensor
from torch.nn.functional import pad

from attnviz.streaming.kept import Kept
from attnviz.streaming.scoring import LOG2_E, NEVER, Scoring
from attnviz.streaming.tiles import Block, blocks, together

KEYS = 16384  # beyond this, a strip of useful height is too much for a core's cache
SCORES = 2**17  # of a strip: twice this and the keys stay in a core's cache
ROWS = (32, 128)  # of a strip, at least and at most
SAFE = 32.0  # a row whose largest log₂ is within ± this is exponentiated as it is


def go_over(scoring: Scoring, kept: Kept) -> None:
    """Fill in what is kept, strip by strip."""
    _, m, n = scoring.shape
    rows = min(m, max(ROWS[0], min(ROWS[1], SCORES // n)))
    for heads in together(scoring, rows * n, SCORES):
        strips = _Strips(scoring, heads, kept, rows)
        strips.run()
        strips.keep(kept)


class _Strips:
    """The strips of some heads. With P̃ = 2^S, not yet divided by its sum over a row."""

    def __init__(self, scoring: Scoring, heads: slice, kept: Kept, most: int) -> None:
        H, m, n = scoring.shape
        self.scoring, self.heads, self.cell, self.top = scoring, heads, kept.cell, kept.top
        self.m, self.n, self.h = m, -(-n // kept.cell) * kept.cell, heads.stop - heads.start
        self.device = scoring.query.device
        self.blocks = list(blocks(m, kept.cell, most))
        self.K = self._whole(scoring.read_by(heads, scoring.key)).expand(self.h, -1, -1)
        factor = scoring.scale * (LOG2_E if scoring.plain else 1)
        self.Q = (scoring.query[heads].float() * factor).mT
        self.unread = torch.ones(self.n, dtype=torch.bool, device=self.device)
        self.unread[:n] = False if scoring.visible.keys is None else ~scoring.visible.keys
        self.gaps = bool(self.unread.any())
        self.linear = self._linear(kept.value, kept.marks)
        sinks = scoring.sinks
        if sinks is not None:
            sinks = (sinks if sinks.dim() == 2 else sinks[:, None]).expand(H, m)[heads].float()
            sinks = sinks * LOG2_E
        self.sinks = sinks
        self._make_room(kept, max(block.height for block in self.blocks))

    def _whole(self, each: Tensor) -> Tensor:
        """Return keys or values as float32, in whole cells."""
        return pad(each.float(), (0, 0, 0, self.n - each.shape[1])).contiguous()

    def _linear(self, value: Tensor | None, marks: Tensor | None) -> Tensor:
        """Return what is summed over the weights of each row, (h or 1, 3 or 4 + d_v, n).

        One; how far the key is from the first row of the strip, and the sign of that, written for
        every strip; whether it is marked; its value.
        """
        sums = torch.ones(1, 3, self.n, device=self.device)
        if marks is not None:
            sums = torch.cat([sums, pad(marks.float(), (0, self.n - len(marks)))[None, None]], 1)
        if value is not None:
            V = self._whole(self.scoring.read_by(self.heads, value)).mT
            sums = torch.cat([sums.expand(len(V), -1, -1), V], dim=1)
        away = torch.arange(self.n + self.m, device=self.device) - self.m
        away = (away - self.scoring.visible.offset).float()
        self.away = torch.stack([away.abs(), torch.where(away < 0, 1.0, -1.0)])
        return sums

    def _make_room(self, kept: Kept, height: int) -> None:
        def made(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(self.h, *shape, dtype=dtype, device=self.device)

        self.rooms = torch.empty(2, self.h * self.n * height, device=self.device)
        self.sums = made(self.linear.shape[1], self.m)  # of P̃, as of `linear`
        self.shift, self.total, self.logs, self.bent = (made(self.m) for _ in range(4))
        self.near = made(3, self.m)
        self.mean = made(*kept.mean.shape[1:])
        self.largest = torch.full_like(self.mean, NEVER)
        self.received = made(self.n, dtype=torch.float64)
        self.top_keys = made(self.m, self.top, dtype=torch.int32)
        self.top_weights = made(self.m, self.top)

    def run(self) -> None:
        """Go over all strips."""
        for block in self.blocks:
            first, end = self.scoring.visible.columns(block.rows, self.scoring.key.shape[1])
            if first < end:
                start = first // self.cell * self.cell
                self._strip(block, slice(start, -(-end // self.cell) * self.cell))
            elif self.sinks is not None:
                self.total[:, block.rows] = 1
                self.shift[:, block.rows] = self.sinks[:, block.rows]

    def _strip(self, block: Block, columns: slice) -> None:
        rows, shape = block.rows, (self.h, columns.stop - columns.start, block.height)
        size = shape[0] * shape[1] * shape[2]
        S, P = (room[:size].view(shape) for room in self.rooms)
        torch.bmm(self.K[:, columns], self.Q[:, :, rows], out=S)
        self.scoring.bend(S.mT, self.heads, rows, columns)
        self._hide(S, rows, columns)
        highest = S.view(self.h, -1, self.cell, block.height).amax(2)  # (h, cells, rows)
        self._shift(S, highest, rows)
        torch.exp2(S, out=P)
        self.linear[:, 1:3] = self.away[:, self.m - rows.start :][:, : self.n]
        sums = torch.bmm(self.linear[..., columns].expand(self.h, -1, -1), P)
        self.sums[..., rows] = sums
        total = sums[:, 0]
        if self.sinks is not None:
            total = total + torch.exp2(self.sinks[:, rows] - self.shift[:, rows])
        self.total[:, rows] = total
        inverse = total.clamp(min=1e-30).reciprocal()  # that of an empty row multiplies 0
        self._pool(P, highest, inverse, block, columns)
        self._neighbours(P, rows, columns)
        if self.top:
            self._largest(S, highest, inverse, rows, columns.start)
        self.bent[:, rows] += P.mul_(S).sum(1)

    def _hide(self, S: Tensor, rows: slice, columns: slice) -> None:
        """Write NEVER where the rule hides a key; the key of a strip's row moves on with it."""
        visible, height = self.scoring.visible, S.shape[2]
        here = rows.start + visible.offset - columns.start
        if visible.after is not None:
            _cut(S, here + visible.after + 1, _corner(height, True, S.device))
            S[:, max(0, here + visible.after + height) :] = NEVER
        if visible.before is not None:
            S[:, : max(0, here - visible.before)] = NEVER
            _cut(S, here - visible.before, _corner(height, False, S.device))
        if self.gaps:
            S.index_fill_(1, self.unread[columns].nonzero()[:, 0], NEVER)

    def _shift(self, S: Tensor, highest: Tensor, rows: slice) -> None:
        """Take the largest of each row from it, where otherwise 2^S might overflow or vanish."""
        top = highest.amax(1)
        if self.sinks is not None:
            top = torch.maximum(top, self.sinks[:, rows])
        low, high = top.aminmax()
        if max(-float(low), float(high)) > SAFE:
            top = top.masked_fill(top <= NEVER / 2, 0)
            S -= top[:, None]
            highest -= top[:, None]
            self.shift[:, rows] = top

    def _pool(
        self, P: Tensor, highest: Tensor, inverse: Tensor, block: Block, columns: slice
    ) -> None:
        """Add what the keys receive; join cells."""
        cells = slice(block.cell, block.cell + block.cells)
        across = slice(columns.start // self.cell, columns.stop // self.cell)
        weights = inverse[:, None] * _diagonal(block.cells, block.height, P.device)
        given = torch.bmm(weights, P.mT)  # (h, cells, keys)
        self.received[:, columns] += given.sum(1)
        self.mean[:, cells, across] += given.view(*given.shape[:2], -1, self.cell).sum(-1)
        logs = highest + inverse.log2()[:, None]
        largest = logs.view(*logs.shape[:2], block.cells, -1).amax(-1).mT
        kept = self.largest[:, cells, across]
        torch.maximum(kept, largest, out=kept)

    def _neighbours(self, P: Tensor, rows: slice, columns: slice) -> None:
        """Take note of the weights of single keys, and of the distances within the strip."""
        height, width = P.shape[2], P.shape[1]
        here = rows.start + self.scoring.visible.offset - columns.start
        keys = torch.arange(here, here + height, device=self.device).expand(3, -1).clone()
        keys[1] -= 1
        keys[2] = -columns.start
        taken = P.gather(1, keys.clamp(0, width - 1).expand(self.h, -1, -1))
        self.near[..., rows] = taken * ((keys >= 0) & (keys < width))
        # j - i = (j - here) - (i - here) has the wrong sign where here ≤ j < i.
        low, high = max(0, here), min(width, here + height)
        if low < high:
            behind = _behind(height, P.device)[low - here : high - here]
            self.logs[:, rows] = (P[:, low:high] * behind).sum(1)

    def _largest(
        self, S: Tensor, highest: Tensor, inverse: Tensor, rows: slice, start: int
    ) -> None:
        """Keep the largest of each row: they lie in the cells with the largest maxima.

        Each is the maximum of its cell, or stands behind a larger one in it.
        """
        cell, k = self.cell, self.top
        chosen = highest.topk(min(k, highest.shape[1]), dim=1).indices
        lots = S.view(self.h, -1, cell, S.shape[2])
        inside = lots.gather(1, chosen[:, :, None].expand(-1, -1, cell, -1)).flatten(1, 2)
        found, at = inside.topk(min(k, inside.shape[1]), dim=1)
        keys = chosen.gather(1, at // cell) * cell + at % cell + start
        keys = keys.masked_fill(found <= NEVER / 2, -1)
        k = found.shape[1]
        self.top_keys[:, rows, :k] = keys.mT.int()
        self.top_weights[:, rows, :k] = (found.exp2() * inverse[:, None]).mT
        self.top_keys[:, rows, k:] = -1

    def keep(self, kept: Kept) -> None:
        """Divide by the sums over rows, and put what was found where it belongs."""
        heads, n = self.heads, kept.received.shape[1]
        inverse = self.total.clamp(min=1e-30).reciprocal()
        mass, away, side = (self.sums[:, :3] * inverse[:, None]).unbind(1)
        within = torch.cat([torch.arange(b.height, device=self.device) for b in self.blocks])
        kept.lse[heads] = (self.total.log2() + self.shift) * log(2)
        kept.entropy[heads] = -inverse.log2() * mass - self.bent * inverse
        kept.distance[heads] = away + within * side + self.logs * inverse
        kept.near[heads] = self.near * inverse[:, None]
        kept.mean[heads], kept.largest[heads] = self.mean, self.largest.exp2()
        kept.received[heads] = self.received[:, :n]
        kept.top_keys[heads], kept.top_weights[heads] = self.top_keys, self.top_weights
        sums = self.sums[:, 3:]
        if kept.marks is not None:
            kept.marked[heads] = sums[:, 0] * inverse
            sums = sums[:, 1:]
        if kept.value is not None:
            torch.mul(sums.mT, inverse[..., None], out=kept.attended[heads])


def _cut(S: Tensor, at: int, hidden: Tensor) -> None:
    """Write NEVER in the square that begins at key `at`, as far as it lies in the strip."""
    low, high = max(0, at), min(S.shape[1], at + len(hidden))
    if low < high:
        S[:, low:high].masked_fill_(hidden[low - at : high - at], NEVER)


@lru_cache(maxsize=16)
def _corner(height: int, after: bool, device: torch.device) -> Tensor:
    """Return which keys a border that moves on with the rows hides, (keys, rows)."""
    square = torch.ones(height, height, dtype=torch.bool, device=device)
    return square.tril() if after else square.triu(1)


@lru_cache(maxsize=16)
def _behind(height: int, device: torch.device) -> Tensor:
    """Return twice how far each row is behind a key in the strip's own square, (keys, rows)."""
    at = torch.arange(height, device=device)
    return 2.0 * (at - at[:, None]).clamp(min=0)


@lru_cache(maxsize=16)
def _diagonal(cells: int, height: int, device: torch.device) -> Tensor:
    """Return which rows belong to which cell of a strip, (cells, rows)."""
    return torch.eye(cells, device=device).repeat_interleave(height // cells, dim=1)
