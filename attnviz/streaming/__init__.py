"""Exact reductions of attention maps of any length, never with T×T in memory.

One pass over a map reduces it to what a person can look at. Three engines give the same numbers:
`gpu` (Triton) and `cpu` (numba) where they support a map, and `reference`, in torch. On ROCm and
other devices `reference` reduces every map.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnviz.results import MapSummary
from attnviz.runtime.libraries import exact_products
from attnviz.streaming import cpu, gpu, reference
from attnviz.streaming.reference import MapBuffers, ScoreSpec

__all__ = ["ScoreSpec", "attend"]


@exact_products()
@torch.no_grad()
def attend(
    spec: ScoreSpec,
    value: Tensor | None = None,
    *,
    cells: int = 512,
    top: int = 0,
    marked: Tensor | None = None,
    lse: Tensor | None = None,
) -> tuple[Tensor, MapSummary]:
    """Return the attention vectors of every head, and the exact summary of its weights.

    Never more than some rows of the weights are in memory.
    The vectors are (H, m, d_v), float32; 0 in rows that may read nothing.

    value : (G, n, d_v), for the same heads as the keys; by default vectors without features.
    cells : how many rows and columns the pooled maps have at most.
    top : for how many keys to keep the weight, for each query.
    marked : (n,), True for the keys whose total weight to keep, for each query.
    lse : (H, m), the log-sum-exp of each row and its sink, if a GPU has computed it.
    """
    output = None
    if gpu.supports(spec):
        lse = gpu.log_sum_exp(spec) if lse is None else lse
        output = None if value is None else reference.attend(spec, value, lse)
        buffers = MapBuffers(spec, cells, top, marked, None)
        gpu.reduce_map(spec, buffers, lse)
        if top:
            reference.find_top(spec, buffers)
    else:
        buffers = MapBuffers(spec, cells, top, marked, value)
        if not cpu.supports(spec):
            reference.reduce_map(spec, buffers)
        elif not cpu.reduce_map(spec, buffers):  # a score is NaN or infinite
            buffers = MapBuffers(spec, cells, top, marked, value)
            reference.reduce_map(spec, buffers)
    empty = spec.visible.empty(*spec.shape[1:], spec.query.device)
    summary = buffers.summary(empty | (buffers.lse == -torch.inf).all(0))
    return buffers.attended if output is None else output, summary
