"""Attention whose log-sum-exp is told: what torch offers on CUDA, believed only after a look.

The operators are private. One that raises, or whose row is not what float64 says, is not asked
again for attention of this kind; where none is left, a kernel of our own finds the log-sum-exp.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attnviz.results import MaskRule
from attnviz.runtime.compat import cuda_attention_operators
from attnviz.streaming.gpu.launch import log_sum_exp_on_gpu
from attnviz.streaming.scores import Scoring

_refused: set[tuple[object, ...]] = set()


def fused_lse(
    query: Tensor, key: Tensor, value: Tensor, *, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Return the output of an attention and the log-sum-exp of its rows of scores, on CUDA.

    Parameters
    ----------
    query : (H, m, d). key, value : (G, n, d), each for H / G heads.
    causal : whether a query reads no key behind it, the last query standing at the last key.

    Returns
    -------
    output : (H, m, d), in the precision of the query.
    lse : (H, m), float32, natural.
    """
    m, n = query.shape[1], key.shape[1]
    Q, K, V = (each[None] for each in (query, key, value))
    if not causal or m == n:  # else the operators do not agree on where the first query stands
        kind = query.dtype, query.shape[-1], len(query) > len(key), causal, query.device
        for name, way in _ways(query.device).items():
            if (name, *kind) in _refused:
                continue
            try:
                output, lse = way(Q, K, V, causal, scale)
            except torch.OutOfMemoryError:
                raise
            except (RuntimeError, NotImplementedError, AttributeError, TypeError):
                _refused.add((name, *kind))  # not in this build, or not for these shapes
                continue
            found = output[0], lse.reshape(len(query), -1)[:, :m].float()
            if _agrees(*found, query, key, value, causal=causal, scale=scale):
                return found
            _refused.add((name, *kind))
    mask = None
    if causal and m != n:
        from torch.nn.attention.bias import causal_lower_right  # loads Triton

        mask = causal_lower_right(m, n)
    output = scaled_dot_product_attention(
        Q, K, V, mask, is_causal=causal and m == n, scale=scale, enable_gqa=True
    )
    rule = MaskRule(after=0 if causal else None, offset=n - m)
    return output[0], log_sum_exp_on_gpu(Scoring(query, key, scale, rule))


def _ways(
    device: torch.device,
) -> dict[str, Callable[[Tensor, Tensor, Tensor, bool, float], tuple[Tensor, Tensor]]]:
    """Return the operators that tell a log-sum-exp, the fastest first."""
    operators = cuda_attention_operators()

    def cudnn(Q: Tensor, K: Tensor, V: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
        found = operators["cudnn"](Q, K, V, None, True, 0.0, causal, False, scale=scale)
        return found[0], found[1]

    def flash(Q: Tensor, K: Tensor, V: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
        found = operators["flash"](Q, K, V, 0.0, causal, False, scale=scale)
        return found[0], found[1]

    def efficient(
        Q: Tensor, K: Tensor, V: Tensor, causal: bool, scale: float
    ) -> tuple[Tensor, Tensor]:
        K, V = (each.repeat_interleave(Q.shape[1] // K.shape[1], dim=1) for each in (K, V))
        found = operators["efficient"](Q, K, V, None, True, 0.0, causal, scale=scale)
        return found[0], found[1]

    if torch.cuda.get_device_capability(device) >= (9, 0):
        return {"cudnn": cudnn, "flash": flash, "efficient": efficient}
    return {"flash": flash, "cudnn": cudnn, "efficient": efficient}


def _agrees(
    output: Tensor, lse: Tensor, query: Tensor, key: Tensor, value: Tensor, *,
    causal: bool, scale: float,
) -> bool:  # fmt: skip
    """Whether the middle and the last row of every head are what float64 says."""
    m, shared = query.shape[1], len(query) // len(key)
    near = 2e-3 if query.dtype == torch.float32 else 2e-2
    agree = torch.ones((), dtype=torch.bool, device=query.device)
    for row in {m // 2, m - 1}:
        for g in range(len(key)):
            heads = slice(g * shared, (g + 1) * shared)
            seen = slice(0, row + 1) if causal else slice(None)
            scores = query[heads, row].double() @ key[g, seen].double().mT * scale
            expected = scores.softmax(-1) @ value[g, seen].double()
            right = torch.logsumexp(scores, -1)
            agree &= ((lse[heads, row] - right).abs() <= 2e-4 + 1e-5 * right.abs()).all()
            wrong = (output[heads, row].double() - expected).norm(dim=-1)
            agree &= (wrong <= near * expected.norm(dim=-1)).all()
    return bool(agree)
