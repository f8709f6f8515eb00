"""How an attention module makes queries, keys and values of its input: as data, recomputed.

Every family of models does it a little differently. Written as data, each is the same few steps
with other numbers, and one function computes them all.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from operator import itemgetter, methodcaller
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from attnviz.formula import projection as formula
from attnviz.formula.attention import merge_heads, repeat_heads, split_heads
from attnviz.results.base import Savable, doc, documented
from attnviz.runtime.libraries import exact_products

if TYPE_CHECKING:
    from attnviz.results.attention_record import AttentionRecord

_NUMBERS = {"cpu": 2**20, "cuda": 2**26}  # of the contributions of heads that are held at once
STAGES = ("query", "key", "value", "scores", "weights", "head output", "output")
Angles: TypeAlias = tuple[Tensor, Tensor]


@documented
class Linear(Savable):
    """The map X W + b."""

    weight: Tensor = doc("W (d_in, d_out).")
    bias: Tensor | None = doc("b (d_out,), or None.")


@documented
class Norm(Savable):
    """A norm over the features of one head, or of all heads together."""

    kind: Literal["rms", "layer"] = doc(
        '"rms" divides by the root mean square, "layer" subtracts the mean before.'
    )
    over: Literal["head", "width"] = doc('"head", or "width" for all heads side by side.')
    weight: Tensor | None = doc("(d,), or (heads, d) if every head has its own; None without one.")
    bias: Tensor | None = doc("As `weight`.")
    eps: float = doc("What is added to the mean square.")
    offset: float = doc("Added to the weight: 1 if it is stored as a distance from 1.", default=0.0)


@documented(eq=True)
class Rounding(Savable):
    """Round to one of 256 numbers, as a dynamically quantized layer rounds its input."""

    scale: float = doc("As in `torch.quantize_per_tensor`.")
    zero_point: int = doc("Likewise.")


@documented(eq=True)
class Clip(Savable):
    """Cut every number to what lies between -bound and bound."""

    bound: float = doc("The largest number.")


@documented
class Factor(Savable):
    """Multiply by a number, beside the scale of the scores."""

    factor: float | Tensor = doc("The number, or one per position (T, 1).")


@documented(eq=True)
class Rotation(Savable):
    """Turn pairs of features by the angles that the record holds."""

    first: int = doc("The first that turns; those before, and after the last, stay.", default=0)
    interleaved: bool = doc("Pairs are (2i, 2i + 1), and not (i, i + r/2).", default=False)
    regrouped: bool = doc("Pairs of (2i, 2i + 1) are put at (i, i + r/2).", default=False)
    backwards: bool = doc("The angles are negative.", default=False)


@documented
class Gate(Savable):
    """Multiply each head by a gate computed from X: opening(X W_h + b_h)."""

    weight: Tensor = doc("(heads, d_in, d), or (heads, d_in, 1) for one number per head.")
    bias: Tensor | None = doc("(heads, d or 1), or None.", default=None)
    opening: Literal["sigmoid", "softplus"] = doc("What is taken of it.", default="sigmoid")


Step: TypeAlias = Norm | Clip | Factor | Rotation | Gate


@documented
class HeadProjection(Savable):
    """How one of Q, K and V follows from the input X: X W_h + b_h for every head h, then steps."""

    weight: Tensor = doc("(heads, d_in, d); in a result, a copy of the model's own.")
    bias: Tensor | None = doc("(heads, d), or None.", default=None)
    before: tuple[Linear | Norm | Rounding, ...] = doc(
        "What is done to X first: a map to a narrower vector, its norm, or rounding.", default=()
    )
    beside: Linear | None = doc(
        "(d_in, r), features of X that all heads share, put after those of each head.", default=None
    )
    after: tuple[Step, ...] = doc("The steps that follow, on every head.", default=())


@documented
class Projection(Savable):
    """How a module makes Q, K, V from its input X, and its output; None for what is not known."""

    heads: int = doc("The number of query heads H.")
    query: HeadProjection | None = doc("Of Q.")
    key: HeadProjection | None = doc("Of K.")
    value: HeadProjection | None = doc("Of V.")
    output: Linear | None = doc("W^O (H·d_v, d_model).", default=None)
    before_output: tuple[Step, ...] | None = doc("The steps from A·V of a head to W^O.", default=())

    def __repr__(self) -> str:
        names = ("query", "key", "value", "output")
        known = [name for name in names if getattr(self, name) is not None]
        return f"Projection({self.heads} heads: {', '.join(known) or 'nothing known'})"


@exact_products()
def recompute(record: AttentionRecord, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """Recompute every stage in `dtype`.

    Q, K and V follow from X and the module's weights; everything after them from the Q, K and V of
    the model. So a wrong stage is named, and not those that follow from it. Softmax is taken in
    float32 or wider, as models do.

    Returns by stage, heads first: query (H, m, d_k), key (G, n, d_k), value (G, n, d_v), scores and
    weights (H, m, n), head output (H, m, d_v), output (1, m, d_model). Stages that need weights
    of the module which the record does not hold are left out.
    """
    (stages,) = project_all([record], dtype)
    stages["scores"] = record.scores(dtype=dtype)
    stages["weights"] = record.weights(dtype=dtype)
    stages["head output"] = record.mix(stages["weights"])
    if has_output(record):
        stages["output"] = output_of(record, stages["head output"])
    return stages


def has_output(record: AttentionRecord) -> bool:
    """Whether it is known how the output follows from the heads."""
    known = record.projection
    return known is not None and known.output is not None and known.before_output is not None


def output_of(record: AttentionRecord, heads: Tensor) -> Tensor:
    """Return the output (1, m, d_model) that follows from the head outputs (H, m, d_v)."""
    heads, output = _before_output(record, heads)
    return _linear(output, merge_heads(heads)).unsqueeze(0)


def parts_of_output(record: AttentionRecord, heads: Tensor) -> Iterator[Tensor]:
    """Yield what some heads at a time (h, m, d_model) add to the output, for all heads (H, m, d_v).

    With the bias all sum to the "output" of `recompute`, where there is one.
    """
    heads, output = _before_output(record, heads)
    matrices = output.weight.view(len(heads), heads.shape[2], -1)
    size = heads.shape[1] * matrices.shape[2]
    count = max(1, _NUMBERS.get(heads.device.type, _NUMBERS["cuda"]) // size)
    pairs = zip(torch.split(heads, count), torch.split(matrices, count), strict=True)
    yield from (some @ of_some.to(heads) for some, of_some in pairs)


def project_all(
    records: Sequence[AttentionRecord], dtype: torch.dtype, wanted: Sequence[str] = STAGES
) -> list[dict[str, Tensor]]:
    """Recompute query, key and value of each record from X and weights, where both are known.

    Texts with one projection are one product, and layers with the same steps take them together.
    """
    found: list[dict[str, Tensor]] = [{} for _ in records]
    in_dtype = cache(methodcaller("to", dtype))  # queries, keys and values have one input
    joined = [(len(same), join_inputs(same)) for same in of_one_projection(records)]
    for stage in (stage for stage in ("query", "key", "value") if stage in wanted):
        begun: list[tuple[tuple[Any, ...], range, Tensor, Angles | None]] = []
        start = 0
        for texts, one in joined:
            numbers = range(start, start := start + texts)
            part: HeadProjection | None = getattr(one.projection, stage, None)
            X = source(one, stage)
            if part is not None and X is not None:
                made, turns = begin(part, in_dtype(X)), one.rotation is not None
                kind = part.after, turns, len(made), made.shape[2]
                begun.append((kind, numbers, made, one.rotation))
        for (steps, turns, *_), several in itertools.groupby(begun, itemgetter(0)):
            _, of_each, heads, angles = zip(*several, strict=True)
            if steps:  # which are the same for all tokens
                of_all: Any = tuple(map(torch.cat, zip(*angles, strict=True))) if turns else None
                lengths = [one.shape[1] for one in heads]
                heads = torch.split(follow(steps, torch.cat(heads, 1), of_all), lengths, 1)
            for each, of_layer in zip(of_each, heads, strict=True):
                # A model may repeat shared heads before attention, and not in it.
                whole = repeat_heads(of_layer, len(getattr(records[each.start], stage)))
                for n, of_text in zip(each, whole.chunk(len(each), 1), strict=True):
                    found[n][stage] = of_text
    return found


def of_one_projection(records: Sequence[AttentionRecord]) -> Iterator[list[AttentionRecord]]:
    """Yield the records that follow each other and share a projection, as texts of a batch do."""
    for _, same in itertools.groupby(records, lambda record: id(record.projection or record)):
        yield [*same]


def join_inputs(records: Sequence[AttentionRecord]) -> AttentionRecord:
    """Return the first of some records of one form, with the inputs and the angles of all."""
    first = records[0]
    if len(records) == 1:
        return first

    def join(tensors: Sequence[Tensor | None]) -> Tensor | None:
        known = [tensor for tensor in tensors if tensor is not None]
        return torch.cat(known) if known else None

    inputs, keys = (join([getattr(r, name) for r in records]) for name in ("input", "key_input"))
    angles = [record.rotation for record in records if record.rotation is not None]
    rotation: Any = tuple(map(torch.cat, zip(*angles, strict=True))) or None
    return replace(first, input=inputs, key_input=keys, rotation=rotation)


def source(record: AttentionRecord, stage: str) -> Tensor | None:
    """Return the input of a stage: X, or for keys and values the other sequence."""
    return record.input if stage == "query" or record.key_input is None else record.key_input


def begin(part: HeadProjection, X: Tensor) -> Tensor:
    """Return X W_h + b_h of every head h, (heads, T, d)."""
    inputs, bias = follow(part.before, X), _to(part.bias, X)
    if X.dtype == torch.float64:  # where one product of all heads is twice as fast
        W = part.weight.transpose(0, 1).to(X, memory_format=torch.contiguous_format).flatten(1)
        joined = formula.linear(inputs, W, None if bias is None else bias.flatten())
        heads = split_heads(joined, len(part.weight))
    else:
        heads = formula.head_linear(inputs, part.weight.to(X), bias)
    return heads if part.beside is None else formula.share(_linear(part.beside, X), heads)


def follow(
    steps: tuple[Step | Linear | Rounding, ...],
    heads: Tensor,
    angles: Angles | None = None,
    X: Tensor | None = None,
) -> Tensor:
    """Take some steps on all heads (heads, T, d), or on their input (T, d) before there are heads.

    A rotation needs its angles, a gate the input.
    """
    for step in steps:
        match step:
            case Norm(over="width"):
                heads = split_heads(_norm(step, merge_heads(heads)), len(heads))
            case Norm():
                heads = _norm(step, heads)
            case Linear():
                heads = _linear(step, heads)
            case Rounding():
                heads = _round(step, heads)
            case Clip():
                heads = formula.clip(heads, step.bound)
            case Factor():
                heads = heads * torch.as_tensor(step.factor).to(heads)
            case Rotation() if angles is not None:
                heads = _rotate(step, heads, angles)
            case Gate() if X is not None:
                heads = heads * _opening(step, X)
            case _:
                raise ValueError(f"{type(step).__name__} needs angles or the input")
    return heads


def _before_output(record: AttentionRecord, heads: Tensor) -> tuple[Tensor, Linear]:
    """Take the steps between the head output and W^O, which is returned too."""
    projection: Any = record.projection  # known where `has_output`
    steps = projection.before_output
    X = _to(record.input, heads) if steps else None
    return follow(steps, heads, X=X), projection.output


def _round(rounding: Rounding, X: Tensor) -> Tensor:
    """Return rounded numbers; in float32, as torch, so that ties go the same way."""
    inverse = 1 / torch.tensor(rounding.scale, device=X.device)
    steps = (X.float() * inverse + rounding.zero_point).round()
    return (steps.clamp(0, 255) - rounding.zero_point).to(X.dtype) * rounding.scale


def _to(numbers: Tensor | None, other: Tensor) -> Tensor | None:
    return None if numbers is None else numbers.to(other)


def _linear(map_: Linear, X: Tensor) -> Tensor:
    return formula.linear(X, map_.weight.to(X), _to(map_.bias, X))


def _norm(norm: Norm, X: Tensor) -> Tensor:
    wide = X.to(torch.promote_types(X.dtype, torch.float32))  # as models do
    weight, bias = (
        # one weight per head holds for all its tokens
        None if part is None else part.to(wide).unsqueeze(-2)
        for part in (norm.weight, norm.bias)
    )
    weight = None if weight is None else weight + norm.offset
    if norm.kind == "layer":
        return formula.layer_norm(wide, weight, bias, norm.eps).to(X.dtype)
    return formula.rms_norm(wide, weight, norm.eps).to(X.dtype)


def _opening(gate: Gate, X: Tensor) -> Tensor:
    through = formula.head_linear(X, gate.weight.to(X), _to(gate.bias, X))
    wide = through.to(torch.promote_types(X.dtype, torch.float32))
    opened = torch.sigmoid(wide) if gate.opening == "sigmoid" else nn.functional.softplus(wide)
    return opened.to(X.dtype)


def _rotate(rotation: Rotation, heads: Tensor, angles: Angles) -> Tensor:
    cos, sin = (part.to(heads.dtype) for part in angles)
    before, turning = heads.tensor_split([rotation.first], dim=-1)
    if rotation.regrouped:
        turning = formula.regroup(turning)
    turned = formula.rotary(
        turning, cos, -sin if rotation.backwards else sin, interleaved=rotation.interleaved
    )
    return torch.cat((before, turned), -1) if rotation.first else turned
