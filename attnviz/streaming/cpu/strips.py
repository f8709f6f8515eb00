"""Strips of rows: their scores as products by torch, reduced by the loops."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from threading import Event, local
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnviz.streaming.cpu.plan import Plan
from attnviz.streaming.scores import LOG2_E, NEVER

_mine = local()


@dataclass(frozen=True, eq=False)
class Sums:
    """What strips add up over rows, for some heads: as `pool` has it."""

    received: Tensor
    mean: Tensor
    largest: Tensor

    def apart(self) -> Sums:
        """Return the same with nothing in it."""
        return Sums(
            torch.zeros_like(self.received),
            torch.zeros_like(self.mean),
            torch.full_like(self.largest, NEVER),
        )

    def add(self, other: Sums) -> None:
        """Add what is in another."""
        self.received.add_(other.received)
        self.mean.add_(other.mean)
        torch.maximum(self.largest, other.largest, out=self.largest)

    @property
    def arrays(self) -> tuple[Any, ...]:
        """The same, as the loops take them."""
        return self.received.numpy(), self.mean.numpy(), self.largest.numpy()


class Strips:
    """The strips of some heads: their keys (h, n, d) and values (h, n, d_v)."""

    def __init__(self, plan: Plan, heads: slice) -> None:
        kept = plan.kept
        self.plan, self.heads, self.h = plan, heads, heads.stop - heads.start
        self.keys = self._read(plan.scoring.key)
        self.values = None if kept.value is None else self._read(kept.value)
        self.own = Sums(kept.received[heads], kept.mean[heads], kept.largest[heads])
        self.near = kept.near[heads].numpy()
        by_row = kept.lse, kept.entropy, kept.distance, kept.marked
        self.by_row = [each[heads].numpy() for each in by_row]
        self.found = [each[heads].numpy() for each in (kept.top_keys, kept.top_weights)]
        self.attended = kept.attended.transpose(0, 1).numpy()  # as it lies in memory

    def _read(self, each: Tensor) -> Tensor:
        own = self.plan.scoring.read_by(self.heads, each).float()
        return own.expand(self.h, -1, -1).contiguous()

    def apart(self) -> Strips:
        """Return the same, which adds up by itself."""
        strips = copy(self)
        strips.own = self.own.apart()
        return strips

    def run(self, starts: Sequence[int], stop: Event) -> bool:
        """Go over the strips that start there; return whether all that is kept is finite."""
        room = _room(self.h * self.plan.rows * min(self.plan.n, self.plan.step))
        finite, strip = True, None
        for start in starts:
            if stop.is_set():
                break
            height = min(self.plan.rows, self.plan.m - start)
            if strip is None or strip.height != height:
                strip = _Strip(self, height, room)
            finite &= strip.reduce(start)
        return finite


class _Strip:
    """Room for some rows of some heads, and for what is summed over their keys.

    Attributes
    ----------
    Q (h, rows, d), A (h, d_v, rows) : as products have them. shift, total (h, rows), sums
    (4, h, rows), best (h, k, rows) : as the loops have them.
    """

    def __init__(self, strips: Strips, height: int, room: Tensor) -> None:
        self.strips, self.plan, self.height, self.room = strips, strips.plan, height, room
        kept, h = self.plan.kept, strips.h
        self.loops = strips.plan.loops
        self.Q = torch.empty(h, height, strips.keys.shape[2])
        self.A = torch.empty(h, kept.attended.shape[2], height)
        self.shift, self.total = np.zeros((2, h, height), np.float32)
        self.sums = np.zeros((4, h, height), np.float32)
        self.best = np.empty((h, min(kept.top, self.plan.n), height), np.int64)

    def reduce(self, start: int) -> bool:
        """Go over the tiles of the rows from there on; return whether what is kept is finite."""
        loops, strips, kept = self.loops, self.strips, self.plan.kept
        rows = slice(start, start + self.height)
        tiles = self._begin(rows)
        for at, columns in enumerate(tiles):
            S = self._scores(rows, columns)
            tile = S.numpy()
            if k := self.best.shape[1]:
                lot = max(1, round((tile.shape[1] / k) ** 0.5))
                loops.find_largest(tile, columns.start, lot, self.best)
            given, highest = self._weigh(tile, columns)
            if not self._divide():
                top = self._scores(rows, columns).amax(1).numpy()
                np.maximum(top, self.sinks, out=self.shift)
                self.shift[self.shift <= NEVER / 2] = 0
                self.sums.fill(0)
                given, highest = self._weigh(tile, columns)
                self._divide()
            if strips.values is not None:
                V = strips.values[:, columns].mT
                torch.baddbmm(self.A, V, S, beta=min(at, 1), out=self.A)
            places = columns.start, self.here, start
            loops.pool(
                tile,
                *places,
                self.total,
                kept.cell,
                given,
                highest,
                *strips.own.arrays,
                strips.near,
            )
        if kept.top:
            loops.unpack(self.best, self.shift, self.total, start, *strips.found)
        if strips.values is not None:
            loops.hand_on(self.A.numpy(), self.total, start, strips.heads.start, strips.attended)
        return bool(loops.finish(self.sums, self.shift, self.total, start, *strips.by_row))

    def _begin(self, rows: slice) -> list[slice]:
        """Make ready for some rows; return the keys of their tiles."""
        plan, heads = self.plan, self.strips.heads
        self.here = rows.start + plan.scoring.visible.offset
        self.Q.copy_(plan.scoring.query[heads, rows]).mul_(plan.factor)
        self.sums.fill(0)
        self.best.fill(self.loops.NO_KEY)
        self.sinks, self.empty = plan.sinks[heads, rows].copy(), plan.empty[rows]
        tiles = list(plan.tiles(rows))
        if plan.lse is not None:
            lse = plan.lse[heads, rows].float().numpy()
            self.total[:] = lse != -np.inf
            self.shift[:] = np.where(self.total, lse * LOG2_E, 0)
        elif tiles:
            self.shift.fill(0)
        else:  # nothing but sinks
            self.shift[:] = np.where(self.sinks > NEVER / 2, self.sinks, 0)
            self._divide()
        if not tiles:
            self.A.zero_()
        return tiles

    def _scores(self, rows: slice, columns: slice) -> Tensor:
        """Return the scores · log₂e of a tile, (h, keys, rows), NEVER where they are hidden."""
        strips, plan = self.strips, self.plan
        shape = strips.h, columns.stop - columns.start, self.height
        S = self.room[: shape[0] * shape[1] * shape[2]].view(shape)
        torch.bmm(strips.keys[:, columns], self.Q.mT, out=S)
        if plan.bent:
            plan.scoring.bend(S.mT, strips.heads, rows, columns)
        if plan.scoring.visible.hides(rows, columns, plan.n):
            rule = plan.before, plan.after, plan.read
            self.loops.hide(S.numpy(), columns.start, self.here, *rule)
        return S

    def _weigh(self, tile: Any, columns: slice) -> tuple[Any, Any]:
        """Turn scores into weights that are not yet divided; return two numbers of each cell."""
        cell = self.plan.kept.cell
        cells = (columns.stop - 1) // cell - columns.start // cell + 1
        given, highest = np.empty((2, len(tile), cells, self.height), np.float32)
        into = given, highest, self.sums
        self.loops.weigh(tile, columns.start, self.here, self.shift, cell, self.plan.marks, *into)
        return given, highest

    def _divide(self) -> bool:
        """Find by what to divide the weights; return whether these can be trusted."""
        if self.plan.lse is not None:
            return True
        of_rows = self.sums, self.sinks, self.shift, self.empty, self.total
        return bool(self.loops.divide(*of_rows))


def _room(numbers: int) -> Tensor:
    """Return room for scores, which each thread keeps: to touch fresh memory takes as long."""
    kept: Tensor | None = getattr(_mine, "room", None)
    if kept is None or len(kept) < numbers:
        with torch.inference_mode(False):  # or it could be used in this mode only
            kept = _mine.room = torch.empty(numbers)
    return kept[:numbers]
