"""Where an attention stands in its model: its stack, its layer, and what its positions are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.inputs.image import Grid, find_grid, patch_label
from attnviz.models.pretrained import kinds_among
from attnviz.results import AttentionRecord, Axis
from attnviz.results.agreement_report import LINEAR

# The names of modules that read an input of their own kind, or relate two sequences.
_TOWERS = {
    "vision": ("vision", "visual", "image"),
    "audio": ("audio", "speech", "sound"),
    "text": ("text",),
}
_CROSS = ("cross", "encoder_attn", "encdec", "enc_dec")
# The kind of input that the queries of a stack most likely are.
_READS = {
    "vision": "image", "audio": "audio", "text": "text", "decoder": "target", "cross": "target",
}  # fmt: skip
_GIVEN = "queries", "keys"  # labels that the user gives
_MERGES = 6  # of patches, two by two, from stage to stage of a model with windows


class StackCounter:
    """Numbers the layers of each stack of a model, in the order of execution.

    axes : those of one text, by kind of input. kinds : that the model reads.
    """

    def __init__(self, axes: Mapping[str, Axis], kinds: Collection[str] = ()) -> None:
        self._axes, self._read = axes, {*axes, *kinds}
        self._layers: Counter[str] = Counter()

    def place(
        self, path: str, queries: int, keys: int, *, cross: bool, causal: bool, linear: bool = False
    ) -> dict[str, Any]:
        """Return the stack, layer and axes of the next attention, as fields of its record.

        queries, keys : how many. cross : whether its keys are of another sequence. causal : whether
        no query reads a later key. linear : whether it has no softmax, and its layers count alone.
        """
        place = self._stack(path.lower(), cross, causal)
        stack = LINEAR if linear else place
        layer = self._layers[stack]
        self._layers[stack] += 1
        kinds = self._kinds(place)
        query_axis = key_axis = self._axis(queries, kinds)
        if place == "cross" or queries != keys:
            # A decoder reads a text first; a text, or queries that are learned, an image or sound.
            reads_text = query_axis is self._axes.get("target")
            others = sorted(kinds, key=lambda kind: (kind == "text") != reads_text)
            is_known = any(self._axes[kind] is query_axis for kind in kinds)
            unsure = self._read - (self._axes.keys() if is_known else {"text", "target"})
            if place == "cross" and unsure:  # maybe of an image or a sound
                others = [kind for kind in others if kind != "text"]
            key_axis = self._axis(
                keys, sorted(others, key=lambda kind: self._axes[kind] is query_axis)
            )
        return {"stack": stack, "layer": layer, "query_axis": query_axis, "key_axis": key_axis}

    def _stack(self, path: str, cross: bool, causal: bool) -> str:
        names = path.split(".")
        if cross or any(name in path for name in _CROSS):
            return "cross"
        for tower, prefixes in _TOWERS.items():
            if any(name.startswith(prefixes) for name in names):
                return tower
        if "decoder" in names or (causal and "target" not in self._axes):
            return "decoder"
        return "encoder"

    def _kinds(self, place: str) -> list[str]:
        """Return the kinds of input that a stack may read, the likeliest first."""
        own = _READS.get(place)
        if own is None and len({*map(len, self._axes.values())}) < len(self._axes):
            # Its name does not tell a text from an image or a sound of the same length.
            media = {len(one) for kind, one in self._axes.items() if kind in ("image", "audio")}
            return [kind for kind, one in self._axes.items() if len(one) not in media]
        is_alone = place in ("vision", "audio") and own in self._read
        kinds = [kind for kind in self._axes if not is_alone or kind in (own, *_GIVEN)]
        return sorted(kinds, key=lambda kind: kind != own)

    def _axis(self, length: int, kinds: Iterable[str]) -> Axis:
        """Return the first axis of this length, or numbers."""
        matching = [kind for kind in kinds if len(self._axes[kind]) == length]
        return self._axes[matching[0]] if matching else Axis.numbered(length)


def stacks_of(
    texts: int, axes: Mapping[str, Sequence[Axis]], inputs: Collection[str]
) -> list[StackCounter]:
    """Return the stacks of each of N texts; inputs : the names of the model's arguments."""
    kinds = {*kinds_among(inputs), *("image" for name in inputs if "patches" in name)}
    return [
        StackCounter({kind: of_batch[n] for kind, of_batch in axes.items()}, kinds)
        for n in range(texts)
    ]


def place_windows(
    module: nn.Module, inputs: dict[str, Tensor], record: AttentionRecord
) -> AttentionRecord:
    """Return the record with its patches labeled window by window, if its module has windows.

    Such a model cuts its grid of patches into windows, shifts them by half a window in every other
    layer, and merges patches two by two from stage to stage. Its positions go through one window
    after the other.
    """
    window = _window(module, record.path)
    if window is None or "pixel_values" not in inputs:
        return record
    if (grid := find_grid(module, inputs)) is None:
        return record
    for merges in range(_MERGES):
        rows, columns = (-(-side // 2**merges) for side in grid)
        axis = _window_axis((rows, columns), *window)
        if len(axis) == len(record.query_axis) == len(record.key_axis):
            return replace(record, query_axis=axis, key_axis=axis)
    queries, keys = (Axis.numbered(len(axis)) for axis in (record.query_axis, record.key_axis))
    return replace(record, query_axis=queries, key_axis=keys)


def _window(module: nn.Module, path: str) -> tuple[int, int] | None:
    """Return the size and the shift of the windows of an attention, or None where it has none."""
    size, shift = None, 0
    names = path.split(".")
    for depth in range(len(names), max(0, len(names) - 3), -1):
        submodule = module.get_submodule(".".join(names[:depth]))
        window_size = getattr(submodule, "window_size", None)
        window_size = window_size[0] if isinstance(window_size, list | tuple) else window_size
        if isinstance(window_size, int) and window_size > 0 and size is None:
            size = window_size
        if isinstance(shift_size := getattr(submodule, "shift_size", None), int):
            shift = shift_size
            break
    return None if size is None else (size, shift)


def _window_axis(grid: Grid, size: int, shift: int) -> Axis:
    """Return the axis of a grid in windows; the grid is padded to whole windows."""
    if min(grid) <= size:  # one window spans the smaller side; nothing is left to roll
        size, shift = min(grid), 0
    rows, columns = (-(-side // size) * size for side in grid)
    cells = torch.arange(rows * columns, device="cpu").reshape(rows, columns)
    rolled = cells.roll((-shift, -shift), dims=(0, 1))
    windows = rolled.reshape(rows // size, size, columns // size, size).transpose(1, 2).flatten()
    positions = [divmod(cell, columns) for cell in windows.tolist()]
    patches = [(r, c) if r < grid[0] and c < grid[1] else None for r, c in positions]
    return Axis.plain(
        ["[PAD]" if patch is None else patch_label(patch) for patch in patches],
        special=[patch is None for patch in patches],
        patches=patches,
    )
