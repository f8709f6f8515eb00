"""The fused attention of torch, with the log-sum-exp of each row that it computes anyway.

The operators are private. On CUDA, an operator that raises, or whose rows differ from float64, is
not called again for this kind of attention; the last resort is a kernel of our own for the
log-sum-exp.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attnviz.results import MaskRule
from attnviz.runtime.compat import (
    CPU_FLASH_ATTENTION,
    TorchDispatchMode,
    cuda_attention_operators,
)
from attnviz.streaming import gpu
from attnviz.streaming.scores import ScoreSpec

Operator: TypeAlias = Callable[[Tensor, Tensor, Tensor, bool, float], tuple[Tensor, Tensor]]
_refused: set[tuple[object, ...]] = set()


def fused(spec: ScoreSpec, value: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return A = P V (H, m, d_v) and the log-sum-exp (H, m); None if torch does not return it.

    value : (G, n, d_v). The operators behind torch's attention return the log-sum-exp for the
    backward pass. torch chooses the operator, and some do not return it.
    """
    rule, (H, m, n) = spec.visible, spec.shape
    full = rule.before is None and rule.keys is None and rule.after in (None, 0)
    aligned = rule.after is None or (m == n and rule.offset == 0)
    plain = spec.plain and spec.bias is None and spec.sinks is None
    # On a CPU the sums of half precision are no better than 1e-4.
    exact = spec.query.is_cuda or spec.query.dtype == torch.float32
    if not (full and aligned and plain and exact):
        return None
    if spec.query.is_cuda:
        if not gpu.supports(spec):
            return None
        return fused_on_gpu(spec.query, spec.key, value, causal=rule.after == 0, scale=spec.scale)
    shared = H // len(spec.key)
    Q, K, V = (
        tensor.repeat_interleave(times, 0)[None].contiguous()
        for tensor, times in ((spec.query, 1), (spec.key, shared), (value, shared))
    )
    with _LogSumExpTracer() as tracer:  # type: ignore[no-untyped-call]
        A = scaled_dot_product_attention(Q, K, V, is_causal=rule.after == 0, scale=spec.scale)
    if tracer.lse is None or tracer.lse.shape[1:3] != (H, m):
        return None
    return A[0], tracer.lse[0].float()


class _LogSumExpTracer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Reads the log-sum-exp that the operator on a CPU returns besides its output."""

    lse: Tensor | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if name == CPU_FLASH_ATTENTION:
            self.lse = result[1]
        return result


def fused_on_gpu(
    query: Tensor, key: Tensor, value: Tensor, *, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Return the output of an attention and the log-sum-exp of its rows of scores, on CUDA.

    Parameters
    ----------
    query : Tensor
        (H, m, d).
    key, value : Tensor
        (G, n, d), each for H / G heads.
    causal : bool
        Whether a query reads no later key, the last query being at the last key.

    Returns
    -------
    output : Tensor
        (H, m, d), in the precision of the query.
    lse : Tensor
        (H, m), float32, natural.
    """
    m, n = query.shape[1], key.shape[1]
    Q, K, V = (tensor[None] for tensor in (query, key, value))
    if not causal or m == n:  # otherwise the operators differ on the position of the first query
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
            result = output[0], lse.reshape(len(query), -1)[:, :m].float()
            if _agrees(*result, query, key, value, causal=causal, scale=scale):
                return result
            _refused.add((name, *kind))
    mask = None
    if causal and m != n:
        from torch.nn.attention.bias import causal_lower_right  # loads Triton

        mask = causal_lower_right(m, n)
    output = scaled_dot_product_attention(
        Q, K, V, mask, is_causal=causal and m == n, scale=scale, enable_gqa=True
    )
    rule = MaskRule(after=0 if causal else None, offset=n - m)
    return output[0], gpu.log_sum_exp(ScoreSpec(query, key, scale, rule))


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
