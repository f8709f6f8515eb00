"""One pass over a map, which reduces it to what a person can look at.

Three engines give the same numbers: `gpu` (Triton) and `cpu` (numba) where they support a map, and
`tiled`, the reference in torch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnviz.errors import InputError, whole_number
from attnviz.results import MapSummary
from attnviz.streaming import cpu, gpu, tiled
from attnviz.streaming.buffers import MapBuffers
from attnviz.streaming.fused import fused
from attnviz.streaming.scores import NEVER, ScoreSpec
from attnviz.streaming.tiled import log_sum_exp


def attend(
    spec: ScoreSpec,
    value: Tensor,
    *,
    cells: int = 512,
    top: int = 0,
    marked: Tensor | None = None,
) -> tuple[Tensor, MapSummary]:
    """Return the attention vectors, and the summary of the weights that they come from.

    Parameters
    ----------
    spec : ScoreSpec
        The attention before its softmax.
    value : Tensor
        (G, n, d_v), for the same heads as the keys.
    cells, top, marked
        As in `summarise`.

    Returns
    -------
    output : Tensor
        (H, m, d_v), float32; 0 in rows that may read nothing.
    summary : MapSummary

    Raises
    ------
    InputError
        `cells` or `top` is out of range.
    """
    buffers, summary = _reduce(spec, cells, top, marked, value)
    return buffers.attended, summary


def summarise(
    spec: ScoreSpec,
    *,
    cells: int = 512,
    top: int = 0,
    lse: Tensor | None = None,
    marked: Tensor | None = None,
) -> MapSummary:
    """Reduce the weights of every head exactly, never with more than a tile of them in memory.

    Parameters
    ----------
    spec : ScoreSpec
        The attention before its softmax.
    cells : int
        How many rows and columns the pooled maps have at most.
    top : int
        For how many keys to keep the weight, for each query.
    lse : Tensor, optional
        (H, m), the log-sum-exp of each row, sinks included, if a fused attention returned it;
        without it a first pass computes it.
    marked : Tensor, optional
        (n,), True for the keys whose total weight to keep, for each query.

    Raises
    ------
    InputError
        `cells` or `top` is out of range.
    """
    return _reduce(spec, cells, top, marked, lse=lse)[1]


@torch.no_grad()
def _reduce(
    spec: ScoreSpec,
    cells: int,
    top: int,
    marked: Tensor | None,
    value: Tensor | None = None,
    lse: Tensor | None = None,
) -> tuple[MapBuffers, MapSummary]:
    cells, top = whole_number(cells, "cells"), whole_number(top, "top")
    if cells < 1 or top < 0:
        raise InputError(
            f"Expected one cell or more and no less than 0 keys, got {cells} and {top}."
        )
    buffers = MapBuffers(spec, cells, top, marked, value)
    if not (cpu.in_one_pass(spec) and cpu.reduce_map(spec, buffers)):
        buffers = _reduce_by_tiles(spec, cells, top, marked, value, lse)
    empty = spec.visible.empty(*spec.shape[1:], spec.query.device)
    return buffers, buffers.summary(empty | (buffers.lse == -torch.inf).all(0))


def _reduce_by_tiles(
    spec: ScoreSpec,
    cells: int,
    top: int,
    marked: Tensor | None,
    value: Tensor | None,
    lse: Tensor | None,
) -> MapBuffers:
    """Fill buffers by an engine that needs the log-sum-exp of each row first."""
    output = None
    if value is not None and (result := fused(spec, value)) is not None:
        (output, lse), value = result, None
    buffers = MapBuffers(spec, cells, top, marked, value)
    if value is None and not top and gpu.supports(spec):
        buffers.lse = gpu.log_sum_exp(spec) if lse is None else lse.float()
        gpu.reduce_map(spec, buffers)
    else:
        lse = log_sum_exp(spec) if lse is None else lse.float()
        by_loops = cpu.supports(spec) and not cpu.in_one_pass(spec)
        if not (by_loops and cpu.reduce_map(spec, buffers, lse)):
            buffers = MapBuffers(spec, cells, top, marked, value)
            buffers.lse = lse
            tiled.reduce_map(spec, buffers)  # also where a score is NaN or infinite
    if output is not None:
        buffers.attended = output.float()
    return buffers


def crop(
    spec: ScoreSpec, *, rows: slice, columns: slice | None = None, lse: Tensor | None = None
) -> Tensor:
    """Return the exact weights of a part of the map, (H, rows, columns).

    Parameters
    ----------
    rows : slice
        Which queries.
    columns : slice, optional
        Which keys; all by default.
    lse : Tensor, optional
        (H, m), as in `summarise`; without it that of these rows is computed.
    """
    m, n = spec.shape[1:]
    start, stop, _ = rows.indices(m)
    selected = spec.rows(slice(start, stop))
    first, end, _ = (columns or slice(None)).indices(n)
    lse = log_sum_exp(selected) if lse is None else lse[:, start:stop]
    scores = selected.scores(slice(0, max(0, stop - start)), slice(first, end))
    return (scores - lse.masked_fill(lse.isinf(), -NEVER)[..., None]).exp()
