"""Launches of the kernels, and what is joined of what they leave behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from attnviz.streaming.buffers import Kept
from attnviz.streaming.gpu.cuts import Cut
from attnviz.streaming.scores import LOG2_E, NEVER, Scoring

_FAR = 2**30  # more than any distance
_KEYS = 2**25  # bytes of keys that are read by one launch: they stay in the second-level cache
_CELLS = 2**28  # bytes of the unfinished cells of one launch


@dataclass(frozen=True)
class Tiling:
    """How large a tile is, and how it is worked on.

    Attributes
    ----------
    rows, columns : of a tile. warps, stages : of a program. programs : on each multiprocessor.
    """

    rows: int = 128
    columns: int = 64
    warps: int = 4
    stages: int = 3
    programs: int = 2

    @classmethod
    def of(cls, scoring: Scoring) -> Tiling:
        """Return what suits the width and the precision of the queries."""
        wide = scoring.query.shape[-1] * scoring.query.element_size()
        if wide <= 256:
            return cls()
        return cls(64, 64, stages=2) if wide <= 512 else cls(64, 32, stages=2, programs=1)


@dataclass(frozen=True, eq=False)
class Parts:
    """What the kernel fills in of what is kept: `mean` holds sums, `entropy` is in bits."""

    mean: Tensor
    largest: Tensor
    received: Tensor
    entropy: Tensor
    distance: Tensor
    marked: Tensor


def available() -> bool:
    """Whether Triton is installed and there is a CUDA device that it compiles for."""
    return (
        torch.version.cuda is not None
        and torch.cuda.is_available()
        and torch.cuda.get_device_capability() >= (8, 0)
        and find_spec("triton") is not None
    )


def serves(scoring: Scoring) -> bool:
    """Whether the kernels can take this attention: plain, on CUDA, its vectors not too long."""
    return (
        scoring.query.is_cuda
        and scoring.plain
        and scoring.bias is None
        and scoring.sinks is None
        and scoring.query.dtype == scoring.key.dtype
        and scoring.query.dtype in (torch.bfloat16, torch.float16, torch.float32)
        and scoring.query.shape[-1] <= 256
        and min(scoring.shape) > 0
        and max(scoring.shape[1:]) < _FAR // 2
        and available()
    )


def go_over(scoring: Scoring, kept: Kept) -> None:
    """Fill in what is kept, as `sweep.go_over` does; its `lse` is known, no top keys are asked for.

    The attention vectors are those of the fused attention that told the log-sum-exp.
    """
    parts = summarise_on_gpu(scoring, cell=kept.cell, lse=kept.lse, marked=kept.marks)
    kept.mean, kept.largest, kept.received = parts.mean, parts.largest, parts.received
    kept.entropy, kept.distance, kept.marked = parts.entropy, parts.distance, parts.marked
    kept.find_near(scoring)


def summarise_on_gpu(
    scoring: Scoring,
    *,
    cell: int,
    lse: Tensor,
    marked: Tensor | None = None,
    tiling: Tiling | None = None,
) -> Parts:
    """Reduce the weights of every head to pooled maps and sums, no tile ever leaving the chip.

    The same numbers come out of every run on one kind of device. Memory: two floats for each key
    and program that runs at a time, and a bounded number of unfinished cells.

    Parameters
    ----------
    scoring : of a plain attention, without bias and sinks, on a CUDA device.
    cell : how many rows and columns a cell of the pooled maps joins. All of a tile's lanes have
        work where it is a power of two, or a multiple of 128.
    lse : (H, m), the log-sum-exp of each row, natural; whatever stands in rows that are empty.
    marked : (n,), True for keys of which is to be told what each query gives to all of them.
    tiling : the size of a tile; else one that suits.
    """
    tiling = tiling or Tiling.of(scoring)
    (H, m, n), device = scoring.shape, scoring.query.device
    rows, columns = Cut.best(m, cell, tiling.rows), Cut.best(n, cell, tiling.columns)

    def made(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(H, *shape, dtype=dtype, device=device)

    mean, largest = (made(rows.pooled, columns.pooled) for _ in range(2))
    parts = Parts(mean, largest, made(n, dtype=torch.float64), made(m), made(m), made(m))
    empty = scoring.visible.empty(m, n, device) | (lse == -torch.inf)
    level = lse.float().masked_fill(empty, -NEVER) * LOG2_E  # in the units of the kernels
    for heads, terms in _launches(scoring, tiling):
        _Sweep(terms, rows, columns, tiling).run(heads, level[heads], marked, parts)
    return parts


def log_sum_exp_on_gpu(scoring: Scoring, *, tiling: Tiling | None = None) -> Tensor:
    """Return the log-sum-exp of each row of scores, natural, (H, m); -∞ for empty rows."""
    from attnviz.streaming.gpu import kernels

    tiling = tiling or Tiling.of(scoring)
    H, m, _ = scoring.shape
    lse = torch.empty(H, m, device=scoring.query.device)
    for heads, terms in _launches(scoring, tiling):
        grid = -(-m // tiling.rows), heads.stop - heads.start
        with _on(lse.device):
            kernels.log_sum_exp[grid](lse=lse[heads], **terms)
    return lse


def _launches(scoring: Scoring, tiling: Tiling) -> Iterator[tuple[slice, dict[str, Any]]]:
    """Return which heads to take at once, and what every kernel is told of them."""
    Q, K = (
        each if each.stride(-1) == 1 else each.contiguous() for each in (scoring.query, scoring.key)
    )
    (H, m, n), d, rule = scoring.shape, Q.shape[-1], scoring.visible
    shared = H // len(K)
    at_once = max(1, _KEYS // max(1, n * d * K.element_size()))
    read = torch.ones(1) if rule.keys is None else rule.keys
    told = {
        "keys": read.to(Q.device, torch.int8),
        "KEYS": rule.keys is not None,
        "m": m,
        "n": n,
        "offset": rule.offset,
        "before": _FAR if rule.before is None else min(rule.before, _FAR),
        "after": _FAR if rule.after is None else min(rule.after, _FAR),
        "scale": scoring.scale * LOG2_E,
        "shared": shared,
        "d": d,
        "D": max(16, 1 << (d - 1).bit_length()),
        "BM": tiling.rows,
        "BN": tiling.columns,
        "PRECISION": "tf32x3",  # of float32; halves are multiplied exactly
        "num_warps": tiling.warps,
        "num_stages": tiling.stages,
        "enable_fp_fusion": True,
    }
    for first in range(0, len(K), at_once):
        k = K[first : first + at_once]
        heads = slice(first * shared, (first + len(k)) * shared)
        q = Q[heads]
        far = {"q_head": q.stride(0), "q_row": q.stride(1), "k_head": k.stride(0)}
        yield heads, told | {"q": q, "k": k, "k_row": k.stride(1)} | far


class _Sweep:
    """The map pass over some heads: its launches, and what is joined of their cells."""

    def __init__(self, terms: dict[str, Any], rows: Cut, columns: Cut, tiling: Tiling) -> None:
        self.terms, self.rows, self.columns = terms, rows, columns
        self.device, self.h = terms["q"].device, len(terms["q"])
        self.strips = max(1, tiling.programs * _multiprocessors(self.device) // self.h)
        self.width = columns.tiles * columns.cells
        most = _CELLS // (8 * self.h * self.width * rows.cells)
        self.band = max(1, most // rows.parts) * rows.parts  # tiles of rows, of whole cells

    def run(self, heads: slice, level: Tensor, marked: Tensor | None, parts: Parts) -> None:
        """Fill in the parts of some heads."""
        from attnviz.streaming.gpu import kernels

        rows, columns = self.rows, self.columns
        strips = min(self.strips, rows.tiles, self.band)
        received = torch.zeros(self.h, strips, columns.length, device=self.device)
        marks = torch.zeros(1) if marked is None else marked
        for first in range(0, rows.tiles, self.band):
            tiles = min(self.band, rows.tiles - first)
            sums = torch.zeros(self.h, tiles * rows.cells, self.width, device=self.device)
            tops = torch.full_like(sums, NEVER)
            with _on(self.device):
                kernels.map_pass[strips, self.h](
                    lse=level.contiguous(), marks=marks.to(self.device, torch.float32),
                    received=received, sums=sums, tops=tops,
                    entropy=parts.entropy[heads], distance=parts.distance[heads],
                    marked=parts.marked[heads],
                    row_cell=rows.cell, row_span=rows.span, row_parts=rows.parts,
                    first_tile=first, row_tiles=tiles, width=self.width,
                    cell=columns.cell, span=columns.span, parts=columns.parts,
                    MARKS=marked is not None, WHOLE=columns.whole,
                    BACKWARDS=self.terms["after"] <= 0,
                    ROW_CELLS=rows.cells, CELLS=columns.cells, **self.terms,
                )  # fmt: skip
            self._pool(heads, first, sums, tops, parts)
        parts.received[heads] = received.sum(1, dtype=torch.float64)

    def _pool(self, heads: slice, first: int, sums: Tensor, tops: Tensor, parts: Parts) -> None:
        """Join the parts of each cell."""
        rows, columns = self.rows, self.columns
        shape = self.h, -1, rows.parts, self.width // columns.parts, columns.parts
        start = first // rows.parts * rows.cells
        place = slice(start, min(rows.pooled, start + sums.shape[1] // rows.parts))
        count, across = place.stop - place.start, columns.pooled
        parts.mean[heads, place] = sums.view(shape).sum((2, 4))[:, :count, :across]
        parts.largest[heads, place] = tops.view(shape).amax((2, 4))[:, :count, :across].exp2()


def _multiprocessors(device: torch.device) -> int:
    """Return how many programs can run side by side, without regard to their size."""
    if device.type != "cuda":
        return 2  # as where the kernels are interpreted
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _on(device: torch.device) -> AbstractContextManager[Any]:
    """Make a device the one that kernels are launched on."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
