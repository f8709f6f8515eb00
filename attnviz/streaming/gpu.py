"""Maps on a CUDA device, for plain attention: torch's fused attention, and kernels in Triton.

This module launches the kernels and combines their results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attnviz.formula.attention import repeat_heads
from attnviz.results import MaskRule
from attnviz.runtime.compat import cuda_attention_operators
from attnviz.streaming.reference import MapBuffers
from attnviz.streaming.scores import LOG2_E, NEVER, ScoreSpec

_FAR = 2**30  # more than any distance
_KEYS = 2**25  # bytes of keys per launch: they stay in the second-level cache
_CELLS = 2**28  # bytes of partial cells per launch
_ROWS = 4096  # queries whose weights for single keys are computed at once

Operator: TypeAlias = Callable[[Tensor, Tensor, Tensor, bool, float], tuple[Tensor, Tensor]]
_refused: set[tuple[object, ...]] = set()


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


def reduce_map(
    spec: ScoreSpec, buffers: MapBuffers, lse: Tensor | None = None, tiling: Tiling | None = None
) -> None:
    """Fill the buffers, but for top keys and attention vectors; no tile leaves the chip.

    Every run on one kind of device gives the same numbers. Memory: two floats for each key and
    running program, and a bounded number of partial cells. No lane of a tile is idle if a cell
    joins a power of two of rows, or a multiple of 128.

    Parameters
    ----------
    spec : ScoreSpec
        A plain attention, without bias and sinks, on a CUDA device.
    lse : Tensor, optional
        (H, m), the log-sum-exp of each row, natural; computed by default.
    tiling : Tiling, optional
        The size of a tile; chosen by default.
    """
    tiling = tiling or Tiling.of(spec)
    (_, m, n), cell, device = spec.shape, buffers.cell, spec.query.device
    rows, columns = Cut.best(m, cell, tiling.rows), Cut.best(n, cell, tiling.columns)
    buffers.lse = log_sum_exp(spec, tiling=tiling) if lse is None else lse.float()
    empty = spec.visible.empty(m, n, device) | (buffers.lse == -torch.inf)
    level = buffers.lse.masked_fill(empty, -NEVER)
    for heads, terms in _launches(spec, tiling):
        _MapPass(terms, rows, columns, tiling).run(heads, level[heads] * LOG2_E, buffers)
    # The weights of each row for itself, the previous and the first key.
    position = torch.arange(m, device=device) + spec.visible.offset
    for i, keys in enumerate((position, position - 1, torch.zeros_like(position))):
        for start in range(0, m, _ROWS):
            block = slice(start, min(start + _ROWS, m))
            scores = _scores_of_pairs(spec, block, keys[block])
            buffers.near[:, i, block] = (scores - level[:, block]).exp()


def _scores_of_pairs(spec: ScoreSpec, rows: slice, keys: Tensor) -> Tensor:
    """Return the score of each query with one key, (H, rows), NEVER where it is hidden."""
    query = spec.query[:, rows].float()
    key = spec.key[:, keys.clamp(0, spec.shape[2] - 1)].float()
    scores = (query * repeat_heads(key, len(query))).sum(-1) * spec.scale
    i = torch.arange(rows.start, rows.stop, device=keys.device)
    return scores.masked_fill(spec.hidden(i, keys), NEVER)


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


def fused(
    query: Tensor, key: Tensor, value: Tensor, *, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Return the output of torch's fused attention and the log-sum-exp of its rows of scores.

    The operators that also return the log-sum-exp are private. One that raises, or whose rows
    differ from float64, is not called again for this kind of attention. The last resort is a kernel
    of our own for the log-sum-exp.

    Parameters
    ----------
    query : Tensor
        (H, m, d).
    key, value : Tensor
        (G, n, d), each for H / G heads.
    causal : bool
        Whether a query reads no later key; then there are as many queries as keys.

    Returns
    -------
    output : Tensor
        (H, m, d), in the precision of the query.
    lse : Tensor
        (H, m), float32, natural.
    """
    Q, K, V = (tensor[None] for tensor in (query, key, value))
    kind = query.dtype, query.shape[-1], len(query) > len(key), causal, query.device
    for name, operator in _operators(query.device).items():
        if (name, *kind) in _refused:
            continue
        try:
            output, lse = operator(Q, K, V, causal, scale)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, NotImplementedError, AttributeError, TypeError):
            _refused.add((name, *kind))  # not in this build, or not for these shapes
            continue
        result = output[0], lse.reshape(len(query), -1)[:, : query.shape[1]].float()
        if _agrees(*result, query, key, value, causal=causal, scale=scale):
            return result
        _refused.add((name, *kind))
    output = scaled_dot_product_attention(Q, K, V, is_causal=causal, scale=scale, enable_gqa=True)
    rule = MaskRule(after=0 if causal else None)
    return output[0], log_sum_exp(ScoreSpec(query, key, scale, rule))


def _operators(device: torch.device) -> dict[str, Operator]:
    """Return the operators that return a log-sum-exp, the fastest first."""
    operators = cuda_attention_operators()

    def cudnn(Q: Tensor, K: Tensor, V: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
        result = operators["cudnn"](Q, K, V, None, True, 0.0, causal, False, scale=scale)
        return result[0], result[1]

    def flash(Q: Tensor, K: Tensor, V: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
        result = operators["flash"](Q, K, V, 0.0, causal, False, scale=scale)
        return result[0], result[1]

    def efficient(
        Q: Tensor, K: Tensor, V: Tensor, causal: bool, scale: float
    ) -> tuple[Tensor, Tensor]:
        K, V = (tensor.repeat_interleave(Q.shape[1] // K.shape[1], dim=1) for tensor in (K, V))
        result = operators["efficient"](Q, K, V, None, True, 0.0, causal, scale=scale)
        return result[0], result[1]

    if torch.cuda.get_device_capability(device) >= (9, 0):
        return {"cudnn": cudnn, "flash": flash, "efficient": efficient}
    return {"flash": flash, "cudnn": cudnn, "efficient": efficient}


def _agrees(
    output: Tensor, lse: Tensor, query: Tensor, key: Tensor, value: Tensor, *,
    causal: bool, scale: float,
) -> bool:  # fmt: skip
    """Return whether the middle and the last row of every head agree with float64."""
    m, shared = query.shape[1], len(query) // len(key)
    tolerance = 2e-3 if query.dtype == torch.float32 else 2e-2
    agree = torch.ones((), dtype=torch.bool, device=query.device)
    for row in {m // 2, m - 1}:
        for g in range(len(key)):
            heads = slice(g * shared, (g + 1) * shared)
            visible = slice(0, row + 1) if causal else slice(None)
            scores = query[heads, row].double() @ key[g, visible].double().mT * scale
            expected = scores.softmax(-1) @ value[g, visible].double()
            expected_lse = torch.logsumexp(scores, -1)
            lse_error = (lse[heads, row] - expected_lse).abs()
            agree &= (lse_error <= 2e-4 + 1e-5 * expected_lse.abs()).all()
            error = (output[heads, row].double() - expected).norm(dim=-1)
            agree &= (error <= tolerance * expected.norm(dim=-1)).all()
    return bool(agree)


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

    def run(self, heads: slice, level: Tensor, buffers: MapBuffers) -> None:
        """Fill the buffers of some heads; `level` is their log-sum-exp in units of log₂."""
        from attnviz.streaming import triton_kernels

        rows, columns = self.rows, self.columns
        programs = min(self.programs, rows.tiles, self.band)
        received = torch.zeros(self.h, programs, columns.length, device=self.device)
        marks = torch.zeros(1) if buffers.marks is None else buffers.marks
        for first in range(0, rows.tiles, self.band):
            tiles = min(self.band, rows.tiles - first)
            sums = torch.zeros(self.h, tiles * rows.cells, self.width, device=self.device)
            tops = torch.full_like(sums, NEVER)
            with _on(self.device):
                triton_kernels.map_pass[programs, self.h](
                    lse=level.contiguous(), marks=marks.to(self.device, torch.float32),
                    received=received, sums=sums, tops=tops,
                    entropy=buffers.entropy[heads], distance=buffers.distance[heads],
                    marked=buffers.marked[heads],
                    row_cell=rows.cell, row_span=rows.span, row_parts=rows.parts,
                    first_tile=first, row_tiles=tiles, width=self.width,
                    cell=columns.cell, span=columns.span, parts=columns.parts,
                    MARKS=buffers.marks is not None, WHOLE=columns.whole,
                    BACKWARDS=self.terms["after"] <= 0,
                    ROW_CELLS=rows.cells, CELLS=columns.cells, **self.terms,
                )  # fmt: skip
            self._pool(heads, first, sums, tops, buffers)
        buffers.received[heads] = received.sum(1, dtype=torch.float64)

    def _pool(
        self, heads: slice, first: int, sums: Tensor, tops: Tensor, buffers: MapBuffers
    ) -> None:
        """Combine the parts of each cell."""
        rows, columns = self.rows, self.columns
        shape = self.h, -1, rows.parts, self.width // columns.parts, columns.parts
        start = first // rows.parts * rows.cells
        place = slice(start, min(rows.pooled, start + sums.shape[1] // rows.parts))
        count, across = place.stop - place.start, columns.pooled
        buffers.mean[heads, place] = sums.view(shape).sum((2, 4))[:, :count, :across]
        buffers.largest[heads, place] = tops.view(shape).amax((2, 4))[:, :count, :across].exp2()


def _multiprocessors(device: torch.device) -> int:
    """Return how many programs can run side by side, without regard to their size."""
    if device.type != "cuda":
        return 2  # as where the kernels are interpreted
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _on(device: torch.device) -> AbstractContextManager[Any]:
    """Make a device the one that kernels are launched on."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
