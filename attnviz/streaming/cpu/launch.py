"""Strips of rows: their scores as products by torch, reduced by the loops on all threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from threading import Event, local
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnviz.streaming.cpu.threads import on_threads
from attnviz.streaming.kept import Kept
from attnviz.streaming.scoring import LOG2_E, NEVER, Scoring

LEAST = 2**21  # scores for which it is worth while to load the loops
SCORES = 2**18  # of a tile: what a core's cache can hold
ROWS = 128, 512  # of a strip, at least and at most: products want that many
_FAR = 2**40  # more than any distance
_NO_KEY = -(2**63)  # as the loops have it
_mine = local()


def serves(scoring: Scoring) -> bool:
    """Whether the loops can take this attention, and are worth it."""
    H, m, n = scoring.shape
    return scoring.query.device.type == "cpu" and H * m * n >= LEAST and _loops() is not None


@lru_cache(maxsize=1)
def _loops() -> ModuleType | None:
    """Return the loops, or None where numba is not installed, or finds no place to keep them."""
    try:
        from numba import config

        from attnviz.streaming.cpu import loops
    except (ImportError, RuntimeError):
        return None
    return None if config.DISABLE_JIT else loops


@torch.no_grad()
def go_over(scoring: Scoring, kept: Kept, lse: Tensor | None = None) -> bool:
    """Fill in what is kept, strip by strip; return False where a score is not finite.

    lse : (H, m), natural, where it is known: only then may a strip be cut into tiles.
    """
    H, m, n = scoring.shape
    threads = torch.get_num_threads()
    map_ = _Map(scoring, kept, lse)
    most = max(1, min(SCORES // (map_.rows * n), H // threads))
    size = max(each for each in range(1, most + 1) if H % each == 0)
    groups = [slice(start, start + size) for start in range(0, H, size)]
    kept.largest.fill_(NEVER)

    def whole(heads: slice, stop: Event) -> bool:
        return _Strips(map_, heads).run(range(0, m, map_.rows), stop)

    if len(groups) >= threads:
        finite = all(on_threads([partial(whole, heads) for heads in groups]))
    else:
        shared = [_shared(_Strips(map_, heads), threads) for heads in groups]
        finite = all(shared)
    kept.largest.exp2_()
    return finite


def _shared(strips: _Strips, threads: int) -> bool:
    """Go over the strips of some heads on all threads, each of which adds up by itself."""
    starts = range(0, strips.map.m, strips.map.rows)
    parts = [strips.apart() for _ in range(threads)]
    finite = on_threads([partial(part.run, starts[at::threads]) for at, part in enumerate(parts)])
    for part in parts:
        strips.into.add(part.into)
    return all(finite)


class _Map:
    """What all strips of a map share.

    Attributes
    ----------
    rows : of a strip. step : keys of a tile. before, after, read, marks : as the loops have them.
    empty : (m,), which rows may read nothing. sinks : (H, m), in units of log₂.
    """

    def __init__(self, scoring: Scoring, kept: Kept, lse: Tensor | None) -> None:
        self.scoring, self.kept, self.lse = scoring, kept, lse
        rule, (H, self.m, self.n) = scoring.visible, scoring.shape
        least, most = ROWS
        if lse is None:  # long strips would hold much that a rule hides
            most = least if (rule.before, rule.after) != (None, None) else SCORES // self.n
        self.rows = min(self.m, ROWS[1], max(least, most))
        self.step = self.n if lse is None else max(1, SCORES // self.rows)
        self.before, self.after = (
            _FAR if far is None else far for far in (rule.before, rule.after)
        )
        self.read, self.marks = _flags(rule.keys), _flags(kept.marks)
        self.empty = rule.empty(self.m, self.n, scoring.query.device).numpy()
        sinks = torch.full((H, self.m), NEVER)
        if scoring.sinks is not None:
            by_row = scoring.sinks if scoring.sinks.dim() == 2 else scoring.sinks[:, None]
            sinks.copy_(by_row).mul_(LOG2_E)
        self.sinks = sinks.numpy()
        self.bent = not scoring.plain or scoring.bias is not None
        self.factor = scoring.scale * (LOG2_E if scoring.plain else 1)

    def tiles(self, rows: slice) -> Iterator[slice]:
        """Yield the keys of each tile of some rows."""
        first, end = self.scoring.visible.columns(rows, self.n)
        for start in range(first, end, self.step):
            yield slice(start, min(start + self.step, end))


@dataclass(frozen=True, eq=False)
class _Into:
    """What strips add up over rows, for some heads: as `pool` has it."""

    received: Tensor
    mean: Tensor
    largest: Tensor

    def apart(self) -> _Into:
        """Return the same with nothing in it."""
        return _Into(
            torch.zeros_like(self.received),
            torch.zeros_like(self.mean),
            torch.full_like(self.largest, NEVER),
        )

    def add(self, other: _Into) -> None:
        """Add what is in another."""
        self.received.add_(other.received)
        self.mean.add_(other.mean)
        torch.maximum(self.largest, other.largest, out=self.largest)


class _Strips:
    """The strips of some heads: their keys (h, n, d) and values (h, n, d_v)."""

    def __init__(self, map_: _Map, heads: slice) -> None:
        kept = map_.kept
        self.map, self.heads, self.h = map_, heads, heads.stop - heads.start
        self.keys = self._read(map_.scoring.key)
        self.values = None if kept.value is None else self._read(kept.value)
        self.into = _Into(kept.received[heads], kept.mean[heads], kept.largest[heads])

    def _read(self, each: Tensor) -> Tensor:
        own = self.map.scoring.read_by(self.heads, each).float()
        return own.expand(self.h, -1, -1).contiguous()

    def apart(self) -> _Strips:
        """Return the same, which adds up by itself."""
        strips = object.__new__(_Strips)
        vars(strips).update(vars(self), into=self.into.apart())
        return strips

    def run(self, starts: Sequence[int], stop: Event) -> bool:
        """Go over the strips that start there; return whether all that is kept is finite."""
        self.room = _room(self.h * self.map.rows * min(self.map.n, self.map.step))
        kept, into = self.map.kept, self.into
        near = kept.near[self.heads]
        self.into_arrays = [each.numpy() for each in (into.received, into.mean, into.largest, near)]
        by_row = kept.lse, kept.entropy, kept.distance, kept.marked
        self.by_row = [each[self.heads].numpy() for each in by_row]
        self.found = [each[self.heads].numpy() for each in (kept.top_keys, kept.top_weights)]
        self.attended = kept.attended.transpose(0, 1).numpy()  # as it lies in memory
        finite, strip = True, None
        for start in starts:
            if stop.is_set():
                break
            height = min(self.map.rows, self.map.m - start)
            if strip is None or strip.height != height:
                strip = _Strip(self, height)
            finite &= strip.reduce(start)
        return finite


class _Strip:
    """Room for some rows of some heads, and for what is summed over their keys.

    Attributes
    ----------
    Q (h, rows, d), A (h, d_v, rows) : as products have them. shift, total (h, rows), sums
    (4, h, rows), best (h, k, rows) : as the loops have them.
    """

    def __init__(self, strips: _Strips, height: int) -> None:
        self.strips, self.map, self.height = strips, strips.map, height
        kept, h = self.map.kept, strips.h
        loops = _loops()
        assert loops is not None
        self.loops = loops
        self.Q = torch.empty(h, height, strips.keys.shape[2])
        self.A = torch.empty(h, kept.attended.shape[2], height)
        self.shift, self.total = np.zeros((2, h, height), np.float32)
        self.sums = np.zeros((4, h, height), np.float32)
        self.best = np.empty((h, min(kept.top, self.map.n), height), np.int64)

    def reduce(self, start: int) -> bool:
        """Go over the tiles of the rows from there on; return whether what is kept is finite."""
        loops, strips, kept = self.loops, self.strips, self.map.kept
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
            loops.pool(tile, *places, self.total, kept.cell, given, highest, *strips.into_arrays)
        if kept.top:
            loops.unpack(self.best, self.shift, self.total, start, *strips.found)
        if strips.values is not None:
            loops.hand_on(self.A.numpy(), self.total, start, strips.heads.start, strips.attended)
        return bool(loops.finish(self.sums, self.shift, self.total, start, *strips.by_row))

    def _begin(self, rows: slice) -> list[slice]:
        """Make ready for some rows; return the keys of their tiles."""
        map_, heads = self.map, self.strips.heads
        self.here = rows.start + map_.scoring.visible.offset
        self.Q.copy_(map_.scoring.query[heads, rows]).mul_(map_.factor)
        self.sums.fill(0)
        self.best.fill(_NO_KEY)
        self.sinks, self.empty = map_.sinks[heads, rows].copy(), map_.empty[rows]
        if map_.lse is None:
            self.shift.fill(0)
            self._divide()
        else:
            lse = map_.lse[heads, rows].float().numpy()
            self.total[:] = lse != -np.inf
            self.shift[:] = np.where(self.total, lse * LOG2_E, 0)
        tiles = list(map_.tiles(rows))
        if not tiles:
            self.A.zero_()
        return tiles

    def _scores(self, rows: slice, columns: slice) -> Tensor:
        """Return the scores · log₂e of a tile, (h, keys, rows), NEVER where they are hidden."""
        strips, map_ = self.strips, self.map
        shape = strips.h, columns.stop - columns.start, self.height
        S = strips.room[: shape[0] * shape[1] * shape[2]].view(shape)
        torch.bmm(strips.keys[:, columns], self.Q.mT, out=S)
        if map_.bent:
            map_.scoring.bend(S.mT, strips.heads, rows, columns)
        if map_.scoring.visible.hides(rows, columns, map_.n):
            rule = map_.before, map_.after, map_.read
            self.loops.hide(S.numpy(), columns.start, self.here, *rule)
        return S

    def _weigh(self, tile: Any, columns: slice) -> tuple[Any, Any]:
        """Turn scores into weights that are not yet divided; return two numbers of each cell."""
        cell = self.map.kept.cell
        cells = (columns.stop - 1) // cell - columns.start // cell + 1
        given, highest = np.empty((2, len(tile), cells, self.height), np.float32)
        into = given, highest, self.sums
        self.loops.weigh(tile, columns.start, self.here, self.shift, cell, self.map.marks, *into)
        return given, highest

    def _divide(self) -> bool:
        """Find by what to divide the weights; return whether these can be trusted."""
        if self.map.lse is not None:
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


def _flags(each: Tensor | None) -> Any:
    """Return flags of keys as the loops take them; none where all are alike."""
    return np.zeros(0, bool) if each is None else each.numpy()
