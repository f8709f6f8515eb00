"""Exact reductions of attention maps of any length, never with T×T in memory.

One pass over a map reduces it to what a person can look at. Three engines give the same numbers:
`gpu` (Triton) and `cpu` (numba) where they support a map, and `reference`, in torch. On ROCm and
other devices `reference` reduces every map.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnviz.errors import InputError, whole_number
from attnviz.results import MapSummary
from attnviz.runtime.precision import exact_products
from attnviz.streaming import cpu, gpu, reference
from attnviz.streaming.reference import MapBuffers
from attnviz.streaming.scores import ScoreSpec

__all__ = ["ScoreSpec", "attend", "summarise"]


@exact_products()
@torch.no_grad()
def attend(
    spec: ScoreSpec, value: Tensor, *, cells: int = 512, top: int = 0, marked: Tensor | None = None
) -> tuple[Tensor, MapSummary]:
    """Return the attention vectors of every head, and the summary of its weights.

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
    if gpu.supports(spec):
        output, lse = gpu.fused(spec, value)
        return output.float(), _reduce(spec, lse=lse, cells=cells, top=top, marked=marked)[1]
    buffers, summary = _reduce(spec, value, cells=cells, top=top, marked=marked)
    return buffers.attended, summary


@exact_products()
@torch.no_grad()
def summarise(
    spec: ScoreSpec, *, cells: int = 512, top: int = 0, marked: Tensor | None = None
) -> MapSummary:
    """Reduce the weights of every head exactly, never with more than some rows in memory.

    Parameters
    ----------
    spec : ScoreSpec
        The attention before its softmax.
    cells : int
        How many rows and columns the pooled maps have at most.
    top : int
        For how many keys to keep the weight, for each query.
    marked : Tensor, optional
        (n,), True for the keys whose total weight to keep, for each query.

    Raises
    ------
    InputError
        `cells` or `top` is out of range.
    """
    return _reduce(spec, cells=cells, top=top, marked=marked)[1]


def _reduce(
    spec: ScoreSpec,
    value: Tensor | None = None,
    lse: Tensor | None = None,
    *,
    cells: int,
    top: int = 0,
    marked: Tensor | None = None,
) -> tuple[MapBuffers, MapSummary]:
    """Fill buffers by an engine that supports the map; `lse` (H, m) is used on a GPU only."""
    if whole_number(cells, "cells") < 1:
        raise InputError(f"cells must be at least 1, not {cells}.")
    if whole_number(top, "top") < 0:
        raise InputError(f"top must be at least 0, not {top}.")
    buffers = MapBuffers(spec, cells, top, marked, value)
    if value is None and gpu.supports(spec):
        gpu.reduce_map(spec, buffers, lse)
        if top:
            reference.find_top(spec, buffers)
    elif not cpu.supports(spec):
        reference.reduce_map(spec, buffers)
    elif not cpu.reduce_map(spec, buffers):  # a score is NaN or infinite
        buffers = MapBuffers(spec, cells, top, marked, value)
        reference.reduce_map(spec, buffers)
    empty = spec.visible.empty(*spec.shape[1:], spec.query.device)
    return buffers, buffers.summary(empty | (buffers.lse == -torch.inf).all(0))
