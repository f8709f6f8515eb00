"""Maps on a CUDA device, for plain attention, by kernels in Triton."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from attnviz.errors import AttnvizWarning
from attnviz.streaming import reference
from attnviz.streaming.reference import LOG2_E, NEVER, MapBuffers, ScoreSpec

_FAR = 2**30  # more than any distance
_WARP = 16  # keys of a tile that one warp works on
_KEYS = 2**25  # bytes of keys per launch: they stay in the second-level cache
_CELLS = 2**28  # bytes of partial cells per launch
_PAIRS = 2**27  # numbers of the queries whose weights for single keys are computed at once

_refused: set[tuple[object, ...]] = set()


@dataclass(frozen=True)
class Tiling:
    """How large a tile is, and how it is worked on."""

    rows: int = 128  # of a tile
    columns: int = 64
    warps: int = 4  # of a program
    stages: int = 3
    programs: int = 2  # on each multiprocessor
    features: int = 256  # that are multiplied at once

    @classmethod
    def of(cls, spec: ScoreSpec) -> Tiling:
        """Return what suits the vectors and the device: registers suffice, and so do 99 kB.

        Only Hopper multiplies 64 columns without spilling registers. A product of float32 is three
        of TF32, which need too many registers for all features at once.
        """
        columns = 64 if _capability(spec.query.device)[0] == 9 else 32
        if spec.query.dtype == torch.float32:
            return cls(64, columns, stages=2, features=16)
        return cls(64, columns, stages=2) if spec.query.shape[-1] > 128 else cls(128, columns)


def available(device: torch.device | None = None) -> bool:
    """Whether Triton is installed and compiles for a CUDA device, by default the current one."""
    return (
        torch.version.cuda is not None
        and torch.cuda.is_available()
        and torch.cuda.get_device_capability(device) >= (8, 0)
        and find_spec("triton") is not None
    )


def supports(spec: ScoreSpec) -> bool:
    """Whether the kernels reduce this attention: on CUDA, without bias, at most 256 features."""
    return (
        spec.query.is_cuda
        and spec.bias is None
        and spec.capped_bias is None
        and spec.query.dtype == spec.key.dtype
        and spec.query.dtype in (torch.bfloat16, torch.float16, torch.float32)
        and spec.query.shape[-1] <= 256
        and min(spec.shape) > 0
        and max(spec.shape[1:]) < _FAR // 2
        and available(spec.query.device)
    )


def reduce_map(
    spec: ScoreSpec, buffers: MapBuffers, lse: Tensor | None = None, tiling: Tiling | None = None
) -> None:
    """Fill the buffers, but for top keys and attention vectors; no tile leaves the chip.

    Every run on one kind of device gives the same numbers. Memory: two floats for each key and
    running program, and a bounded number of partial cells.

    spec : an attention without bias, on a CUDA device. buffers : their cells join a power of two of
    rows, or a multiple of 128. lse : (H, m), the log-sum-exp of each row and its sink, natural;
    computed by default. tiling : the size of a tile; chosen by default.
    """
    tiling = tiling or Tiling.of(spec)
    (_, m, n), device = spec.shape, spec.query.device
    buffers.lse = log_sum_exp(spec, tiling=tiling) if lse is None else lse.float()
    empty = spec.visible.empty(m, n, device) | (buffers.lse == -torch.inf)
    level = buffers.lse.masked_fill(empty, -NEVER)
    if not _runs("map_pass", spec, partial(_map_pass, spec, level * LOG2_E, buffers, tiling)):
        for sums in (buffers.mean, buffers.largest, buffers.received):
            sums.zero_()  # the reference adds to them
        reference.reduce_map(spec, buffers)
        return
    _fill_near(spec, level, buffers.near)


def _fill_near(spec: ScoreSpec, level: Tensor, near: Tensor) -> None:
    """Fill the weights (H, 3, m) of each query for itself, the previous and the first key."""
    (H, m, n), rule = spec.shape, spec.visible
    key_head = torch.arange(H, device=near.device) // (H // len(spec.key))
    i = torch.arange(rule.offset, rule.offset + m, device=near.device)
    j = torch.stack((i, i - 1, torch.zeros_like(i)))
    inside, far = j.clamp(0, n - 1), i - j
    hidden = inside != j
    if rule.before is not None:
        hidden |= far > rule.before
    if rule.after is not None:
        hidden |= far < -rule.after
    if rule.keys is not None:
        hidden |= ~rule.keys.to(near.device)[inside]
    count = max(1, _PAIRS // (j.numel() * spec.query.shape[-1]))
    for first in range(0, H, count):
        heads = slice(first, first + count)
        keys = spec.key[key_head[heads, None, None], inside].float()  # (h, 3, m, d)
        scores = spec.cap(keys.mul_(spec.query[heads, None]).sum(-1).mul_(spec.scale))
        near[heads] = scores.masked_fill_(hidden, NEVER).sub_(level[heads, None]).exp_()


def log_sum_exp(spec: ScoreSpec, *, tiling: Tiling | None = None) -> Tensor:
    """Return the log-sum-exp of each row of scores and its sink, natural, (H, m); -∞ if empty."""
    from attnviz.streaming import triton_kernels

    tiling = tiling or Tiling.of(spec)
    H, m, _ = spec.shape
    lse = torch.empty(H, m, device=spec.query.device)

    def kernel() -> None:
        for heads, terms in _launches(spec, tiling):
            grid = -(-m // tiling.rows), heads.stop - heads.start
            with _on(lse.device):
                triton_kernels.log_sum_exp[grid](lse=lse[heads], **terms)

    if not _runs("log_sum_exp", spec, kernel):
        buffers = MapBuffers(spec, 1, 0, None, None)
        reference.reduce_map(spec, buffers)
        return buffers.lse
    sinks = spec.sinks_by_row
    return lse if sinks is None else torch.logaddexp(lse, sinks)


def _runs(kernel: str, spec: ScoreSpec, launch: Callable[[], None]) -> bool:
    """Launch a kernel; return False if it does not compile or run here, and do not try it again."""
    kind = kernel, spec.query.dtype, spec.query.shape[-1], spec.query.device
    if kind in _refused:
        return False
    try:
        launch()
    except (torch.OutOfMemoryError, torch.AcceleratorError):
        raise  # no memory is left, or the device failed and runs nothing any more
    except Exception as error:  # Triton's errors have no common base
        _refused.add(kind)
        reason = (str(error).splitlines() or [""])[0]
        warnings.warn(
            f"The GPU kernel {kernel} does not run here ({type(error).__name__}: {reason}); torch "
            "computes the same numbers more slowly. Another version of triton may run it.",
            AttnvizWarning,
            stacklevel=2,
        )
        return False
    return True


def _launches(spec: ScoreSpec, tiling: Tiling) -> Iterator[tuple[slice, dict[str, Any]]]:
    """Yield the heads of each launch, and the arguments that all kernels take."""
    Q, K = (
        tensor if tensor.stride(-1) == 1 else tensor.contiguous()
        for tensor in (spec.query, spec.key)
    )
    (H, m, n), d, rule, cap = spec.shape, Q.shape[-1], spec.visible, spec.soft_cap
    shared, D = H // len(K), max(16, 1 << (d - 1).bit_length())
    heads_per_launch = max(1, _KEYS // max(1, n * d * K.element_size()))
    read = torch.ones(1) if rule.keys is None else rule.keys
    terms = {
        # The precision is that of float32; halves are multiplied exactly.
        "keys": read.to(Q.device, torch.int8), "KEYS": rule.keys is not None, "m": m, "n": n,
        "offset": rule.offset, "before": _FAR if rule.before is None else min(rule.before, _FAR),
        "after": _FAR if rule.after is None else min(rule.after, _FAR),
        "scale": spec.scale * LOG2_E if cap is None else 2 * LOG2_E * spec.scale / cap,
        "cap": 0.0 if cap is None else cap * LOG2_E, "CAP": cap is not None, "shared": shared,
        "d": d, "D": D, "BM": tiling.rows, "BN": tiling.columns, "BD": min(tiling.features, D),
        "PRECISION": "tf32x3", "num_warps": tiling.warps, "num_stages": tiling.stages,
        "enable_fp_fusion": True,
    }  # fmt: skip
    for first in range(0, len(K), heads_per_launch):
        k = K[first : first + heads_per_launch]
        heads = slice(first * shared, (first + len(k)) * shared)
        q = Q[heads]
        far = {"q_head": q.stride(0), "q_row": q.stride(1), "k_head": k.stride(0)}
        yield heads, terms | {"q": q, "k": k, "k_row": k.stride(1)} | far


def _map_pass(spec: ScoreSpec, level: Tensor, buffers: MapBuffers, tiling: Tiling) -> None:
    """Fill the buffers; `level` (H, m) is the log-sum-exp in units of log₂.

    A tile holds whole cells or lies in one. Warps exchange nothing if each has a cell for itself,
    so a cell is also cut into parts of a warp's keys.
    """
    from attnviz.streaming import triton_kernels

    cell, device, (_, m, n), rule = buffers.cell, level.device, spec.shape, spec.visible
    for tile in (tiling.rows, tiling.columns):
        if max(cell, tile) % min(cell, tile):
            raise ValueError(f"tiles of {tile} rows or columns do not hold cells of {cell}")
    rows, columns = min(cell, tiling.rows), min(cell, _WARP)  # of a part of a cell
    down, parts = cell // rows, cell // columns
    row_cells = tiling.rows // rows

    def whole(length: int, tile: int) -> int:  # up to the end of the last cell and tile
        return -(-length // max(cell, tile)) * max(cell, tile)

    tiles = whole(m, tiling.rows) // tiling.rows
    width = whole(n, tiling.columns) // columns
    marks = torch.zeros(1) if buffers.marks is None else buffers.marks
    # Distances that assume rows with a sum of 1 are faster, but err by 1e-4 tokens: too much for
    # those of a window, or where scores are less exact.
    unbounded = rule.before is None and rule.after is not None and rule.after <= 0
    backwards = unbounded and spec.sinks is None and spec.soft_cap is None
    for heads, terms in _launches(spec, tiling):
        h = len(terms["q"])
        band = max(1, _CELLS // (8 * h * width * row_cells) // down) * down  # tiles, whole cells
        programs = min(max(1, tiling.programs * _multiprocessors(device) // h), tiles, band)
        received = torch.zeros(h, programs, n, device=device)
        for first in range(0, tiles, band):
            count = min(band, tiles - first) * row_cells
            sums = torch.zeros(h, count, width, device=device)
            tops = torch.full_like(sums, NEVER)
            with _on(device):
                triton_kernels.map_pass[programs, h](
                    lse=level[heads].contiguous(), marks=marks.to(device, torch.float32),
                    received=received, sums=sums, tops=tops,
                    entropy=buffers.entropy[heads], distance=buffers.distance[heads],
                    marked=buffers.marked[heads],
                    first_tile=first, row_tiles=count // row_cells, width=width,
                    MARKS=buffers.marks is not None, BACKWARDS=backwards,
                    ROW_CELLS=row_cells, CELLS=tiling.columns // columns, **terms,
                )  # fmt: skip
            # Combine the parts of each cell.
            start, shape = first * row_cells // down, (h, -1, down, width // parts, parts)
            mean, largest = buffers.mean[heads, start:], buffers.largest[heads, start:]
            some = slice(None), slice(min(count // down, mean.shape[1])), slice(mean.shape[2])
            mean[some] = sums.view(shape).sum((2, 4))[some]
            largest[some] = tops.view(shape).amax((2, 4))[some].exp2()
        buffers.received[heads] = received.sum(1, dtype=torch.float64)


def _multiprocessors(device: torch.device) -> int:
    """Return how many programs can run side by side, without regard to their size."""
    if device.type != "cuda":
        return 2  # as where the kernels are interpreted
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _capability(device: torch.device) -> tuple[int, int]:
    """Return the compute capability of a device, (0, 0) where the kernels are interpreted."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)


def _on(device: torch.device) -> AbstractContextManager[Any]:
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
