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

from attnviz.runtime.progress import track
from attnviz.streaming.buffers import Kept
from attnviz.streaming.rooms import Room, Rooms, Strip
from attnviz.streaming.scores import LOG2_E, NEVER, Scoring
from attnviz.streaming.tiles import alike
from attnviz.streaming.topk import split

KEYS = 16384  # beyond this, a strip takes too much memory
SCORES = 2**18  # of a strip of several heads: what a core's cache can hold, and worth the calls
ROWS = 128  # of a strip, also where long ones leave the cache: products want that many
FEW = 8  # rows of cells, for which a product is faster than sums
SAFE = 2.0**64  # a row of a sum up to this, or down to 1 by this, loses nothing
TINY = 1e-30  # less than any sum but 0


def go_over(scoring: Scoring, kept: Kept, rooms: Rooms) -> None:
    """Fill in what is kept, strip by strip."""
    H, m, n = scoring.shape
    empty = scoring.visible.empty(m, n, scoring.query.device)
    rows = min(m, ROWS)
    groups = alike(H, SCORES // (rows * n))  # all in one room
    strips = _Strips(scoring, kept, rooms.of(scoring, kept, rows, groups[0].stop))
    for heads in track(groups):
        strips.run(heads)
        # Nearly always true, and a look at every strip would cost more than this seldom repeat.
        if not strips.sound(empty):
            strips.run(heads, shifted=True)
        strips.keep()


class _Strips:
    """The strips of some heads at a time, with P̃ = 2^S, not yet divided by its sum over a row."""

    def __init__(self, scoring: Scoring, kept: Kept, room: Room) -> None:
        self.scoring, self.kept, self.room = scoring, kept, room
        self.bent = not scoring.plain or scoring.bias is not None

    def run(self, heads: slice, *, shifted: bool = False) -> None:
        """Go over all strips of some heads.

        shifted : whether S are the scores · log₂e less the largest of their row, or these.
        """
        self._begin(heads, shifted)
        for strip in self.room.strips:
            self._go_over(strip)

    def _begin(self, heads: slice, shifted: bool) -> None:
        scoring, kept, room, n = self.scoring, self.kept, self.room, self.scoring.shape[2]
        self.heads, self.shifted = heads, shifted
        room.keys[:, :n] = scoring.read_by(heads, scoring.key)
        factor = scoring.scale * (LOG2_E if scoring.plain else 1)
        room.queries.copy_(scoring.query[heads]).mul_(factor)
        if kept.value is not None:
            room.linear[:, :n, 4:] = scoring.read_by(heads, kept.value)
        for sums in (room.received, room.mean, room.shift):
            sums.zero_()
        room.largest.fill_(NEVER)
        self.sinks = None
        if (by_row := scoring.sinks_by_row) is not None:
            self.sinks = by_row[heads].expand_as(room.shift) * LOG2_E
            if shifted:
                room.shift.copy_(self.sinks)

    def _go_over(self, strip: Strip) -> None:
        S, P = strip.S, strip.P
        torch.bmm(strip.keys, strip.queries, out=S)
        if self.bent:
            self.scoring.bend(S.mT, self.heads, strip.rows, strip.columns)
        strip.hide()
        torch.amax(strip.lots, 2, out=strip.highest)
        if self.shifted:
            self._shift(strip)
        torch.exp2(S, out=P)
        strip.from_here.copy_(strip.away)
        torch.bmm(strip.linear, P, out=strip.sums)
        inverse = self._inverse(strip.sums[:, 0], strip.rows)
        if self.kept.top:
            self._largest(strip, inverse)
        self._pool(strip, inverse)
        torch.gather(P, 1, strip.single, out=strip.near)
        if strip.own is not None:
            own, behind, summed = strip.own
            torch.sum(own * behind, 1, out=summed)
        torch.sum(P.mul_(S), 1, out=strip.entropy)

    def _total(self, summed: Tensor, rows: slice) -> Tensor:
        """Return by what to divide P̃: its sum, the sink with it."""
        if self.sinks is None:
            return summed
        return summed + torch.exp2(self.sinks[:, rows] - self.room.shift[:, rows])

    def _inverse(self, summed: Tensor, rows: slice) -> Tensor:
        """Return by what to multiply P̃; in an empty row, that is 0."""
        return self._total(summed, rows).clamp(min=TINY).reciprocal_()

    def _shift(self, strip: Strip) -> None:
        """Take the largest of each row from it: 2^S can neither overflow nor vanish."""
        top = strip.highest.amax(1)
        if self.sinks is not None:
            top = torch.maximum(top, self.sinks[:, strip.rows])
        top = top.masked_fill(top <= NEVER / 2, 0)
        strip.S.sub_(top[:, None])
        strip.highest.sub_(top[:, None])
        strip.shift.copy_(top)

    def sound(self, empty: Tensor) -> bool:
        """Whether no row's sum is so large or so small that 2^S might be inexact."""
        total = self._total(self.room.sums[:, 0], slice(None))
        sound = (total > 1 / SAFE) & (total < SAFE)
        return bool((sound if self.sinks is not None else sound | empty).all())

    def _pool(self, strip: Strip, inverse: Tensor) -> None:
        """Add what the keys receive; join cells."""
        P, cells, height = strip.P, strip.block.cells, strip.block.height
        if cells <= FEW:
            weights = inverse[:, None] * _diagonal(cells, height, P.device)
            given = torch.bmm(weights, P.mT)  # (h, cells, keys)
            strip.received.add_(given.sum(1))
            strip.mean.add_(split(given, 2, self.room.cell).sum(-1))
        else:
            strip.received.add_(torch.bmm(P, inverse[..., None])[..., 0])
            joined = P.view_as(strip.lots).sum(2) * inverse[:, None]
            strip.mean.add_(split(joined, 2, height // cells).sum(-1).mT)
        logs = strip.highest.add_(inverse.log2()[:, None])
        largest = split(logs, 2, height // cells).amax(-1).mT
        torch.maximum(strip.largest, largest, out=strip.largest)

    def _largest(self, strip: Strip, inverse: Tensor) -> None:
        """Keep the largest weights of each row and their keys."""
        found, keys = _find(strip.S, self.kept.top, self.room.cell, strip.highest)
        keys = (keys + strip.columns.start).masked_fill(found <= NEVER / 2, -1)
        at = self.heads, strip.rows, slice(found.shape[1])
        self.kept.top_keys[at] = keys.mT.int()
        self.kept.top_weights[at] = (found.exp2() * inverse[:, None]).mT

    def keep(self) -> None:
        """Divide by the sums over rows, and put what was found where it belongs."""
        heads, kept, room = self.heads, self.kept, self.room
        total = self._total(room.sums[:, 0], slice(None))
        inverse = self._inverse(room.sums[:, 0], slice(None))
        mass, away, side, marked = (room.sums[:, :4] * inverse[:, None]).unbind(1)
        within = torch.cat([torch.arange(b.height, device=inverse.device) for b in room.blocks])
        kept.lse[heads] = (total.log2() + room.shift) * log(2)
        kept.entropy[heads] = -inverse.log2() * mass - room.entropy * inverse
        kept.distance[heads] = away + within * side + room.behind * inverse
        kept.near[heads] = room.near * (room.seen * inverse[:, None])
        kept.mean[heads], kept.largest[heads] = room.mean, room.largest.exp2_()
        kept.received[heads] = room.received[:, : kept.received.shape[1]]
        kept.marked[heads] = marked
        torch.mul(room.sums[:, 4:].mT, inverse[..., None], out=kept.attended[heads])


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
def _diagonal(cells: int, height: int, device: torch.device) -> Tensor:
    """Return which rows belong to which cell of a strip, (cells, rows)."""
    return torch.eye(cells, device=device).repeat_interleave(height // cells, dim=1)
