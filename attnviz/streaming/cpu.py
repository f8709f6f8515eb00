"""Maps on a CPU, reduced by loops that numba compiles, where numba is installed.

The scores of a block of rows are a product by torch; `numba_kernels` reduces them in one pass.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from copy import copy
from dataclasses import dataclass
from functools import lru_cache, partial
from threading import Barrier, Event, Lock, local
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from attnviz.runtime.progress import track
from attnviz.streaming.buffers import MapBuffers
from attnviz.streaming.scores import LOG2_E, NEVER, ScoreSpec

T = TypeVar("T")
LEAST = 2**18  # scores of a map for which loading the compiled loops pays
KEYS = 16384  # beyond this, a whole row of scores takes too much memory
SCORES = 2**18  # of a tile: what fits a core's cache
ROWS = 128, 512  # of a block, at least and at most: enough for a fast product
_FAR = 2**40  # more than any distance
_TIMEOUT = 60.0  # seconds for threads to start
_workspaces = local()
_pool_lock = Lock()


@lru_cache(maxsize=1)
def kernels() -> ModuleType | None:
    """Return the compiled loops; None without numba, or without a place for its cache."""
    try:
        from numba import config

        from attnviz.streaming import numba_kernels
    except (ImportError, OSError, RuntimeError):
        return None
    return None if config.DISABLE_JIT else numba_kernels


def supports(spec: ScoreSpec) -> bool:
    """Return whether the loops can reduce this map, and are worth loading."""
    H, m, n = spec.shape
    return spec.query.device.type == "cpu" and H * m * n >= LEAST and kernels() is not None


def in_one_pass(spec: ScoreSpec) -> bool:
    """Return whether the loops reduce this map without its log-sum-exp."""
    return supports(spec) and spec.shape[2] <= KEYS


def reduce_map(spec: ScoreSpec, buffers: MapBuffers, lse: Tensor | None = None) -> bool:
    """Fill the buffers, block by block; return False if a score is not finite.

    lse : (H, m), natural. Only with it is a block cut into tiles.
    """
    H, m, _ = spec.shape
    threads = torch.get_num_threads()
    plan = _Plan(spec, buffers, lse)
    most = max(1, min(plan.heads, H // threads))
    size = max(size for size in range(1, most + 1) if H % size == 0)
    groups = [slice(start, start + size) for start in range(0, H, size)]
    buffers.largest.fill_(NEVER)

    def reduce_all(heads: slice, stop: Event) -> bool:
        return _HeadGroup(plan, heads).run(range(0, m, plan.rows), stop)

    if len(groups) >= threads:
        finite = all(on_threads([partial(reduce_all, heads) for heads in groups]))
    else:
        results = [_on_all_threads(_HeadGroup(plan, heads), threads) for heads in track(groups)]
        finite = all(results)
    buffers.largest.exp2_()
    return finite


def _on_all_threads(group: _HeadGroup, threads: int) -> bool:
    """Reduce the blocks of some heads on all threads, each with sums of its own."""
    starts = range(0, group.plan.m, group.plan.rows)
    count = min(threads, len(starts))
    copies = [group.with_new_sums() for _ in range(count)]
    finite = on_threads([partial(c.run, starts[i::count]) for i, c in enumerate(copies)])
    for thread_copy in copies:
        group.sums.add(thread_copy.sums)
    return all(finite)


class _Plan:
    """What all blocks of a map share.

    Attributes
    ----------
    rows, heads : int
        Of a block, at most.
    step : int
        Keys of a tile.
    before, after, read, marks
        The mask rule and the marked keys, as the loops take them.
    empty : array
        (m,), which rows may read nothing.
    sinks : array
        (H, m), in units of log₂.
    has_terms : bool
        Whether more than the product makes the scores.
    factor : float
        By what to multiply the queries.
    """

    def __init__(self, spec: ScoreSpec, buffers: MapBuffers, lse: Tensor | None) -> None:
        compiled = kernels()
        assert compiled is not None
        self.spec, self.buffers, self.lse, self.kernels = spec, buffers, lse, compiled
        rule, (H, self.m, self.n) = spec.visible, spec.shape
        least, most = ROWS
        if lse is None:  # with a mask rule, much of a long block would be hidden
            most = least if (rule.before, rule.after) != (None, None) else SCORES // self.n
        self.rows = min(self.m, ROWS[1], max(least, most))
        self.heads = max(1, SCORES // (self.rows * self.n))
        self.step = self.n if lse is None else max(1, SCORES // self.rows)
        self.before, self.after = (
            _FAR if distance is None else distance for distance in (rule.before, rule.after)
        )
        self.read, self.marks = _flags(rule.keys), _flags(buffers.marks)
        self.empty = rule.empty(self.m, self.n, spec.query.device).numpy()
        sinks = torch.full((H, self.m), NEVER)
        if (by_row := spec.sinks_by_row) is not None:
            sinks.copy_(by_row).mul_(LOG2_E)
            self.empty = np.zeros_like(self.empty)  # every row reads at least the sink
        self.sinks = sinks.numpy()
        self.has_terms = not spec.plain or spec.bias is not None
        self.factor = spec.scale * (LOG2_E if spec.plain else 1)

    def tiles(self, rows: slice) -> Iterator[slice]:
        """Yield the keys of each tile of some rows."""
        first, end = self.spec.visible.columns(rows, self.n)
        for start in range(first, end, self.step):
            yield slice(start, min(start + self.step, end))


def _flags(keys: Tensor | None) -> Any:
    """Return flags of keys as the loops take them; an empty array where all keys are alike."""
    return np.zeros(0, bool) if keys is None else keys.numpy()


@dataclass(frozen=True, eq=False)
class _Sums:
    """What blocks of some heads add up, as `numba_kernels.pool` takes it."""

    received: Tensor
    mean: Tensor
    largest: Tensor

    def new(self) -> _Sums:
        return _Sums(
            torch.zeros_like(self.received),
            torch.zeros_like(self.mean),
            torch.full_like(self.largest, NEVER),
        )

    def add(self, other: _Sums) -> None:
        self.received.add_(other.received)
        self.mean.add_(other.mean)
        torch.maximum(self.largest, other.largest, out=self.largest)

    @property
    def arrays(self) -> tuple[Any, ...]:
        return self.received.numpy(), self.mean.numpy(), self.largest.numpy()


class _HeadGroup:
    """Some heads of a map: their keys (h, n, d), values (h, n, d_v) and outputs."""

    def __init__(self, plan: _Plan, heads: slice) -> None:
        buffers = plan.buffers
        self.plan, self.heads, self.h = plan, heads, heads.stop - heads.start
        self.keys = self._expand(plan.spec.key)
        self.values = None if buffers.value is None else self._expand(buffers.value)
        self.sums = _Sums(buffers.received[heads], buffers.mean[heads], buffers.largest[heads])
        self.near = buffers.near[heads].numpy()
        by_row = buffers.lse, buffers.entropy, buffers.distance, buffers.marked
        self.by_row = [tensor[heads].numpy() for tensor in by_row]
        top = buffers.top_keys, buffers.top_weights
        self.top = [tensor[heads].numpy() for tensor in top]
        self.attended = buffers.attended.transpose(0, 1).numpy()  # as it lies in memory

    def _expand(self, tensor: Tensor) -> Tensor:
        expanded = self.plan.spec.expand_shared(self.heads, tensor).float()
        return expanded.expand(self.h, -1, -1).contiguous()

    def with_new_sums(self) -> _HeadGroup:
        """Return the same heads with sums of their own."""
        group = copy(self)
        group.sums = self.sums.new()
        return group

    def run(self, starts: Sequence[int], stop: Event) -> bool:
        """Reduce the blocks of rows that start there; return whether all results are finite."""
        workspace = _workspace(self.h * self.plan.rows * min(self.plan.n, self.plan.step))
        finite, block = True, None
        for start in starts:
            if stop.is_set():
                break
            height = min(self.plan.rows, self.plan.m - start)
            if block is None or block.height != height:
                block = _RowBlock(self, height, workspace)
            finite &= block.reduce(start)
        return finite


class _RowBlock:
    """Buffers for some rows of some heads, and for what is summed over their keys.

    Attributes
    ----------
    Q, A : Tensor
        (h, rows, d) and (h, d_v, rows), as products take and give them.
    shift, total, sums, best : array
        (h, rows), (h, rows), (4, h, rows) and (h, k, rows), as the loops take them.
    """

    def __init__(self, group: _HeadGroup, height: int, workspace: Tensor) -> None:
        self.group, self.plan, self.height, self.workspace = group, group.plan, height, workspace
        buffers, h = self.plan.buffers, group.h
        self.kernels = group.plan.kernels
        self.Q = torch.empty(h, height, group.keys.shape[2])
        self.A = torch.empty(h, buffers.attended.shape[2], height)
        self.shift, self.total = np.zeros((2, h, height), np.float32)
        self.sums = np.zeros((4, h, height), np.float32)
        self.best = np.empty((h, min(buffers.top, self.plan.n), height), np.int64)

    def reduce(self, start: int) -> bool:
        """Reduce the rows from `start` on; return whether all results are finite."""
        kernels, group, buffers = self.kernels, self.group, self.plan.buffers
        rows = slice(start, start + self.height)
        tiles = self._begin(rows)
        for number, columns in enumerate(tiles):
            S = self._scores(rows, columns)
            tile = S.numpy()
            if k := self.best.shape[1]:
                chunk = max(1, round((tile.shape[1] / k) ** 0.5))
                kernels.find_largest(tile, columns.start, chunk, self.best)
            cell_sums, cell_maxima = self._weigh(tile, columns)
            if not self._divide():
                top = self._scores(rows, columns).amax(1).numpy()
                np.maximum(top, self.sinks, out=self.shift)
                self.shift[self.shift <= NEVER / 2] = 0
                self.sums.fill(0)
                cell_sums, cell_maxima = self._weigh(tile, columns)
                self._divide()
            if group.values is not None:
                V = group.values[:, columns].mT
                torch.baddbmm(self.A, V, S, beta=min(number, 1), out=self.A)
            kernels.pool(
                tile, columns.start, self.row_key, start, self.total, buffers.cell,
                cell_sums, cell_maxima, *group.sums.arrays, group.near,
            )  # fmt: skip
        if buffers.top:
            kernels.unpack(self.best, self.shift, self.total, start, *group.top)
        if group.values is not None:
            kernels.write_output(
                self.A.numpy(), self.total, start, group.heads.start, group.attended
            )
        return bool(kernels.finish(self.sums, self.shift, self.total, start, *group.by_row))

    def _begin(self, rows: slice) -> list[slice]:
        """Prepare for some rows; return the keys of their tiles."""
        plan, heads = self.plan, self.group.heads
        self.row_key = rows.start + plan.spec.visible.offset
        self.Q.copy_(plan.spec.query[heads, rows]).mul_(plan.factor)
        self.sums.fill(0)
        self.best.fill(self.kernels.NO_KEY)
        self.sinks, self.empty = plan.sinks[heads, rows].copy(), plan.empty[rows]
        tiles = list(plan.tiles(rows))
        if plan.lse is not None:
            lse = plan.lse[heads, rows].float().numpy()
            self.total[:] = lse != -np.inf
            self.shift[:] = np.where(self.total, lse * LOG2_E, 0)
        elif tiles:
            self.shift.fill(0)
        else:  # sinks only
            self.shift[:] = np.where(self.sinks > NEVER / 2, self.sinks, 0)
            self._divide()
        if not tiles:
            self.A.zero_()
        return tiles

    def _scores(self, rows: slice, columns: slice) -> Tensor:
        """Return the scores · log₂e of a tile, (h, keys, rows), NEVER where they are hidden."""
        group, plan = self.group, self.plan
        shape = group.h, columns.stop - columns.start, self.height
        S = self.workspace[: shape[0] * shape[1] * shape[2]].view(shape)
        torch.bmm(group.keys[:, columns], self.Q.mT, out=S)
        if plan.has_terms:
            plan.spec.add_terms(S.mT, group.heads, rows, columns)
        if plan.spec.visible.hides(rows, columns, plan.n):
            rule = plan.before, plan.after, plan.read
            self.kernels.hide(S.numpy(), columns.start, self.row_key, *rule)
        return S

    def _weigh(self, tile: Any, columns: slice) -> tuple[Any, Any]:
        """Turn scores into unnormalized weights; return the sum and the maximum of each cell."""
        cell = self.plan.buffers.cell
        cells = (columns.stop - 1) // cell - columns.start // cell + 1
        cell_sums, cell_maxima = np.empty((2, len(tile), cells, self.height), np.float32)
        self.kernels.weigh(
            tile, columns.start, self.row_key, self.shift, cell, self.plan.marks,
            cell_sums, cell_maxima, self.sums,
        )  # fmt: skip
        return cell_sums, cell_maxima

    def _divide(self) -> bool:
        """Compute the sum of each row; return whether it is precise enough to divide by."""
        if self.plan.lse is not None:
            return True
        return bool(self.kernels.divide(self.sums, self.sinks, self.shift, self.empty, self.total))


def _workspace(numbers: int) -> Tensor:
    """Return memory for scores, which each thread reuses: fresh memory is as slow as the work."""
    workspace: Tensor | None = getattr(_workspaces, "scores", None)
    if workspace is None or len(workspace) < numbers:
        with torch.inference_mode(False):  # otherwise it could be used in that mode only
            workspace = _workspaces.scores = torch.empty(numbers)
    return workspace[:numbers]


def on_threads(tasks: Sequence[Callable[[Event], T]]) -> list[T]:
    """Return the result of each task, as many at once as torch has threads.

    A task takes an event that tells it to stop: another task failed, or nobody waits any more.
    """
    count, stop = torch.get_num_threads(), Event()
    if min(count, len(tasks)) == 1:
        with torch.no_grad():
            return [task(stop) for task in track(tasks)]
    inference = torch.is_inference_mode_enabled()

    def run(task: Callable[[Event], T]) -> T:
        with torch.inference_mode(inference), torch.no_grad():
            return task(stop)

    with _pool_lock:
        pool = _pool(count)
    futures = [pool.submit(run, task) for task in tasks]
    try:
        return [future.result() for future in track(futures)]
    finally:
        stop.set()
        for future in futures:
            future.cancel()
        wait(futures)


@lru_cache(maxsize=1)
def _pool(count: int) -> ThreadPoolExecutor:
    """Return so many threads, in each of which torch computes with one."""
    started = Barrier(count + 1)

    def start() -> None:
        torch.set_num_threads(1)  # for this thread, and for all threads that have not asked yet
        torch.get_num_threads()  # this thread asks before the number is set again
        started.wait(_TIMEOUT)

    pool = ThreadPoolExecutor(count, "attnviz", start)
    for _ in range(count):
        pool.submit(lambda: None)
    started.wait(_TIMEOUT)
    torch.set_num_threads(count)
    return pool


if hasattr(os, "register_at_fork"):  # a forked process has none of the threads
    os.register_at_fork(after_in_child=_pool.cache_clear)
