"""Weights from elsewhere: a result of them, and what differs from those of attnviz, and why.

They are arrays, another tool's tensors, or what a transformers model returned.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from attnviz.agreement import CANARY, PRECISIONS, dtypes
from attnviz.analyses.check.result import CheckResult, Mismatch, name_layers
from attnviz.errors import InputError, whole_number
from attnviz.inputs import parse_labels
from attnviz.inputs.tokens import TextSource
from attnviz.io import read_weights
from attnviz.pipeline import package_versions
from attnviz.pipeline.attend import Loadable, Model, OneInput, attended
from attnviz.results import (
    AgreementReport,
    AttentionRecord,
    AttentionResult,
    Axis,
    GivenAttention,
    Provenance,
    one_result,
)
from attnviz.results.arguments import checked_scalars
from attnviz.results.text import counted, literal, shortened

_LARGER = 2  # how far runs of two tools may be apart in a layer, in errors of one run
_LISTED = 8  # heads in another order
_SHAPES = "(T, T), (heads, T, T), (layers, heads, T, T), or a list of layers (1, heads, T, T)"
_ROUNDING = 1e-4  # by which rows of float32 may miss 1


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
        hints=() if differing is None else tuple(_hints(differing, result)),
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


def _hints(pair: _Pair, result: AttentionResult) -> list[str]:
    """Return what makes the heads of a layer agree that differ."""
    failed = pair.agree.logical_not().nonzero().flatten().tolist()
    theirs, ours = pair.theirs[failed], pair.ours[failed]
    if not theirs.isfinite().all():
        return ["some weights are not numbers (NaN or infinite)"]
    if (order := _order(pair, failed)) is not None:
        return [order]
    for layer in [one for one in result.layers if one != pair.record.layer]:
        weights = result.record(layer).weights(dtype=torch.float64).cpu()
        if weights.shape == pair.theirs.shape and pair.matches(pair.theirs, weights):
            return [f"these are the weights of layer {layer}, given as layer {pair.record.layer}"]
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


def _scaled_scores(pair: _Pair, failed: list[int]) -> Iterator[str]:
    record = pair.record
    factor = 1 + pair.slopes[failed].median().item()
    scaled = replace(record, scale=record.scale * factor).weights(dtype=torch.float64).cpu()
    if not math.isfinite(factor) or not pair.matches(pair.theirs[failed], scaled[failed]):
        return
    size = record.query.shape[-1]
    why = ""
    for power, what in ((-0.5, "is there twice"), (0.5, "is missing")):
        if math.isclose(factor, size**power, rel_tol=1e-3):
            why = f": the factor 1/√{size} {what}"
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


@checked_scalars
def from_weights(
    weights: Any,
    tokens: Sequence[str],
    keys: Sequence[str] | None = None,
    *,
    model: str = "an unnamed model",
) -> AttentionResult:
    """Return a result of weights that are already there, to draw, to view and to tabulate.

    It is marked “weights given by the user, not verified” in every figure, page and file. What
    needs a model or its queries and keys (`steps`) refuses it. `check` compares such weights with
    those of a model.

    Parameters
    ----------
    weights : array, tensor, nested list, sequence or mapping of these
        After softmax, of shape (m, n), (heads, m, n) or (layers, heads, m, n); or one array for
        each layer, (heads, m, n) or (1, heads, m, n), as `output_attentions` gives them and as
        BertViz takes them. A mapping has the layers by their number, or by names with a number
        (a cache of TransformerLens). Or the output of a transformers model, or of its `generate`
        with ``output_attentions=True, return_dict_in_generate=True``; with `keys` the cross-
        attentions are read.
    tokens : sequence of str
        The labels of the m queries. Each stands by itself: pieces are not merged into words. Labels
        such as [CLS] and </s> are special tokens.
    keys : sequence of str, optional
        The labels of the n keys; by default `tokens`.
    model : str
        The name of the model in captions.

    Raises
    ------
    InputError
        The shape is another one, does not fit the labels, or a weight is negative or no number.

    Examples
    --------
    >>> import attnviz
    >>> result = attnviz.from_weights([[1.0, 0.0], [0.25, 0.75]], ["a", "b"])
    >>> result.agreement.summary()
    'weights given by the user, not verified'
    """
    by_layer, how = weights_by_layer(weights, None if keys is None else "cross")
    layers = {
        layer: array.to(torch.promote_types(array.dtype, torch.float32))
        for layer, array in by_layer.items()
    }
    rows = parse_labels(tokens, "tokens") or ()
    columns = parse_labels(keys, "keys") or rows
    for layer, array in layers.items():
        _expect_fit(array, layer, rows, columns, square=keys is None)
    sums = torch.cat([array.double().sum(-1).flatten() for array in layers.values()])
    if not bool(((sums - 1).abs() <= _ROUNDING).all()):
        how += (f"rows sum to {sums.min().item():.4g} to {sums.max().item():.4g}, not to 1",)
    axes = Axis.of_labels(rows), Axis.of_labels(columns)
    stack = "self-attention" if keys is None else "cross"
    text, target = (" ".join(map(literal, axis.word_labels)) for axis in reversed(axes))
    of_run: dict[str, Any] = {
        "weights_sha256": "",
        "dtype": str(next(iter(layers.values())).dtype).removeprefix("torch."),
        "device": "cpu",
        "versions": package_versions(),
    }
    target_text = None if keys is None else target
    provenance = Provenance(model=model, text=text, pair=None, target=target_text, **of_run)
    report = AgreementReport(checks=(), not_compared=(), unproven=(), given=True, **of_run)
    records = (GivenAttention.of(array, layer, stack, axes) for layer, array in layers.items())
    return AttentionResult(tuple(records), report, provenance, notes=how)


def weights_by_layer(
    weights: Any, stack: str | None = None
) -> tuple[dict[int, Tensor], tuple[str, ...]]:
    """Return the weights (H, m, n) of each layer, by its number, and a note on how they were read.

    They are floats on the CPU. Raises InputError for what is no array of numbers of such a shape;
    numbers are not read.

    stack : whose attentions of an output are read, if it has several.
    """
    if hasattr(weights, "attentions") or hasattr(weights, "cross_attentions"):
        of_stack = getattr(weights, f"{stack}_attentions", None) or None  # or ()
        if of_stack is None and not hasattr(weights, "attentions"):
            raise InputError(
                "The output has several attentions. Give one: output.encoder_attentions, "
                "output.decoder_attentions or output.cross_attentions."
            )
        weights = weights.attentions if of_stack is None else of_stack
        if weights is None:
            raise InputError(
                "The output has no attentions. Run the model with output_attentions=True and "
                'attn_implementation="eager".'
            )
    if hasattr(weights, "items") and not hasattr(weights, "shape"):
        return _from_names(dict(weights.items())), ()
    if isinstance(weights, list | tuple):
        known = {layer: array for layer, array in enumerate(weights) if array is not None}
        first: Any = next(iter(known.values()), None)
        if isinstance(first, list | tuple) and any(len(getattr(a, "shape", ())) > 2 for a in first):
            steps = f"read as {len(known)} steps of a generation, of {len(first)} layers each"
            return _of_steps(list(known.values())), (steps,)
        shape = first.shape if hasattr(first, "shape") else np.shape(first)
        if first is None or len(shape) > 2:
            return _from_names(known), ()
        if isinstance(first, Tensor):
            weights = torch.stack([_tensor(array) for array in weights])
    array = _tensor(weights)
    how = f"an array of shape {tuple(array.shape)} was read as"
    if array.dim() in (4, 5) and array.numel():
        layers = {layer: _of_layer(of_layer) for layer, of_layer in enumerate(array)}
        return layers, (f"{how} {len(array)} layers of {len(layers[0])} heads",)
    heads = (f"{how} {len(array)} heads of one layer",) if array.dim() == 3 else ()
    return {0: _of_layer(array)}, heads


def _of_steps(steps: Sequence[Sequence[Any]]) -> dict[int, Tensor]:
    """Return the weights by layer of a generation; a cache may drop keys, or have later places."""
    if len({len(step) for step in steps}) > 1:
        raise InputError("The steps have different numbers of layers. Give all layers of each.")
    layers = {}
    for layer, of_steps in enumerate(zip(*steps, strict=True)):
        if of_steps[0] is None:
            continue
        arrays = [_of_layer(array) for array in of_steps]
        first, n = arrays[0].shape[1:]
        # The keys of cross-attention stay the same, and the first queries read all of them.
        is_cross = {array.shape[2] for array in arrays} == {n} and (
            n == 1 or n < first or bool(arrays[0].triu(1).any())
        )
        rows, total = [arrays[0]], first + len(arrays) - 1
        rows += [array[:, -1:] for array in arrays[1:]]
        for step, row in enumerate(rows):
            read = n if is_cross else first + step
            row = row[..., :read]
            rows[step] = pad(row, (read - row.shape[2], 0 if is_cross else total - read))
        layers[layer] = torch.cat(rows, dim=1)
    return layers


def _from_names(arrays: Mapping[Any, Any]) -> dict[int, Tensor]:
    """Return the weights by layer of arrays that have a number, or a name with a number."""
    patterns = {name: array for name, array in arrays.items() if "hook_pattern" in str(name)}
    layers: dict[int, Tensor] = {}
    for name, array in (patterns or arrays).items():
        number = re.search(r"^-?\d+$|\d+", name) if isinstance(name, str) else None
        if number is None and isinstance(name, str):
            raise InputError(f"{name!r:.60} names no layer. Name each array by its layer: 0.")
        layer = whole_number(name if number is None else int(number.group()), "a layer")
        if layer < 0:
            raise InputError(f"Layers are counted from 0, not {layer}. Name the first layer 0.")
        if layer in layers:
            raise InputError(f"Two arrays are named layer {layer}. Give one for each layer.")
        layers[layer] = _of_layer(array)
    if not layers:
        raise InputError(f"There are no weights. Give an array of shape {_SHAPES}.")
    return dict(sorted(layers.items()))


def _of_layer(weights: Any) -> Tensor:
    """Return the weights of one layer, (H, m, n), without a batch dimension of 1."""
    array = _tensor(weights)
    if array.dim() not in (2, 3, 4) or not array.numel():
        raise InputError(f"Weights of shape {tuple(array.shape)} cannot be read. Give {_SHAPES}.")
    if array.dim() == 4 and len(array) > 1:
        raise InputError(
            f"The weights are of a batch of {len(array)} texts. Choose one in each layer: "
            "layer[:1]."
        )
    return array.reshape(-1, *array.shape[-2:])


def _tensor(values: Any) -> Tensor:
    """Return numbers of any library as a tensor of its own, of floats, on the CPU."""
    tensor = values.detach() if isinstance(values, Tensor) else None
    if tensor is None:
        with suppress(TypeError, ValueError, RuntimeError):
            array = np.array(values)
            tensor = torch.from_numpy(array.astype(array.dtype.newbyteorder("=")))
    odd = tensor is None or tensor.is_complex() or tensor.is_meta or tensor.is_quantized
    if tensor is None or odd or tensor.layout != torch.strided:
        raise InputError(
            f"Weights are an array of numbers, not {type(values).__name__}: {values!r:.40}. Give a "
            f"dense one (float32), of shape {_SHAPES}."
        )
    dtype = tensor.dtype if tensor.is_floating_point() else torch.float32
    return tensor.to("cpu", dtype, copy=True)


def _expect_fit(
    array: Tensor, layer: int, rows: Sequence[str], columns: Sequence[str], *, square: bool
) -> None:
    _, m, n = array.shape
    if square and m != n:
        raise InputError(
            f"The weights are {m} × {n}, so queries and keys differ. Give the labels of both: "
            "tokens and keys=."
        )
    for count, labels, what in ((m, rows, "tokens"), (n, columns, "keys")):
        if count != len(labels):
            raise InputError(
                f"The weights are {m} × {n}, but there are {len(labels)} {what}. Give one label "
                "for each, special tokens such as [CLS] among them."
            )
    for is_wrong, what in ((~array.isfinite(), "no number"), (array < 0, "negative")):
        if is_wrong.any():
            head, row, column = is_wrong.nonzero()[0].tolist()
            value = array[head, row, column].item()
            raise InputError(
                f"A weight is {what}: {value:.3g} in layer {layer}, head {head}, row {row}, column "
                f"{column}. Give weights after softmax, not scores."
            )
