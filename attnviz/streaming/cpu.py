"""Maps on a CPU, reduced by loops that numba compiles, where numba is installed.

The scores of a block of rows are a product by torch; `numba_kernels` reduces them in one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from threading import Barrier, Event
from types import ModuleType
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from attnviz.runtime import track
from attnviz.streaming.reference import LOG2_E, NEVER, MapBuffers, ScoreSpec

T = TypeVar("T")
LEAST = 2**18  # scores of a map for which loading the compiled loops pays
SCORES = 2**18  # of a block: what fits a core's cache
MOST_SCORES = 2**21  # of a block with the fewest rows, on a long text
ROWS = 128, 512  # of a block, at least and at most: enough for a fast product
_FEWEST_ROWS = 64  # of a block on a text so long that more would take too much memory
_FAR = 2**40  # more than any distance
_TIMEOUT = 60.0  # seconds for threads to start


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


def reduce_map(spec: ScoreSpec, buffers: MapBuffers) -> bool:
    """Fill the buffers, in threads, block by block; return False if a score is not finite."""
    (H, m, n), rule, threads = spec.shape, spec.visible, torch.get_num_threads()
    fewest, most = ROWS
    limited = (rule.before, rule.after) != (None, None)  # much of a long block would be hidden
    rows = fewest if limited else min(most, max(fewest, SCORES // n))
    rows = min(m, rows, max(_FEWEST_ROWS, MOST_SCORES // n))
    most = max(1, min(SCORES // (rows * n), H // threads))
    size = max(size for size in range(1, most + 1) if H % size == 0)
    groups = [slice(start, start + size) for start in range(0, H, size)]
    starts = range(0, m, rows)
    buffers.largest.fill_(NEVER)

    def reduce_heads(heads: slice, stop: Event) -> bool:
        group = _HeadGroup(spec, buffers, heads, rows)
        return group.reduce(starts, group.sums, stop)

    finite = []
    if len(groups) >= threads:
        finite = on_threads([partial(reduce_heads, heads) for heads in groups])
    else:
        for heads in track(groups):
            group = _HeadGroup(spec, buffers, heads, rows)
            shares = [starts[i::threads] for i in range(min(threads, len(starts)))]
            first = [np.full_like(*one) for one in zip(group.sums, (0, 0, NEVER), strict=True)]
            sums = [[one.copy() for one in first] for _ in shares]  # of each thread
            pairs = zip(shares, sums, strict=True)
            finite += on_threads([partial(group.reduce, *pair) for pair in pairs])
            for received, mean, largest in sums:  # in order
                group.sums[0][:] += received
                group.sums[1][:] += mean
                np.maximum(group.sums[2], largest, out=group.sums[2])
    buffers.largest.exp2_()
    return all(finite)


class _HeadGroup:
    """Some heads of a map, in blocks of at most some `rows`, and what all these blocks share.

    keys, values : (h, n, d) and (h, n, d_v). before, after, read, marks : the mask rule and the
    marked keys, as the loops take them. empty : (m,), which rows may read nothing. sinks : (h, m),
    in units of log₂. has_terms : whether more than the product makes the scores. factor : by what
    to multiply the queries.
    """

    def __init__(self, spec: ScoreSpec, buffers: MapBuffers, heads: slice, rows: int) -> None:
        rule, (_, self.m, self.n) = spec.visible, spec.shape
        index = range(heads.start, heads.stop)
        self.spec, self.buffers, self.heads, self.rows = spec, buffers, heads, rows
        self.kernels: Any = kernels()
        self.h, self.keys = len(index), spec.of_heads(spec.key, index).float()
        self.values = None if buffers.value is None else spec.of_heads(buffers.value, index).float()
        self.before = _FAR if rule.before is None else rule.before
        self.after = _FAR if rule.after is None else rule.after
        self.read, self.marks = (
            np.zeros(0, bool) if keys is None else keys.numpy()
            for keys in (rule.keys, buffers.marks)
        )
        self.empty = rule.empty(self.m, self.n, spec.query.device).numpy().copy()
        self.sinks = np.full((self.h, self.m), NEVER, np.float32)
        if (sinks := spec.sinks_by_row) is not None:
            self.sinks[:] = (sinks[heads] * LOG2_E).numpy()
            self.empty[:] = False  # every row reads at least the sink
        self.has_terms = not spec.plain or spec.bias is not None
        self.factor = spec.scale * (LOG2_E if spec.plain else 1)

        def arrays(*tensors: Tensor) -> list[Any]:
            return [tensor[heads].numpy() for tensor in tensors]

        # What blocks add up, as `numba_kernels.pool` takes it.
        self.sums = arrays(buffers.received, buffers.mean, buffers.largest)
        (self.near,) = arrays(buffers.near)
        self.by_row = arrays(buffers.lse, buffers.entropy, buffers.distance, buffers.marked)
        self.top = arrays(buffers.top_keys, buffers.top_weights)

    def reduce(self, starts: Sequence[int], sums: list[Any], stop: Event) -> bool:
        """Reduce the blocks of rows that start there; return whether all results are finite."""
        finite, block = True, None
        for start in starts:
            if stop.is_set():
                break
            height = min(self.rows, self.m - start)
            if block is None or block.height != height:
                block = _RowBlock(self, height)
            finite &= block.reduce(start, sums)
        return finite


class _RowBlock:
    """Memory for some rows of some heads.

    Q, A : (h, rows, d) and (h, d_v, rows), as products take and give them. shift, total, sums, best
    : (h, rows), (h, rows), (4, h, rows) and (h, k, rows), as the loops take them.
    """

    def __init__(self, group: _HeadGroup, height: int) -> None:
        self.group, self.height = group, height
        buffers, h = group.buffers, group.h
        self.memory = torch.empty(h * group.n * height, device="cpu")  # of scores
        self.Q = torch.empty(h, height, group.keys.shape[2], device="cpu")
        self.A = torch.empty(h, buffers.attended.shape[2], height, device="cpu")
        self.shift, self.total = np.empty((2, h, height), np.float32)
        self.sums = np.empty((4, h, height), np.float32)
        self.best = np.empty((h, buffers.top, height), np.int64)

    def reduce(self, start: int, sums: list[Any]) -> bool:
        """Reduce the rows from `start` on; return whether all results are finite."""
        group, kernels, buffers = self.group, self.group.kernels, self.group.buffers
        rows = slice(start, start + self.height)
        columns = group.spec.columns(rows)
        first, row_key = columns.start, start + group.spec.visible.offset
        self.Q.copy_(group.spec.query[group.heads, rows]).mul_(group.factor)
        sinks = np.ascontiguousarray(group.sinks[:, rows])
        S = self._scores(rows, columns)
        tile = S.numpy()
        if buffers.top:
            chunk = max(1, round((tile.shape[1] / buffers.top) ** 0.5))
            kernels.find_largest(tile, first, chunk, self.best)
        self.shift.fill(0)
        cells = self._weigh(tile, first, row_key)
        if not self._divide(sinks, group.empty[rows]):
            # 2^S is too large or too small in some row: compute the scores again, and shift them.
            np.maximum(self._scores(rows, columns).amax(1).numpy(), sinks, out=self.shift)
            self.shift[self.shift <= NEVER / 2] = 0
            cells = self._weigh(tile, first, row_key)
            self._divide(sinks, group.empty[rows])
        kernels.pool(
            tile, first, row_key, start, self.total, buffers.cell, *cells, *sums, group.near
        )
        if group.values is not None:
            torch.bmm(group.values[:, columns].mT, S, out=self.A)
            total = torch.from_numpy(self.total)[:, None]
            self.A.mul_(torch.where(total > 0, 1 / total, 0))
            buffers.attended[group.heads, rows] = self.A.mT
        if buffers.top:
            kernels.unpack(self.best, self.shift, self.total, start, *group.top)
        return bool(kernels.finish(self.sums, self.shift, self.total, start, *group.by_row))

    def _scores(self, rows: slice, columns: slice) -> Tensor:
        """Return the scores · log₂e of a block, (h, keys, rows), NEVER where they are hidden."""
        group, spec, rule = self.group, self.group.spec, self.group.spec.visible
        shape = group.h, columns.stop - columns.start, self.height
        S = self.memory[: shape[0] * shape[1] * shape[2]].view(shape)
        torch.bmm(group.keys[:, columns], self.Q.mT, out=S)
        if group.has_terms:
            spec.add_terms(S.mT, rows, columns, group.heads, LOG2_E)
        if rule.hides(rows, columns):
            row_key = rows.start + rule.offset
            reach = group.before, group.after
            group.kernels.hide(S.numpy(), columns.start, row_key, *reach, group.read)
        return S

    def _weigh(self, tile: Any, first: int, row_key: int) -> tuple[Any, Any]:
        """Turn scores into unnormalized weights; return the sum and the maximum of each cell."""
        h, keys, rows = tile.shape
        group, cell = self.group, self.group.buffers.cell
        count = (first + keys - 1) // cell - first // cell + 1
        cell_sums, cell_maxima = np.empty((2, h, count, rows), np.float32)
        self.sums.fill(0)
        group.kernels.weigh(
            tile, first, row_key, self.shift, cell, group.marks,
            cell_sums, cell_maxima, self.sums,
        )  # fmt: skip
        return cell_sums, cell_maxima

    def _divide(self, sinks: Any, empty: Any) -> bool:
        """Compute the sum of each row; return whether it is precise enough to divide by."""
        return bool(self.group.kernels.divide(self.sums, sinks, self.shift, empty, self.total))


def on_threads(tasks: Sequence[Callable[[Event], T]]) -> list[T]:
    """Return the result of each task, one for each thread of torch at once.

    A task takes an event that is set if it should stop: another task failed, or nobody waits.
    """
    number, stop = torch.get_num_threads(), Event()
    if (count := min(number, len(tasks))) == 1:
        with torch.no_grad():
            return [task(stop) for task in track(tasks)]
    inference, started = torch.is_inference_mode_enabled(), Barrier(count + 1)

    def start() -> None:
        torch.set_num_threads(1)  # for this thread, and for all threads that have not asked yet
        torch.get_num_threads()  # this thread asks before the number is set again
        started.wait(_TIMEOUT)

    def run(task: Callable[[Event], T]) -> T:
        with torch.inference_mode(inference), torch.no_grad():
            return task(stop)

    with ThreadPoolExecutor(count, "attnviz", start) as pool:
        futures = [pool.submit(run, task) for task in tasks]
        started.wait(_TIMEOUT)
        torch.set_num_threads(number)
        try:
            return [future.result() for future in track(futures)]
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)
