"""Inputs given as the arguments of the model's forward, by name: everything that it takes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, TypeGuard

import numpy as np
import torch
from torch import Tensor

from attnviz.errors import InputError, did_you_mean
from attnviz.formula.attention import additive_mask
from attnviz.inputs.image import fill_placeholders, image_axis
from attnviz.inputs.text import continue_axis, encode_ids
from attnviz.inputs.tokens import BOOKKEEPING, TokenIds, read_labels
from attnviz.io import is_file, read_arrays, read_text
from attnviz.models import pretrained
from attnviz.models.checkpoint import Checkpoint
from attnviz.results import Axis
from attnviz.results.text import counted
from attnviz.runtime.compat import attention_implementation

Axes: TypeAlias = dict[str, tuple[Axis, ...]]  # of N inputs, by kind
_Texts: TypeAlias = tuple[str | None, str | None]  # a text and its second one, if known
ArgumentSource: TypeAlias = "Mapping[str, Any] | str | os.PathLike[str]"
_MOST_BYTES = 2**26  # of a .json file
_REFUSED = {
    "past_key_values": "the model changes it while it runs. Give the whole text",
    "return_dict": "its outputs are read by name. Leave it out",
}


@dataclass(frozen=True, eq=False)
class Arguments:
    """Arguments of a model's forward."""

    values: dict[str, Any]  # by name; "" stands for the main input
    queries: tuple[str, ...] | None = None  # labels of the rows of the maps
    keys: tuple[str, ...] | None = None  # labels of the columns

    @property
    def summary(self) -> str:
        """The names and shapes: "past_values (1 × 32 × 1)"."""
        shapes = {
            name: " × ".join(map(str, value.shape)) if isinstance(value, Tensor) else ""
            for name, value in self.values.items()
        }
        return ", ".join(f"{name} ({shape})" if shape else name for name, shape in shapes.items())


def parse_arguments(
    source: Any, queries: Sequence[str] | None = None, keys: Sequence[str] | None = None
) -> Arguments:
    """Return the arguments in a mapping or a file, or a tensor that is the main input alone."""
    if isinstance(source, str | os.PathLike):
        source = _read_file(Path(source))
    values = source if isinstance(source, Mapping) else {"": source}
    if not values or not all(isinstance(name, str) for name in values):
        raise InputError(
            "inputs is a mapping from the names of the model's arguments to their values, such as "
            "{'input_ids': …, 'position_ids': …}."
        )
    return Arguments(
        {name: _tensor(value, name) for name, value in values.items()},
        parse_labels(queries, "queries"),
        parse_labels(keys, "keys"),
    )


def parse_labels(labels: Any, what: str) -> tuple[str, ...] | None:
    """Return a list of labels; None if there is none."""
    if labels is None:
        return None
    if isinstance(labels, str) or not isinstance(labels, Sequence | np.ndarray):
        raise InputError(f"{what} must be a list of labels, not {labels!r:.40}. Split the text.")
    for label in labels:
        if not isinstance(label, str):
            raise InputError(f"{what} must be strings, not {label!r:.40}.")
    return tuple(map(str, labels))


def _tensor(value: Any, name: str) -> Any:
    """Return an array of numbers, or a list of them, as a tensor; anything else as it is."""
    if isinstance(value, np.ndarray | list | tuple):
        try:
            array = np.array(value)
            return torch.from_numpy(array.astype(array.dtype.newbyteorder("=")))
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(
                f"{name or 'inputs'} is not an array of numbers. Give one, or a tensor."
            ) from error
    return value


def _read_file(path: Path) -> dict[str, Any]:
    if not is_file(path):
        raise InputError(f"There is no file of inputs {path}: check the path.")
    if path.suffix.lower() in (".safetensors", ".npz"):
        return read_arrays(path)
    if path.suffix.lower() != ".json":
        raise InputError(f"{path} is not an input file. Give a .safetensors, .npz or .json file.")
    text = read_text(path, most=_MOST_BYTES)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read: {error}. Save the inputs again.") from error
    return content if isinstance(content, dict) else {"": content}


def encode_arguments(
    checkpoint: Checkpoint, given: Arguments
) -> tuple[dict[str, Any], Axes, tuple[_Texts, ...]]:
    """Return arguments as the model takes them, the axes of N inputs by kind, and their N texts."""
    module = checkpoint.module
    names = pretrained.forward_parameters(module)
    main_name = pretrained.main_input(module)
    values = {name or main_name: value for name, value in given.values.items()}
    for name in values:
        if reason := _REFUSED.get(name):
            raise InputError(f"{name} is not read: {reason}.")
        if name not in names and name not in BOOKKEEPING:
            hint = did_you_mean(name, names) or f"It takes {', '.join(names)}."
            raise InputError(f"{type(module).__name__} takes no argument {name!r:.60}. {hint}")
    values = {name: value for name, value in values.items() if name in names}
    mask = values.get("attention_mask")
    is_eager = attention_implementation(module.config) == "eager"
    if isinstance(mask, Tensor) and mask.dim() == 4 and not is_eager:
        # The fused attention hides by a boolean one; the eager one, which is recorded, adds it.
        values["attention_mask"] = additive_mask(mask, module.dtype)
    main = values.get(main_name)
    if main is not None and (not isinstance(main, Tensor) or not main.dim() or not main.numel()):
        raise InputError(f"{main_name} holds no numbers. Give an array of them.")
    for name in ("input_ids", "decoder_input_ids"):
        if isinstance(ids := values.get(name), Tensor):
            _expect_ids(checkpoint, name, ids)
    axes: Axes = {}
    texts: tuple[_Texts, ...] = ((None, None),)
    if _are_ids(values.get("input_ids"), mask):
        read = _text_axes(checkpoint, values)
        axes["text"], texts = tuple(axis for axis, _ in read), tuple(text for _, text in read)
    if "pixel_values" in values and not (axes and "image" in checkpoint.placeholders):
        pixels, grids = values["pixel_values"], values.get("image_grid_thw", ())
        # The patches of several images may lie in one row, where each image has its own grid.
        images = len(pixels) if pixels.dim() > 3 else int(len(grids) == 1)
        axis = image_axis(module, values) if images else None
        axes |= {"image": (axis,) * images} if axis is not None else {}
    elif "pixel_values" in values and len(axes["text"]) == 1:
        axes["text"] = (fill_placeholders(checkpoint, axes["text"][0], "image", values, None),)
    tokenizer = checkpoint.target_tokenizer
    decoded = values.get("decoder_input_ids")
    count = pretrained.count_inputs(module, values)
    if _are_ids(decoded):
        # Of a sound, each token is several codes, or each codebook has a row.
        of_codebooks = len(decoded) > count and len(decoded) % count == 0
        if decoded.dim() == 2 and not of_codebooks:
            axes["target"] = tuple(continue_axis(tokenizer, None, row) for row in decoded)
    count = max([count, *map(len, axes.values())])
    for kind, of in axes.items():
        if len(of) not in (1, count):
            raise InputError(
                f"inputs holds {counted(len(of), kind)} among {count} inputs. Give one for each, "
                "or one for all."
            )
        axes[kind] = of * (count // len(of))
    return values, _labeled(axes, given, count), texts * (count // len(texts))


def _expect_ids(checkpoint: Checkpoint, name: str, ids: Tensor) -> None:
    module = checkpoint.module
    if ids.is_floating_point():
        raise InputError(f"{name} are whole numbers, one for each token. Give those.")
    if ids.dim() < 2:
        raise InputError(f"{name} are rows, one for each input: (N, T). Give {name}[None].")
    # Placeholders of images and sounds may have no row; a decoder may have another embedding.
    is_text = pretrained.input_kinds(module) == ("text",) and name == "input_ids"
    if is_text and (outside := pretrained.outside_embedding(module, ids)):
        raise InputError(f"{name} {outside}. Give ids of {checkpoint.name}.")


def _are_ids(value: Any, mask: Any = None) -> TypeGuard[Tensor]:
    """Whether a value is one id for each token; of several, the mask has no last dimension."""
    is_code = isinstance(mask, Tensor) and mask.shape == getattr(value, "shape", ())[:-1]
    is_whole = isinstance(value, Tensor) and value.dim() >= 2 and not value.is_floating_point()
    return is_whole and not is_code


def _text_axes(checkpoint: Checkpoint, values: Mapping[str, Any]) -> list[tuple[Axis, _Texts]]:
    """Return the axis and the text of each row of ids; padding at both ends is marked."""
    tokenizer, rows = checkpoint.tokenizer, values["input_ids"].flatten(0, -2)
    mask, types = (values.get(name) for name in ("attention_mask", "token_type_ids"))
    mask, types = (
        value.reshape(rows.shape).tolist()
        if isinstance(value, Tensor) and value.numel() == rows.numel()
        else [None] * len(rows)
        for value in (mask, types)
    )
    read: list[tuple[Axis, _Texts]] = []
    for ids, shown, segments in zip(rows.tolist(), mask, types, strict=True):
        axis = Axis.plain(read_labels(ids, None), special=[False] * len(ids))
        texts: _Texts = (None, None)
        if tokenizer is not None:
            source = TokenIds(tuple(ids), None if segments is None else tuple(segments))
            encoded = encode_ids(tokenizer, source)
            axis, texts = encoded.axis(tokenizer, len(ids)), encoded.texts
        if kept := [n for n, number in enumerate(shown or ()) if number > 0]:
            padding = tuple(not kept[0] <= n <= kept[-1] for n in range(len(ids)))
            special = tuple(map(max, padding, axis.special))
            axis = replace(axis, padding=padding, special=special)
        read.append((axis, texts))
    return read


def _labeled(axes: Axes, given: Arguments, count: int) -> Axes:
    """Return axes in which given labels come first, and take the place of any of their length."""
    own = {
        name: (Axis.of_labels(labels),) * count
        for name, labels in (("queries", given.queries), ("keys", given.keys))
        if labels is not None
    }
    lengths = {len(of[0]) for of in own.values()}
    return own | {kind: of for kind, of in axes.items() if len(of[0]) not in lengths}


def expect_labels_fit(given: Arguments, lengths: set[tuple[int, int]]) -> None:
    """Raise InputError for labels that fit no map; lengths : of the queries and keys of each."""
    for side, (what, labels) in enumerate((("queries", given.queries), ("keys", given.keys))):
        counts = sorted({shape[side] for shape in lengths})
        if labels is not None and len(labels) not in counts:
            raise InputError(
                f"There are {len(labels)} {what}, but the maps have "
                f"{' or '.join(map(str, counts))}. Give one label for each."
            )
