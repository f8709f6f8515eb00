"""torch's fused attention, and the log-sum-exp of each row that it knows besides."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attnviz.runtime.compat import CPU_FLASH_ATTENTION, TorchDispatchMode
from attnviz.streaming import gpu
from attnviz.streaming.scores import Scoring


def fused(scoring: Scoring, value: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return A = P V (H, m, d_v) and the log-sum-exp (H, m), or None where torch does not tell.

    value : (G, n, d_v). The operators behind torch's attention give the log-sum-exp for use in the
    backward pass; which of them runs is torch's choice, and some do not.
    """
    rule, (H, m, n) = scoring.visible, scoring.shape
    full = rule.before is None and rule.keys is None and rule.after in (None, 0)
    aligned = rule.after is None or (m == n and rule.offset == 0)
    plain = scoring.plain and scoring.bias is None and scoring.sinks is None
    # On a CPU the sums of half precision are no better than 1e-4.
    exact = scoring.query.is_cuda or scoring.query.dtype == torch.float32
    if not (full and aligned and plain and exact):
        return None
    if scoring.query.is_cuda:
        if not gpu.serves(scoring):
            return None
        given = scoring.query, scoring.key, value
        return gpu.fused_lse(*given, causal=rule.after == 0, scale=scoring.scale)
    shared = H // len(scoring.key)
    Q, K, V = (
        part.repeat_interleave(times, 0)[None].contiguous()
        for part, times in ((scoring.query, 1), (scoring.key, shared), (value, shared))
    )
    with _Told() as told:  # type: ignore[no-untyped-call]
        A = scaled_dot_product_attention(Q, K, V, is_causal=rule.after == 0, scale=scoring.scale)
    if told.lse is None or told.lse.shape[1:3] != (H, m):
        return None
    return A[0], told.lse[0].float()


class _Told(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees what fused attention gives besides its output."""

    lse: Tensor | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name == CPU_FLASH_ATTENTION:
            self.lse = result[1]
        return result
