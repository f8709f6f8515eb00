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
SAFE = 2.0**64  # a row of a sum up to this, or down to 1 by this, loses nothing
TINY = 1e-30  # less than any sum but 0


def go_over(scoring: Scoring, kept: Kept) -> None:
    """Fill in what is kept, strip by strip."""
    _, m, n = scoring.shape
    empty = scoring.visible.empty(m, n, scoring.query.device)
    rows = min(m, max(ROWS[0], min(ROWS[1], SCORES // n)))
    for heads in together(scoring, rows * n, SCORES):
        strips = _Strips(scoring, heads, kept, rows)
        strips.run()
        # Nearly always true, and a look at every strip would cost more than this seldom repeat.
        if not strips.sound(empty):
            strips = _Strips(scoring, heads, kept, rows, shifted=True)
            strips.run()
        strips.keep(kept)


class _Strips:
    """The strips of some heads, with P̃ = 2^S, not yet divided by its sum over a row.

    shifted : whether S are the scores · log₂e less the largest of their row, or these themselves.
    """

    def __init__(
        self, scoring: Scoring, heads: slice, kept: Kept, most: int, shifted: bool = False
    ) -> None:
        H, m, n = scoring.shape
        self.scoring, self.heads, self.shifted = scoring, heads, shifted
        self.cell, self.top, self.device = kept.cell, kept.top, scoring.query.device
        self.m, self.n, self.h = m, -(-n // kept.cell) * kept.cell, heads.stop - heads.start
        self.blocks = list(blocks(m, kept.cell, most))
        self.columns = [self._columns(block) for block in self.blocks]
        self.K = self._whole(scoring.read_by(heads, scoring.key)).expand(self.h, -1, -1)
        factor = scoring.scale * (LOG2_E if scoring.plain else 1)
        self.Q = (scoring.query[heads].float() * factor).mT
        self.unread = torch.ones(self.n, dtype=torch.bool, device=self.device)
        self.unread[:n] = False if scoring.visible.keys is None else ~scoring.visible.keys
        self.gaps = bool(self.unread.any())
        self.linear = self._linear(kept.value, kept.marks)
        self.single, self.seen = self._single()
        self.sinks = None
        if scoring.sinks is not None:
            by_row = scoring.sinks if scoring.sinks.dim() == 2 else scoring.sinks[:, None]
            self.sinks = by_row.expand(H, m)[heads].float() * LOG2_E
        self._make_room(kept, max(block.height for block in self.blocks))

    def _columns(self, block: Block) -> slice:
        """Return which keys a strip has: whole cells."""
        first, end = self.scoring.visible.columns(block.rows, self.scoring.key.shape[1])
        start = first // self.cell * self.cell
        return slice(start, -(-end // self.cell) * self.cell if first < end else start)

    def _single(self) -> tuple[Tensor, Tensor]:
        """Return where each row finds itself, the previous, the first key in its strip; whether."""
        rule, n = self.scoring.visible, self.scoring.key.shape[1]
        row = torch.arange(self.m, device=self.device) + rule.offset
        keys = torch.stack([row, row - 1, torch.zeros_like(row)])
        heights = torch.tensor([block.height for block in self.blocks], device=self.device)
        start, stop = (
            torch.tensor(border, device=self.device).repeat_interleave(heights)
            for border in zip(*[(at.start, at.stop) for at in self.columns], strict=True)
        )
        seen = (keys >= start) & (keys < stop) & (keys < n)
        return torch.where(seen, keys - start, 0), seen

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
        return sums.contiguous()

    def _make_room(self, kept: Kept, height: int) -> None:
        def made(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(self.h, *shape, dtype=dtype, device=self.device)

        self.from_here = self.linear[:, 1:3]
        self.rooms = torch.empty(2, self.h * self.n * height, device=self.device)
        self.sums = made(self.linear.shape[1], self.m)  # of P̃, as of `linear`
        self.shift, self.behind, self.entropy = (made(self.m) for _ in range(3))
        if self.shifted and self.sinks is not None:
            self.shift.copy_(self.sinks)
        self.near = made(3, self.m)
        self.mean = made(*kept.mean.shape[1:])
        self.largest = torch.full_like(self.mean, NEVER)
        self.received = made(self.n)
        self.top_keys = made(self.m, self.top, dtype=torch.int32)
        self.top_weights = made(self.m, self.top)

    def run(self) -> None:
        """Go over all strips."""
        for block, columns in zip(self.blocks, self.columns, strict=True):
            if columns.start < columns.stop:
                self._strip(block, columns)

    def _strip(self, block: Block, columns: slice) -> None:
        h, rows, height, width = self.h, block.rows, block.height, columns.stop - columns.start
        S, P = (room[: h * width * height].view(h, width, height) for room in self.rooms)
        torch.bmm(self.K[:, columns], self.Q[..., rows], out=S)
        self.scoring.bend(S.mT, self.heads, rows, columns)
        self._hide(S, rows, columns)
        highest = S.view(h, -1, self.cell, height).amax(2)  # (h, cells, rows)
        if self.shifted:
            self._shift(S, highest, rows)
        torch.exp2(S, out=P)
        self.from_here.copy_(self.away[:, self.m - rows.start :][:, : self.n])
        sums = self.sums[..., rows]
        torch.bmm(self.linear[..., columns].expand(h, -1, -1), P, out=sums)
        inverse = self._inverse(sums[:, 0], rows)
        self._pool(P, highest, inverse, block, columns)
        torch.gather(P, 1, self.single[:, rows].expand(h, -1, -1), out=self.near[..., rows])
        self._add_behind(P, rows, columns.start)
        if self.top:
            self._largest(S, highest, inverse, rows, columns.start)
        torch.sum(P.mul_(S), 1, out=self.entropy[:, rows])

    def _total(self, summed: Tensor, rows: slice) -> Tensor:
        """Return by what to divide P̃: its sum, the sink with it."""
        if self.sinks is None:
            return summed
        return summed + torch.exp2(self.sinks[:, rows] - self.shift[:, rows])

    def _inverse(self, summed: Tensor, rows: slice) -> Tensor:
        """Return by what to multiply P̃; in an empty row, that is 0."""
        return self._total(summed, rows).clamp(min=TINY).reciprocal()

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
        """Take the largest of each row from it: 2^S can neither overflow nor vanish."""
        top = highest.amax(1)
        if self.sinks is not None:
            top = torch.maximum(top, self.sinks[:, rows])
        top = top.masked_fill(top <= NEVER / 2, 0)
        S -= top[:, None]
        highest -= top[:, None]
        self.shift[:, rows] = top

    def sound(self, empty: Tensor) -> bool:
        """Whether no row's sum is so large or so small that 2^S might be inexact."""
        total = self._total(self.sums[:, 0], slice(None))
        sound = (total > 1 / SAFE) & (total < SAFE)
        return bool((sound if self.sinks is not None else sound | empty).all())

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

    def _add_behind(self, P: Tensor, rows: slice, start: int) -> None:
        """Correct the distance of keys in the strip's own square, of which rows are behind.

        i - j = (i - here) - (j - here) is what `linear` gives, with the wrong sign there.
        """
        here = rows.start + self.scoring.visible.offset - start
        low, high = max(0, here), min(P.shape[1], here + P.shape[2])
        if low < high:
            behind = _behind(P.shape[2], P.device)[low - here : high - here]
            torch.sum(P[:, low:high] * behind, 1, out=self.behind[:, rows])

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
        total = self._total(self.sums[:, 0], slice(None))
        inverse = self._inverse(self.sums[:, 0], slice(None))
        mass, away, side = (self.sums[:, :3] * inverse[:, None]).unbind(1)
        within = torch.cat([torch.arange(b.height, device=self.device) for b in self.blocks])
        kept.lse[heads] = (total.log2() + self.shift) * log(2)
        kept.entropy[heads] = -inverse.log2() * mass - self.entropy * inverse
        kept.distance[heads] = away + within * side + self.behind * inverse
        kept.near[heads] = self.near * self.seen * inverse[:, None]
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
