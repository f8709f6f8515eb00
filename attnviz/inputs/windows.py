"""Patches in windows: the order in which a model that attends within windows sees them.

Such a model cuts its grid of patches into windows, rolled by half a window in every other layer,
and joins patches two by two from stage to stage. Its positions run through one window after the
other.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from attnviz.inputs.image import Grid, find_grid, patch_label
from attnviz.results import AttentionRecord, Axis

_STAGES = 6  # each halves the grid


def place_windows(
    module: nn.Module, inputs: dict[str, Tensor], record: AttentionRecord
) -> AttentionRecord:
    """Return the record with its patches named window by window, if its module has windows."""
    found = _window(module, record.path)
    grid = find_grid(module, inputs) if found is not None and "pixel_values" in inputs else None
    if found is None or grid is None:
        return record
    size, shift = found
    for stage in range(_STAGES):
        rows, columns = (-(-side // 2**stage) for side in grid)
        axis = _axis((rows, columns), size, shift)
        if len(axis) == len(record.query_axis) == len(record.key_axis):
            return replace(record, query_axis=axis, key_axis=axis)
    length = Axis.numbered(len(record.query_axis))
    return replace(record, query_axis=length, key_axis=Axis.numbered(len(record.key_axis)))


def _window(module: nn.Module, path: str) -> tuple[int, int] | None:
    """Return the size and the shift of the windows of an attention, or None where it has none."""
    size, shift = None, 0
    names = path.split(".")
    for depth in range(len(names), max(0, len(names) - 3), -1):
        part = module.get_submodule(".".join(names[:depth]))
        given = getattr(part, "window_size", None)
        given = given[0] if isinstance(given, list | tuple) else given
        if isinstance(given, int) and given > 0 and size is None:
            size = given
        if isinstance(rolled := getattr(part, "shift_size", None), int):
            shift = rolled
            break
    return None if size is None else (size, shift)


def _axis(grid: Grid, size: int, shift: int) -> Axis:
    """Describe the positions of a grid in windows; the grid is filled up to whole windows."""
    if min(grid) <= size:  # one window spans the smaller side; nothing is left to roll
        size, shift = min(grid), 0
    rows, columns = (-(-side // size) * size for side in grid)
    places = torch.arange(rows * columns).reshape(rows, columns)
    rolled = places.roll((-shift, -shift), dims=(0, 1))
    windows = rolled.reshape(rows // size, size, columns // size, size).transpose(1, 2).flatten()
    at = [divmod(place, columns) for place in windows.tolist()]
    patches = [(r, c) if r < grid[0] and c < grid[1] else None for r, c in at]
    return Axis.plain(
        ["[PAD]" if patch is None else patch_label(patch) for patch in patches],
        special=[patch is None for patch in patches],
        patches=patches,
    )
