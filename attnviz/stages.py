"""One attention, stage by stage: X → Q, K, V → scores → weights → heads → output, recomputed.

The formula is `attention.py`'s; here it is applied to what a record holds.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnviz.attention import merge_heads, repeat_heads, split_heads
from attnviz.projection import linear, rms_norm, rotary
from attnviz.records import AttentionRecord, HeadNorm, Linear

STAGES = ("query", "key", "value", "scores", "weights", "head output", "output")


def recompute(record: AttentionRecord, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Recompute every stage in `dtype`.

    Q, K and V follow from X and the module's weights; everything after them from the Q, K and V
    that the model had. So a stage that is wrong is named by itself, not by those that follow.
    Softmax is taken in float32 or wider, as models do.

    Returns
    -------
    By stage, heads first: query (H, m, d_k), key (G, n, d_k), value (G, n, d_v), scores and
    weights (H, m, n), head output (H, m, d_v), output (1, m, d_model). Stages that need weights
    of the module which the record does not hold are left out.
    """
    stages = project(record, dtype)
    stages["scores"] = record.scores(dtype=dtype)
    stages["weights"] = record.weights(dtype=dtype)
    stages["head output"] = stages["weights"] @ repeat_heads(record.value.to(dtype), record.heads)
    projection = record.projection
    if projection is not None and projection.output is not None:
        concatenated = merge_heads(stages["head output"])
        stages["output"] = _apply(projection.output, concatenated).unsqueeze(0)
    return stages


def project(record: AttentionRecord, dtype: torch.dtype) -> dict[str, Tensor]:
    """Recompute query, key and value from X and the module's weights; nothing where these lack."""
    projection = record.projection
    if projection is None or record.input is None:
        return {}
    X = record.input.to(dtype)
    C = X if record.key_input is None else record.key_input.to(dtype)
    Q = split_heads(_apply(projection.query, X), record.heads)
    K = split_heads(_apply(projection.key, C), record.key_heads)
    return {
        "query": _rotate(_normalise(projection.query_norm, Q), record),
        "key": _rotate(_normalise(projection.key_norm, K), record),
        "value": split_heads(_apply(projection.value, C), record.key_heads),
    }


def _apply(projection: Linear, X: Tensor) -> Tensor:
    bias = None if projection.bias is None else projection.bias.to(X.dtype)
    return linear(X, projection.weight.to(X.dtype), bias)


def _normalise(norm: HeadNorm | None, X: Tensor) -> Tensor:
    if norm is None:
        return X
    wide = torch.promote_types(X.dtype, torch.float32)  # as models do
    return rms_norm(X.to(wide), norm.weight.to(wide), norm.eps).to(X.dtype)


def _rotate(X: Tensor, record: AttentionRecord) -> Tensor:
    if record.rotation is None:
        return X
    cos, sin = (_both_halves(part.to(X.dtype)) for part in record.rotation)
    return rotary(X, cos, sin)


def _both_halves(angles: Tensor) -> Tensor:
    """Repeat angles that a model gives once for both halves of the features."""
    first, second = angles.tensor_split(2, dim=-1)
    given_twice = first.shape == second.shape and torch.equal(first, second)
    return angles if given_twice else torch.cat([angles, angles], dim=-1)
