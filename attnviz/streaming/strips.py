"""Short maps: strips of some rows with all their keys, from one product q kᵀ for everything.

A strip lies on its side, (h, keys, rows). So the keys of a cell are rows of it, which are reduced
fast; a causal strip is the first of them; and all that is linear in the weights, the attention
vectors among it, is one product from the left.
"""

from __future__ import annotations

from functools import lru_cache
from math import isqrt, log

import torch
from torch import Tensor

from attnviz.progress import track
from attnviz.streaming.kept import Kept
from attnviz.streaming.scoring import LOG2_E, NEVER, Scoring
from attnviz.streaming.tiles import Block, blocks

KEYS = 16384  # beyond this, a strip takes too much memory
SCORES = 2**18  # of a strip of several heads: what a core's cache can hold, and worth the calls
ROWS = 128  # of a strip, also where long ones leave the cache: products want that many
FEW = 8  # rows of cells, for which a product is faster than sums
SAFE = 2.0**64  # a row of a sum up to this, or down to 1 by this, loses nothing
TINY = 1e-30  # less than any sum but 0


def go_over(scoring: Scoring, kept: Kept) -> None:
    """Fill in what is kept, strip by strip."""
    H, m, n = scoring.shape
    empty = scoring.visible.empty(m, n, scoring.query.device)
    rows = min(m, ROWS)
    size = min(H, max(1, SCORES // (rows * n)))
    strips = _Strips(scoring, kept, rows, size)
    for start in track(range(0, H, size)):
        heads = slice(start, min(start + size, H))
        strips.run(heads)
        # Nearly always true, and a look at every strip would cost more than this seldom repeat.
        if not strips.sound(empty):
            strips.run(heads, shifted=True)
        strips.keep()


class _Strips:
    """The strips of some heads at a time, with P̃ = 2^S, not yet divided by its sum over a row.

    All room is taken once: fresh memory costs more than what is written to it.
    """

    def __init__(self, scoring: Scoring, kept: Kept, most: int, size: int) -> None:
        _, m, n = scoring.shape
        self.scoring, self.kept, self.m, self.cell = scoring, kept, m, kept.cell
        self.n, self.device = -(-n // kept.cell) * kept.cell, scoring.query.device
        self.blocks = list(blocks(m, kept.cell, most))
        self.columns = [self._columns(block) for block in self.blocks]
        single, self.seen = self._single()
        self.single = single.expand(size, -1, -1)
        self.unread = torch.ones(self.n, dtype=torch.bool, device=self.device)
        self.unread[:n] = False if scoring.visible.keys is None else ~scoring.visible.keys
        self.gaps = bool(self.unread.any())
        away = torch.arange(self.n + m, device=self.device) - m - scoring.visible.offset
        self.away = torch.stack([away.abs(), torch.where(away < 0, 1, -1)]).float()

        def made(*shape: int) -> Tensor:
            return torch.zeros(size, *shape, device=self.device)

        d, extra = scoring.query.shape[2], kept.attended.shape[2]
        height = max(block.height for block in self.blocks)
        self.rooms = [made(self.n * height).flatten() for _ in range(2)]
        self.all_queries, self.all_keys = made(m, d), made(self.n, d)
        # What is summed over the weights of each row: one; how far the key is from the first row
        # of the strip, and the sign of that, written for every strip; whether marked; its value.
        self.all_linear = made(4 + extra, self.n)
        self.all_linear[:, 0] = 1
        if kept.marks is not None:
            self.all_linear[:, 3, :n] = kept.marks.float()
        self.all_sums, self.all_received = made(4 + extra, m), made(self.n)
        self.all_shift, self.all_behind = made(m), made(m)

    def _begin(self, heads: slice, shifted: bool) -> None:
        """Take up some heads.

        shifted : whether S are the scores · log₂e less the largest of their row, or these.
        """
        scoring, kept, n, h = (
            self.scoring,
            self.kept,
            self.scoring.shape[2],
            heads.stop - heads.start,
        )
        self.heads, self.h, self.shifted = heads, h, shifted
        K, Q, self.linear = self.all_keys[:h], self.all_queries[:h], self.all_linear[:h]
        K[:, :n] = scoring.read_by(heads, scoring.key)
        Q.copy_(scoring.query[heads]).mul_(scoring.scale * (LOG2_E if scoring.plain else 1))
        if kept.value is not None:
            self.linear[:, 4:, :n] = scoring.read_by(heads, kept.value).mT
        self.K, self.Q, self.from_here = K, Q.mT, self.linear[:, 1:3]
        self.sums, self.received = self.all_sums[:h].zero_(), self.all_received[:h].zero_()
        self.shift, self.behind = self.all_shift[:h].zero_(), self.all_behind[:h].zero_()
        self.mean, self.largest = kept.mean[heads].zero_(), kept.largest[heads].fill_(NEVER)
        self.near, self.entropy = kept.near[heads], kept.entropy[heads]
        self.sinks = None
        if scoring.sinks is not None:
            by_row = scoring.sinks if scoring.sinks.dim() == 2 else scoring.sinks[:, None]
            self.sinks = by_row[heads].float().expand(h, self.m) * LOG2_E
            if shifted:
                self.shift.copy_(self.sinks)

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

    def run(self, heads: slice, shifted: bool = False) -> None:
        """Go over all strips of some heads."""
        self._begin(heads, shifted)
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
        self.from_here.copy_(self.away.narrow(1, self.m - rows.start, self.n))
        sums = self.sums[..., rows]
        torch.bmm(self.linear[..., columns], P, out=sums)
        inverse = self._inverse(sums[:, 0], rows)
        self._pool(P, highest, inverse, block, columns)
        torch.gather(P, 1, self.single[:h, :, rows], out=self.near[..., rows])
        self._add_behind(P, rows, columns.start)
        if self.kept.top:
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
        if block.cells <= FEW:
            weights = inverse[:, None] * _diagonal(block.cells, block.height, P.device)
            given = torch.bmm(weights, P.mT)  # (h, cells, keys)
            self.received[:, columns] += given.sum(1)
            mean = given.view(*given.shape[:2], -1, self.cell).sum(-1)
        else:
            self.received[:, columns] += torch.bmm(P, inverse[..., None])[..., 0]
            joined = P.view(self.h, -1, self.cell, block.height).sum(2) * inverse[:, None]
            mean = joined.view(*joined.shape[:2], block.cells, -1).sum(-1).mT
        self.mean[:, cells, across] += mean
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
        """Keep the largest weights of each row and their keys."""
        found, keys = _find(S, self.kept.top, self.cell, highest)
        keys = (keys + start).masked_fill(found <= NEVER / 2, -1)
        k = found.shape[1]
        top_keys, top_weights = self.kept.top_keys[self.heads], self.kept.top_weights[self.heads]
        top_keys[:, rows, :k] = keys.mT.int()
        top_weights[:, rows, :k] = (found.exp2() * inverse[:, None]).mT

    def keep(self) -> None:
        """Divide by the sums over rows, and put what was found where it belongs."""
        heads, kept = self.heads, self.kept
        total = self._total(self.sums[:, 0], slice(None))
        inverse = self._inverse(self.sums[:, 0], slice(None))
        mass, away, side, marked = (self.sums[:, :4] * inverse[:, None]).unbind(1)
        within = torch.cat([torch.arange(b.height, device=self.device) for b in self.blocks])
        kept.lse[heads] = (total.log2() + self.shift) * log(2)
        kept.entropy[heads] = -inverse.log2() * mass - self.entropy * inverse
        kept.distance[heads] = away + within * side + self.behind * inverse
        kept.near[heads] *= self.seen * inverse[:, None]
        kept.largest[heads] = self.largest.exp2_()
        kept.received[heads] = self.received[:, : kept.received.shape[1]]
        kept.marked[heads] = marked
        torch.mul(self.sums[:, 4:].mT, inverse[..., None], out=kept.attended[heads])


def _cut(S: Tensor, at: int, hidden: Tensor) -> None:
    """Write NEVER in the square that begins at key `at`, as far as it lies in the strip."""
    low, high = max(0, at), min(S.shape[1], at + len(hidden))
    if low < high:
        S[:, low:high].masked_fill_(hidden[low - at : high - at], NEVER)


def _find(S: Tensor, k: int, size: int, highest: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the k largest of (h, keys, rows) over the keys, and where they are, (h, k, rows).

    They lie in the k lots with the largest maxima: each is the maximum of its lot, or stands behind
    a larger one in it. Only these lots are looked through, in smaller lots.

    size : of a lot, by which the keys can be divided. highest : (h, lots, rows), the maxima.
    """
    if size == 1:
        found, at = S.topk(min(k, S.shape[1]), dim=1)
        return found, at
    lots = S.view(len(S), -1, size, S.shape[2])
    chosen = (lots.amax(2) if highest is None else highest).topk(min(k, lots.shape[1]), dim=1)[1]
    inside = lots.gather(1, chosen[:, :, None].expand(-1, -1, size, -1)).flatten(1, 2)
    smaller = [each for each in range(2, isqrt(size) + 1) if size % each == 0] if size > 8 else []
    found, at = _find(inside, k, smaller[-1] if smaller else 1)
    return found, chosen.gather(1, at // size) * size + at % size


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
