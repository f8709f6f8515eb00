"""One attention, stage by stage: X → Q, K, V → scores → weights → heads → output, recomputed.

The formula is that of `attention.py` and `projection.py`; here it is applied to what a record
holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import torch
from torch import Tensor, nn

from attnviz.formula.attention import merge_heads, repeat_heads, split_heads
from attnviz.formula.projection import (
    clip,
    head_linear,
    layer_norm,
    linear,
    regroup,
    rms_norm,
    rotary,
    share,
)
from attnviz.results.attention_record import AttentionRecord
from attnviz.results.projection import (
    Clip,
    Factor,
    Gate,
    HeadProjection,
    Linear,
    Norm,
    Rotation,
    Step,
)

STAGES = ("query", "key", "value", "scores", "weights", "head output", "output")
Angles: TypeAlias = tuple[Tensor, Tensor]


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
    known = record.projection
    if known is not None and known.output is not None and known.before_output is not None:
        given = _before_output(record, stages["head output"])
        stages["output"] = _linear(known.output, merge_heads(given)).unsqueeze(0)
    return stages


def parts_of_output(record: AttentionRecord, heads: Tensor) -> Iterator[Tensor]:
    """Yield what each head (m, d_v) of the head output `heads` adds to the output: (m, d_model).

    With the bias they sum to the "output" of `recompute`, where there is one.
    """
    assert record.projection is not None
    for head, given in enumerate(_before_output(record, heads)):
        yield given @ record.projection.output_of(head).to(given)


def project(record: AttentionRecord, dtype: torch.dtype) -> dict[str, Tensor]:
    """Recompute query, key and value from X and the module's weights; nothing where these lack."""
    if record.projection is None:
        return {}
    made = {}
    for stage in ("query", "key", "value"):
        part: HeadProjection | None = getattr(record.projection, stage)
        X = source(record, stage)
        if part is not None and X is not None:
            heads = follow(part.after, begin(part, X.to(dtype)), record.rotation)
            # A model may repeat shared heads before attention, and not in it.
            made[stage] = repeat_heads(heads, len(getattr(record, stage)))
    return made


def source(record: AttentionRecord, stage: str) -> Tensor | None:
    """Return what the module makes this stage of: X, or for keys and values the other sequence."""
    if stage == "query" or record.key_input is None:
        return record.input
    return record.key_input


def value_input(record: AttentionRecord, dtype: torch.dtype = torch.float64) -> Tensor | None:
    """Return what the matrices `Projection.value_of` multiply: X, or its latent vectors (n, d)."""
    X = source(record, "value")
    if record.projection is None or record.projection.value is None or X is None:
        return None
    return _before(record.projection.value, X.to(dtype))


def begin(part: HeadProjection, X: Tensor) -> Tensor:
    """Return X W_h + b_h of every head h, (heads, T, d)."""
    bias = None if part.bias is None else part.bias.to(X)
    heads = head_linear(_before(part, X), part.weight.to(X), bias)
    return heads if part.beside is None else share(_linear(part.beside, X), heads)


def follow(
    steps: tuple[Step, ...], heads: Tensor, angles: Angles | None = None, X: Tensor | None = None
) -> Tensor:
    """Take some steps on all heads (heads, T, d); a rotation needs its angles, a gate the input."""
    for step in steps:
        match step:
            case Norm():
                heads = _normalise(step, heads)
            case Clip():
                heads = clip(heads, step.bound)
            case Factor():
                heads = heads * torch.as_tensor(step.factor).to(heads)
            case Rotation() if angles is not None:
                heads = _rotate(step, heads, angles)
            case Gate() if X is not None:
                heads = heads * _opening(step, X)
            case _:
                raise ValueError(f"expected what {type(step).__name__} needs, got None")
    return heads


def _before_output(record: AttentionRecord, heads: Tensor) -> Tensor:
    """Take the steps between the head output and W^O."""
    assert record.projection is not None
    assert record.projection.before_output is not None
    X = None if record.input is None else record.input.to(heads)
    return follow(record.projection.before_output, heads, X=X)


def _before(part: HeadProjection, X: Tensor) -> Tensor:
    for step in part.before:
        X = _linear(step, X) if isinstance(step, Linear) else _norm(step, X)
    return X


def _linear(map_: Linear, X: Tensor) -> Tensor:
    bias = None if map_.bias is None else map_.bias.to(X)
    return linear(X, map_.weight.to(X), bias)


def _normalise(norm: Norm, heads: Tensor) -> Tensor:
    if norm.over == "width":
        return split_heads(_norm(norm, merge_heads(heads)), len(heads))
    return _norm(norm, heads)


def _norm(norm: Norm, X: Tensor) -> Tensor:
    wide = X.to(torch.promote_types(X.dtype, torch.float32))  # as models do
    weight, bias = (
        # one weight per head holds for all its tokens
        None if part is None else part.to(wide).unsqueeze(-2)
        for part in (norm.weight, norm.bias)
    )
    weight = None if weight is None else weight + norm.offset
    if norm.kind == "layer":
        return layer_norm(wide, weight, bias, norm.eps).to(X.dtype)
    return rms_norm(wide, weight, norm.eps).to(X.dtype)


def _opening(gate: Gate, X: Tensor) -> Tensor:
    bias = None if gate.bias is None else gate.bias.to(X)
    through = head_linear(X, gate.weight.to(X), bias)
    wide = through.to(torch.promote_types(X.dtype, torch.float32))
    opened = torch.sigmoid(wide) if gate.opening == "sigmoid" else nn.functional.softplus(wide)
    return opened.to(X.dtype)


def _rotate(rotation: Rotation, heads: Tensor, angles: Angles) -> Tensor:
    cos, sin = (part.to(heads.dtype) for part in angles)
    before, turning = heads.tensor_split([rotation.first], dim=-1)
    if rotation.regrouped:
        turning = regroup(turning)
    turned = rotary(
        turning, cos, -sin if rotation.backwards else sin, interleaved=rotation.interleaved
    )
    return torch.cat((before, turned), -1)
