"""Compare another tool's weights with those of attnviz, and find what explains a difference."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor

from attnviz.agreement import CANARY, PRECISIONS, dtypes
from attnviz.analyses.check.result import CheckResult, Mismatch, name_layers
from attnviz.errors import InputError
from attnviz.inputs.tokens import TextSource
from attnviz.io import read_weights
from attnviz.pipeline.attend import Loadable, Model, OneInput, attended
from attnviz.pipeline.given import weights_by_layer
from attnviz.results import AttentionRecord, AttentionResult, one_result
from attnviz.results.arguments import checked_scalars
from attnviz.results.text import counted, shortened

_LARGER = 2  # how far runs of two tools may be apart in a layer, in errors of one run
_LISTED = 8  # heads in another order


@checked_scalars
def check(
    weights: str | os.PathLike[str] | Any,
    text: TextSource | AttentionResult | None = None,
    model: Model | Loadable | None = None,
    *,
    stack: str | None = None,
    **inputs: Unpack[OneInput],
) -> CheckResult:
    """Compare another tool's attention weights with those of attnviz, head by head.

    attnviz runs the model by itself and verifies its own weights. A head of the other tool agrees
    if no weight differs by more than rounding explains, and if a wrong scale would show.

    Parameters
    ----------
    weights : path, array, tensor, sequence or mapping of these
        A file .npy, .npz or .safetensors with the weights of another tool: one array of layers ×
        heads × queries × keys, or one for each layer, with its number in the name.

        Or what `from_weights` takes: what transformers returns, the input of BertViz, the
        cache of TransformerLens, the values saved in a trace of nnsight. A mapping may have some
        layers only: ``{3: weights}``.
    text : str, ids, BatchEncoding, messages or AttentionResult
        What the tool read, as in `attend`. A tool that adds other special tokens is checked with
        the ids that it read. A result of `attend` is taken as it is, and no model runs.
    model : Model, str, path, PreTrainedModel, an object that holds one, or None
        As in `attend`.
    stack : str, optional
        The stack of an encoder–decoder; by default "cross".
    **inputs
        Further inputs of `attend`, such as `pair` or `target`.

    Returns
    -------
    CheckResult
        Whether all heads agree. If not, the first head that differs, the cell in which it does so
        most, and hints: heads or layers in another order, a mask that is off by one, a factor.

    Raises
    ------
    InputError
        The weights are not of this model and text, by their shape.

    Examples
    --------
    >>> import attnviz
    >>> result = attnviz.attend("the train left the station")
    >>> weights = result.weights()  # or those of another tool
    >>> attnviz.check(weights, result).agrees
    True
    >>> weights[2, [1, 5]] = weights[2, [5, 1]]
    >>> attnviz.check(weights, result).hints
    ('heads 1 and 5 of layer 2 are swapped',)
    """
    if isinstance(weights, str | os.PathLike):
        weights = read_weights(Path(weights))
    layers, how = weights_by_layer(weights, stack or "cross")
    if not isinstance(text, AttentionResult):
        inputs.setdefault("mode", "full")
    result = one_result(attended(text, model, inputs)).stack(stack)
    if not hasattr(weights, "items") and len(layers) != len(result.layers):
        raise InputError(
            f"The weights have {counted(len(layers), 'layer')}, and {result.provenance.model} has "
            f"{len(result.layers)}. Give all, or name them: {{3: weights}}."
        )
    numbers = layers if hasattr(weights, "items") else result.layers
    pairs = [
        _pair(result.record(layer), array)
        for layer, array in zip(numbers, layers.values(), strict=True)
    ]
    differing = next((pair for pair in pairs if not pair.agree.all()), None)
    if unnoticed := [pair.record.layer for pair in pairs if not pair.catches_canary]:
        how = (*how, f"a scale 1 % off would go unnoticed in {name_layers(unnoticed)}")
    return CheckResult(
        layers=tuple(pair.record.layer for pair in pairs for _ in pair.agree),
        heads=tuple(head for pair in pairs for head in range(len(pair.agree))),
        differences=torch.cat([pair.differences for pair in pairs]),
        tolerances=torch.cat([torch.full_like(p.differences, p.tolerance) for p in pairs]),
        agree=torch.cat([pair.agree for pair in pairs]),
        first=None if differing is None else _first_mismatch(differing),
        hints=() if differing is None else tuple(_hints(differing, pairs, result)),
        notes=how,
        agreement=result.checked_agreement,
        provenance=result.provenance,
    )


@dataclass(frozen=True, eq=False)
class _Pair:
    """One layer: the record, both weights (H, m, n) in float64 on the CPU, and how they compare."""

    record: AttentionRecord
    ours: Tensor
    theirs: Tensor
    differences: Tensor  # (H,), the largest of each head
    tolerance: float  # the largest that passes
    slopes: Tensor  # (H,), of the log weights, minus 1
    agree: Tensor  # (H,)
    catches_canary: bool

    def name(self, heads: list[int]) -> str:
        """Return the name of some heads: "layer 3" of all, "head 3.5" of one."""
        if len(heads) == len(self.agree):
            return f"layer {self.record.layer}"
        names = ", ".join(f"{self.record.layer}.{head}" for head in heads)
        return f"head{'s' if len(heads) > 1 else ''} {names}"

    def matches(self, one: Tensor, other: Tensor) -> bool:
        """Return whether two arrays of weights differ by no more than what passes."""
        return bool(((one - other).abs() <= self.tolerance).all())


def _pair(record: AttentionRecord, given: Tensor) -> _Pair:
    """Compare one layer; raise InputError where the shapes differ."""
    record.expect_vectors("checks need")
    ours = record.weights(dtype=torch.float64).cpu()
    theirs = given.double()
    if theirs.shape[1:] != ours.shape[1:]:
        tokens = shortened(" ".join(record.query_axis.labels), 40)
        raise InputError(
            f"The weights are {theirs.shape[1]} × {theirs.shape[2]}, but attnviz read "
            f"{ours.shape[1]} × {ours.shape[2]} tokens: {tokens}. Give the ids that the tool read: "
            "check(weights, ids, model)."
        )
    if len(theirs) != len(ours):
        mean = " (the mean of all)" if theirs.allclose(ours.mean(0), atol=1e-5) else ""
        raise InputError(
            f"Layer {record.layer} of the model has {len(ours)} heads, and its weights here have "
            f"{len(theirs)}{mean}. Give every head."
        )
    # Rounding errors of two runs add up from layer to layer; weights are rounded once when stored.
    precision, stored = PRECISIONS[dtypes(record)[1]], torch.finfo(given.dtype)
    runs = _LARGER * (record.layer + 1)
    tolerance = runs * precision.weights + stored.eps
    differences = (theirs - ours).abs().flatten(1).amax(1)
    slopes, spread = _slopes(ours, theirs, max(precision.tiny, stored.tiny))
    noise = 4 / spread.clamp(min=1e-12)  # standard errors of a slope, for errors of 1
    allowed = runs * (noise * precision.eps).clamp(min=2 * precision.slope) + noise * stored.eps
    # not (>), since a comparison with NaN is False
    agree = (differences <= tolerance) & (slopes.abs() <= allowed)
    canary = replace(record, scale=record.scale * CANARY).weights(dtype=torch.float64).cpu()
    moved = (canary - ours).abs().flatten(1).amax(1) > tolerance
    catches = bool((moved | (allowed < CANARY - 1)).any())
    return _Pair(record, ours, theirs, differences, tolerance, slopes, agree, catches)


def _slopes(ours: Tensor, theirs: Tensor, tiny: float) -> tuple[Tensor, Tensor]:
    """Return the slope of their log weights on ours, minus 1, and the norm of ours, (H,) each.

    Log weights are scores, up to a constant of each row. Weights below `tiny` are mostly rounding.
    """
    usable = (ours > tiny) & (theirs > tiny)
    count = usable.sum(-1, keepdim=True).clamp(min=1)

    def centered(weights: Tensor) -> Tensor:
        logs = torch.where(usable, weights, 1.0).log()
        return (logs - logs.sum(-1, keepdim=True) / count).where(usable, 0.0).flatten(1)

    x, y = centered(ours), centered(theirs)
    squares = (x * x).sum(1)
    return (x * (y - x)).sum(1) / squares.clamp(min=1e-300), squares.sqrt()


def _first_mismatch(pair: _Pair) -> Mismatch:
    head = int(pair.agree.logical_not().nonzero()[0])
    gaps = (pair.theirs[head] - pair.ours[head]).abs().nan_to_num(nan=math.inf)
    row, column = divmod(int(gaps.argmax()), gaps.shape[1])
    return Mismatch(
        layer=pair.record.layer,
        head=head,
        row=row,
        column=column,
        query=pair.record.query_axis.labels[row],
        key=pair.record.key_axis.labels[column],
        theirs=pair.theirs[head, row, column].item(),
        ours=pair.ours[head, row, column].item(),
    )


# --- what explains a difference: each is tried, and said only if the numbers then agree


def _hints(pair: _Pair, pairs: list[_Pair], result: AttentionResult) -> list[str]:
    """Return what makes the heads of a layer agree that differ."""
    failed = pair.agree.logical_not().nonzero().flatten().tolist()
    theirs, ours = pair.theirs[failed], pair.ours[failed]
    if not theirs.isfinite().all():
        return ["some weights are not numbers (NaN or infinite)"]
    if (order := _order(pair, failed)) is not None:
        return [order]
    for layer in result.layers:
        other = result.record(layer)
        if layer != pair.record.layer and other.heads == pair.record.heads:
            weights = other.weights(dtype=torch.float64).cpu()
            if weights.shape == pair.theirs.shape and pair.matches(pair.theirs, weights):
                return [_exchanged_layers(pair, layer, pairs)]
    if pair.matches(theirs.masked_fill(ours == 0, -torch.inf).softmax(-1), ours):
        return ["these are scores before softmax, not weights"]
    if ours.shape[1] == ours.shape[2] and pair.matches(theirs.mT, ours):
        return ["the maps are transposed: their rows are keys, and their columns queries"]
    factor = float((theirs * ours).sum() / (ours * ours).sum())
    if pair.matches(theirs, factor * ours) and not pair.matches(theirs, ours):
        return [f"the weights of {pair.name(failed)} are multiplied by {factor:.4g}"]
    return [*_scaled_scores(pair, failed), *_other_mask(pair, failed)]


def _order(pair: _Pair, failed: list[int]) -> str | None:
    """Return in which order the heads of a layer are that differ; None if they are others."""
    sources: dict[int, int] = {}
    for head in failed:
        free = (k for k in failed if k != head and k not in sources.values())
        source = next((k for k in free if pair.matches(pair.theirs[head], pair.ours[k])), None)
        if source is None:
            return None
        sources[head] = source
    layer = pair.record.layer
    if len(failed) == 2:
        return f"heads {failed[0]} and {failed[1]} of layer {layer} are swapped"
    listed = [f"{head} is {source}" for head, source in sources.items()][:_LISTED]
    more = ", …" if len(sources) > _LISTED else ""
    return f"the heads of layer {layer} are in another order: {', '.join(listed)}{more}"


def _exchanged_layers(pair: _Pair, layer: int, pairs: list[_Pair]) -> str:
    other = next((one for one in pairs if one.record.layer == layer), None)
    if other is not None and other.matches(other.theirs, pair.ours):
        return f"layers {pair.record.layer} and {layer} are swapped"
    return f"these are the weights of layer {layer}, given as layer {pair.record.layer}"


def _scaled_scores(pair: _Pair, failed: list[int]) -> Iterator[str]:
    record = pair.record
    factor = 1 + pair.slopes[failed].median().item()
    scaled = replace(record, scale=record.scale * factor).weights(dtype=torch.float64).cpu()
    if not math.isfinite(factor) or not pair.matches(pair.theirs[failed], scaled[failed]):
        return
    size = record.query.shape[-1]
    why = ""
    for known, what in ((math.sqrt(size), "is missing"), (1 / math.sqrt(size), "is there twice")):
        if math.isclose(factor, known, rel_tol=1e-3):
            why = why or f": the factor 1/√{size} {what}"
    yield f"the scores of {pair.name(failed)} are multiplied by {factor:.4g}{why}"


def _other_mask(pair: _Pair, failed: list[int]) -> Iterator[str]:
    record = pair.record
    ours, theirs = (side.ne(0).any(0) for side in (pair.ours, pair.theirs))  # keys that are read
    if record.sinks is not None or record.soft_cap is not None or bool((ours == theirs).all()):
        return
    mask = record.mask
    if mask is not None:
        mask = mask.masked_fill(mask <= torch.finfo(mask.dtype).min / 2, 0)
    scores = replace(record, mask=mask, visible=None).scores(dtype=torch.float64).cpu()[failed]

    def agrees(read: Tensor, rows: slice) -> bool:
        """Return whether the weights follow from the scores where these keys are read."""
        weights = scores.masked_fill(~read, -torch.inf).softmax(-1)
        return pair.matches(pair.theirs[failed][:, rows], weights[:, rows])

    m = len(ours)
    if m > 1 and agrees(ours.roll(-1, 0), slice(0, m - 1)):
        yield "the mask is off by one: each query also reads the next token"
    elif m > 1 and agrees(ours.roll(1, 0), slice(1, m)):
        yield "the mask is off by one: no query reads its own token"
    elif agrees(theirs, slice(None)):
        changed = (ours != theirs).nonzero()
        columns = sorted({int(column) for _, column in changed})
        verb = "are not read" if bool(ours[tuple(changed[0])]) else "are read"
        keys = ", ".join(f"“{record.key_axis.labels[column]}”" for column in columns[:_LISTED])
        yield f"the mask differs in {len(changed)} cells: the keys {keys} {verb} there"
