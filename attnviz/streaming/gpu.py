"""Maps on a CUDA device, reduced by kernels in Triton, for plain attention.

This module launches the kernels and combines their results.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from attnviz.streaming.buffers import MapBuffers
from attnviz.streaming.scores import LOG2_E, NEVER, ScoreSpec

_FAR = 2**30  # more than any distance
_KEYS = 2**25  # bytes of keys per launch: they stay in the second-level cache
_CELLS = 2**28  # bytes of partial cells per launch


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
    def of(cls, spec: ScoreSpec) -> Tiling:
        """Return what suits the width and the precision of the queries."""
        wide = spec.query.shape[-1] * spec.query.element_size()
        if wide <= 256:
            return cls()
        return cls(64, 64, stages=2) if wide <= 512 else cls(64, 32, stages=2, programs=1)


@dataclass(frozen=True)
class Cut:
    """Tiles of one side of the map: each holds whole cells, or a part of one.

    Attributes
    ----------
    length, cell : of how many positions the side consists, and each of its cells.
    size : how many lanes a tile has, a power of two.
    """

    length: int
    cell: int
    size: int

    @classmethod
    def best(cls, length: int, cell: int, size: int) -> Cut:
        """Return tiles of `size` lanes, or of half, if clearly fewer of these stay idle."""
        full, half = cls(length, cell, size), cls(length, cell, size // 2)
        return half if half.used > 1.2 * full.used else full

    @property
    def lanes(self) -> int:
        """How many lanes a cell has, or a part of one."""
        return min(self.size, 1 << (self.cell - 1).bit_length())

    @property
    def parts(self) -> int:
        """How many tiles a cell is cut into."""
        return -(-self.cell // self.lanes)

    @property
    def cells(self) -> int:
        """How many cells a tile holds."""
        return self.size // self.lanes if self.parts == 1 else 1

    @property
    def span(self) -> int:
        """How far the tiles of a cell, or of some cells, stand apart."""
        return self.cells * self.cell if self.parts == 1 else -(-self.cell // self.parts)

    @property
    def tiles(self) -> int:
        """How many tiles there are, the parts of the last cell all among them."""
        return -(-self.length // (self.cells * self.cell)) * self.parts

    @property
    def pooled(self) -> int:
        """How many cells the pooled map has."""
        return -(-self.length // self.cell)

    @property
    def used(self) -> float:
        """Of all lanes, the part that has a position."""
        return self.cell / (self.parts * self.lanes)

    @property
    def whole(self) -> bool:
        """Whether every lane has a position, up to the end of the side."""
        return self.parts * self.lanes == self.cell


@dataclass(frozen=True, eq=False)
class MapSums:
    """What the kernel computes: `mean` holds sums, `entropy` is in bits."""

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


def supports(spec: ScoreSpec) -> bool:
    """Whether the kernels can take this attention: plain, on CUDA, its vectors not too long."""
    return (
        spec.query.is_cuda
        and spec.plain
        and spec.bias is None
        and spec.sinks is None
        and spec.query.dtype == spec.key.dtype
        and spec.query.dtype in (torch.bfloat16, torch.float16, torch.float32)
        and spec.query.shape[-1] <= 256
        and min(spec.shape) > 0
        and max(spec.shape[1:]) < _FAR // 2
        and available()
    )


def reduce_map(spec: ScoreSpec, buffers: MapBuffers) -> None:
    """Fill the buffers, but for top keys and attention vectors; `buffers.lse` is known."""
    sums = map_sums(spec, cell=buffers.cell, lse=buffers.lse, marked=buffers.marks)
    buffers.mean, buffers.largest, buffers.received = sums.mean, sums.largest, sums.received
    buffers.entropy, buffers.distance, buffers.marked = sums.entropy, sums.distance, sums.marked
    buffers.fill_near(spec)


def map_sums(
    spec: ScoreSpec,
    *,
    cell: int,
    lse: Tensor,
    marked: Tensor | None = None,
    tiling: Tiling | None = None,
) -> MapSums:
    """Return pooled maps and sums of the weights of every head; no tile leaves the chip.

    Every run on one kind of device gives the same numbers. Memory: two floats for each key and
    running program, and a bounded number of partial cells.

    Parameters
    ----------
    spec : ScoreSpec
        A plain attention, without bias and sinks, on a CUDA device.
    cell : int
        How many rows and columns a cell of the pooled maps joins. No lane of a tile idles if it is
        a power of two, or a multiple of 128.
    lse : Tensor
        (H, m), the log-sum-exp of each row, natural; any value in empty rows.
    marked : Tensor, optional
        (n,), True for the keys whose total weight to compute, for each query.
    tiling : Tiling, optional
        The size of a tile; chosen by default.
    """
    tiling = tiling or Tiling.of(spec)
    (H, m, n), device = spec.shape, spec.query.device
    rows, columns = Cut.best(m, cell, tiling.rows), Cut.best(n, cell, tiling.columns)

    def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.zeros(H, *shape, dtype=dtype, device=device)

    mean, largest = (zeros(rows.pooled, columns.pooled) for _ in range(2))
    results = MapSums(mean, largest, zeros(n, dtype=torch.float64), zeros(m), zeros(m), zeros(m))
    empty = spec.visible.empty(m, n, device) | (lse == -torch.inf)
    level = lse.float().masked_fill(empty, -NEVER) * LOG2_E  # in the units of the kernels
    for heads, terms in _launches(spec, tiling):
        _MapPass(terms, rows, columns, tiling).run(heads, level[heads], marked, results)
    return results


def log_sum_exp(spec: ScoreSpec, *, tiling: Tiling | None = None) -> Tensor:
    """Return the log-sum-exp of each row of scores, natural, (H, m); -∞ for empty rows."""
    from attnviz.streaming import triton_kernels

    tiling = tiling or Tiling.of(spec)
    H, m, _ = spec.shape
    lse = torch.empty(H, m, device=spec.query.device)
    for heads, terms in _launches(spec, tiling):
        grid = -(-m // tiling.rows), heads.stop - heads.start
        with _on(lse.device):
            triton_kernels.log_sum_exp[grid](lse=lse[heads], **terms)
    return lse


def _launches(spec: ScoreSpec, tiling: Tiling) -> Iterator[tuple[slice, dict[str, Any]]]:
    """Yield the heads of each launch, and the arguments that all kernels take."""
    Q, K = (
        tensor if tensor.stride(-1) == 1 else tensor.contiguous()
        for tensor in (spec.query, spec.key)
    )
    (H, m, n), d, rule = spec.shape, Q.shape[-1], spec.visible
    shared = H // len(K)
    heads_per_launch = max(1, _KEYS // max(1, n * d * K.element_size()))
    read = torch.ones(1) if rule.keys is None else rule.keys
    terms = {
        "keys": read.to(Q.device, torch.int8),
        "KEYS": rule.keys is not None,
        "m": m,
        "n": n,
        "offset": rule.offset,
        "before": _FAR if rule.before is None else min(rule.before, _FAR),
        "after": _FAR if rule.after is None else min(rule.after, _FAR),
        "scale": spec.scale * LOG2_E,
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
    for first in range(0, len(K), heads_per_launch):
        k = K[first : first + heads_per_launch]
        heads = slice(first * shared, (first + len(k)) * shared)
        q = Q[heads]
        far = {"q_head": q.stride(0), "q_row": q.stride(1), "k_head": k.stride(0)}
        yield heads, terms | {"q": q, "k": k, "k_row": k.stride(1)} | far


class _MapPass:
    """The map pass over some heads: its launches, and the combination of their cells."""

    def __init__(self, terms: dict[str, Any], rows: Cut, columns: Cut, tiling: Tiling) -> None:
        self.terms, self.rows, self.columns = terms, rows, columns
        self.device, self.h = terms["q"].device, len(terms["q"])
        self.programs = max(1, tiling.programs * _multiprocessors(self.device) // self.h)
        self.width = columns.tiles * columns.cells
        most = _CELLS // (8 * self.h * self.width * rows.cells)
        self.band = max(1, most // rows.parts) * rows.parts  # tiles of rows, of whole cells

    def run(self, heads: slice, level: Tensor, marked: Tensor | None, results: MapSums) -> None:
        """Fill in the results of some heads."""
        from attnviz.streaming import triton_kernels

        rows, columns = self.rows, self.columns
        programs = min(self.programs, rows.tiles, self.band)
        received = torch.zeros(self.h, programs, columns.length, device=self.device)
        marks = torch.zeros(1) if marked is None else marked
        for first in range(0, rows.tiles, self.band):
            tiles = min(self.band, rows.tiles - first)
            sums = torch.zeros(self.h, tiles * rows.cells, self.width, device=self.device)
            tops = torch.full_like(sums, NEVER)
            with _on(self.device):
                triton_kernels.map_pass[programs, self.h](
                    lse=level.contiguous(), marks=marks.to(self.device, torch.float32),
                    received=received, sums=sums, tops=tops,
                    entropy=results.entropy[heads], distance=results.distance[heads],
                    marked=results.marked[heads],
                    row_cell=rows.cell, row_span=rows.span, row_parts=rows.parts,
                    first_tile=first, row_tiles=tiles, width=self.width,
                    cell=columns.cell, span=columns.span, parts=columns.parts,
                    MARKS=marked is not None, WHOLE=columns.whole,
                    BACKWARDS=self.terms["after"] <= 0,
                    ROW_CELLS=rows.cells, CELLS=columns.cells, **self.terms,
                )  # fmt: skip
            self._pool(heads, first, sums, tops, results)
        results.received[heads] = received.sum(1, dtype=torch.float64)

    def _pool(self, heads: slice, first: int, sums: Tensor, tops: Tensor, results: MapSums) -> None:
        """Combine the parts of each cell."""
        rows, columns = self.rows, self.columns
        shape = self.h, -1, rows.parts, self.width // columns.parts, columns.parts
        start = first // rows.parts * rows.cells
        place = slice(start, min(rows.pooled, start + sums.shape[1] // rows.parts))
        count, across = place.stop - place.start, columns.pooled
        results.mean[heads, place] = sums.view(shape).sum((2, 4))[:, :count, :across]
        results.largest[heads, place] = tops.view(shape).amax((2, 4))[:, :count, :across].exp2()


def _multiprocessors(device: torch.device) -> int:
    """Return how many programs can run side by side, without regard to their size."""
    if device.type != "cuda":
        return 2  # as where the kernels are interpreted
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _on(device: torch.device) -> AbstractContextManager[Any]:
    """Make a device the one that kernels are launched on."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
