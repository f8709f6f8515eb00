"""One pass over a map, which reduces it to what a person can look at.

Three engines give the same numbers: `gpu` (Triton) and `cpu` (numba) where they support a map, and
`reference`, in torch. On ROCm and other devices `reference` reduces every map.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attnviz.errors import InputError, whole_number
from attnviz.results import MapSummary
from attnviz.runtime.precision import exact_products
from attnviz.streaming import cpu, gpu, reference
from attnviz.streaming.reference import MapBuffers
from attnviz.streaming.scores import ScoreSpec


@exact_products()
@torch.no_grad()
def attend(
    spec: ScoreSpec,
    value: Tensor,
    *,
    heads: Sequence[int] | None = None,
    cells: int = 512,
    top: int = 0,
    marked: Tensor | None = None,
) -> tuple[Tensor, MapSummary]:
    """Return the attention vectors of all heads, and the summary of the weights of some.

    Parameters
    ----------
    spec : ScoreSpec
        The attention before its softmax.
    value : Tensor
        (G, n, d_v), for the same heads as the keys.
    heads : sequence of int, optional
        The heads to summarize, in this order; all by default.
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
    settings: dict[str, Any] = {"cells": cells, "top": top, "marked": marked}
    if heads is None or list(heads) == list(range(len(spec.query))):
        output, lse = _fused(spec, value) if gpu.supports(spec) else (None, None)
        buffers, summary = _reduce(spec, None if output is not None else value, lse, **settings)
        return buffers.attended if output is None else output.float(), summary
    output, lse = _fused(spec, value)
    if output is None:
        output = _reduce(spec, value, cells=1)[0].attended
    lse = None if lse is None else lse[list(heads)]
    return output.float(), _reduce(spec.select_heads(heads), None, lse, **settings)[1]


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


def _fused(spec: ScoreSpec, value: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Return A = P V (H, m, d_v) of fused attention, and on a GPU its log-sum-exp (H, m).

    Both are None if the fused attention does not compute this one.
    """
    if gpu.supports(spec):
        return gpu.fused(spec, value)
    rule, (_, m, n) = spec.visible, spec.shape
    causal = rule.after == 0
    full = rule.before is None and rule.keys is None and (causal or rule.after is None)
    aligned = not causal or (m == n and rule.offset == 0)
    plain = spec.plain and spec.bias is None and spec.sinks is None
    # On a CPU the sums of half precision are no better than 1e-4.
    exact = spec.query.dtype == torch.float32 and not spec.query.is_cuda
    if not (full and aligned and plain and exact):
        return None, None
    Q, K, V = (tensor[None] for tensor in (spec.query, spec.key, value))
    shared = len(spec.query) > len(spec.key)
    output = scaled_dot_product_attention(
        Q, K, V, is_causal=causal, scale=spec.scale, enable_gqa=shared
    )
    return output[0], None
