"""Where in the tensors of a batch a position lies, and the batch with other content there.

A position is a token, a patch of an image or a frame of a sound, as its axis says.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import EllipsisType
from typing import TypeAlias

import torch
from torch import Tensor

from attnviz.inputs.batch import Batch
from attnviz.results import Axis

Region: TypeAlias = "tuple[slice | EllipsisType, ...]"
UNITS = {"text": "tokens", "target": "tokens", "image": "patches", "audio": "frames"}


class UnknownPlacesError(Exception):
    """What a position stands for cannot be changed; the message says why."""


def changed_batch(
    batch: Batch, kind: str, chosen: Sequence[tuple[int, Tensor]]
) -> tuple[dict[str, Tensor], list[int]]:
    """Return inputs as they are and with one position changed, and between which rows each is.

    chosen : of each input its number in the batch, and the P positions to change; it takes 1 + P
    rows. The other content is another token, patch or frame of the same input.

    Raises
    ------
    UnknownPlacesError
        The axis does not say where in a tensor a position lies.
    """
    argument = _argument(batch, kind)
    ends = [0, *itertools.accumulate(1 + len(positions) for _, positions in chosen)]
    source = torch.cat(
        [torch.full((1 + len(positions),), number) for number, positions in chosen]
    ).to(batch.inputs[argument].device)
    inputs = {
        name: value[source] if isinstance(value, Tensor) else value
        for name, value in batch.inputs.items()
    }
    changed = inputs[argument]
    for start, (number, positions) in zip(ends, chosen, strict=False):
        axis, original = batch.axes[kind][number], batch.inputs[argument][number]
        regions = _regions(batch, kind, axis, original)
        for row, position in enumerate(positions.tolist(), start=start + 1):
            changed[row][regions[position]] = _other(original, regions, position)
    return inputs, ends


def _argument(batch: Batch, kind: str) -> str:
    """Return the name of the tensor that holds the positions of a kind."""
    axes = batch.axes[kind]
    tensors = [value for value in batch.inputs.values() if isinstance(value, Tensor)]
    if any(not tensor.dim() or len(tensor) != len(axes) for tensor in tensors):
        raise UnknownPlacesError("its inputs are not tensors with one row for each input")
    if kind == "audio":
        assert batch.steps is not None  # its axis follows from them
        return batch.steps.argument
    if kind == "image":
        if batch.inputs["pixel_values"].dim() != 4:
            raise UnknownPlacesError("its processor divides the image into patches itself")
        return "pixel_values"
    if any(axis.patches or axis.seconds for axis in axes):
        raise UnknownPlacesError("an image or a sound fills places in its text")
    argument = {"text": "input_ids", "target": "decoder_input_ids"}[kind]
    if argument not in batch.inputs or batch.inputs[argument].shape[-1] != len(axes[0]):
        raise UnknownPlacesError("its ids are not one for each token")
    return argument


def _regions(batch: Batch, kind: str, axis: Axis, values: Tensor) -> dict[int, Region]:
    """Return the part of an input that each position is, without special ones for media."""
    ordinary = [n for n, special in enumerate(axis.special) if not special]
    if kind == "image":
        patches = {n: axis.patches[n] for n in ordinary if axis.patches and axis.patches[n]}
        rows, columns = (1 + max(p[side] for p in patches.values() if p) for side in (0, 1))
        height, width = values.shape[-2:]
        return {
            n: (slice(None), _part(p[0], rows, height), _part(p[1], columns, width))
            for n, p in patches.items()
            if p is not None
        }
    if kind == "audio":
        steps, seconds = batch.steps, axis.seconds or ()
        assert steps is not None  # the axis follows from them
        starts = [round((second or 0.0) / steps.seconds) - steps.before for second in seconds]
        before = (slice(None),) * (steps.dim - 1)
        return {n: (*before, slice(max(0, starts[n]), starts[n] + steps.size)) for n in ordinary}
    return {n: (..., slice(n, n + 1)) for n in range(len(axis))}


def _part(number: int, count: int, length: int) -> slice:
    """Return one of some equal parts of a length."""
    return slice(number * length // count, (number + 1) * length // count)


def _other(values: Tensor, regions: dict[int, Region], position: int) -> Tensor:
    """Return the content of the position of the same input that differs most."""
    own = values[regions[position]]
    if not values.is_floating_point():
        other = values[values != own]
        return other[:1] if len(other) else own + torch.where(own > 0, -1, 1)
    others = [part for region in regions.values() if (part := values[region]).shape == own.shape]
    distances = torch.stack([(other - own).float().norm() for other in others])
    farthest = others[int(distances.argmax())]
    return farthest if distances.max() > 0 else own + 1
