"""Weights from elsewhere: arrays, another tool's tensors, or what a transformers model returned."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from attnviz.errors import InputError, whole_number
from attnviz.inputs import parse_labels
from attnviz.pipeline.run import package_versions
from attnviz.results import AgreementReport, AttentionResult, Axis, GivenAttention, Provenance
from attnviz.results.arguments import checked_scalars
from attnviz.results.text import literal

_SHAPES = "(T, T), (heads, T, T), (layers, heads, T, T), or a list of layers (1, heads, T, T)"
_ROUNDING = 1e-4  # by which rows of float32 may miss 1


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
    if isinstance(values, Tensor):
        tensor = values.detach()
        if tensor.is_meta or tensor.is_quantized or tensor.layout != torch.strided:
            raise InputError(
                "Weights are a dense tensor, not a sparse or quantized one, or one without numbers "
                "(meta). Convert it with to_dense() or dequantize()."
            )
    else:
        try:
            array = np.array(values)
            if array.dtype.kind == "f" and array.dtype.itemsize > 8:
                array = array.astype(float)
            tensor = torch.from_numpy(array.astype(array.dtype.newbyteorder("="), copy=False))
        except (TypeError, ValueError, RuntimeError):
            tensor = torch.empty(0, dtype=torch.complex64)
    if tensor.is_complex():
        raise InputError(
            f"Weights are an array of numbers, not {type(values).__name__}: {values!r:.40}. Its "
            f"shape is {_SHAPES}."
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
