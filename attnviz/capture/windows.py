"""The order of patches in a model that attends within windows.

Such a model cuts its grid of patches into windows, shifts them by half a window in every other
layer, and merges patches two by two from stage to stage. Its positions go through one window after
the other.
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
    """Return the record with its patches labeled window by window, if its module has windows."""
    window = _window(module, record.path)
    if window is None or "pixel_values" not in inputs:
        return record
    grid = find_grid(module, inputs)
    if grid is None:
        return record
    size, shift = window
    for stage in range(_STAGES):
        rows, columns = (-(-side // 2**stage) for side in grid)
        axis = _axis((rows, columns), size, shift)
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


def _axis(grid: Grid, size: int, shift: int) -> Axis:
    """Return the axis of a grid in windows; the grid is padded to whole windows."""
    if min(grid) <= size:  # one window spans the smaller side; nothing is left to roll
        size, shift = min(grid), 0
    rows, columns = (-(-side // size) * size for side in grid)
    cells = torch.arange(rows * columns).reshape(rows, columns)
    rolled = cells.roll((-shift, -shift), dims=(0, 1))
    windows = rolled.reshape(rows // size, size, columns // size, size).transpose(1, 2).flatten()
    positions = [divmod(cell, columns) for cell in windows.tolist()]
    patches = [(r, c) if r < grid[0] and c < grid[1] else None for r, c in positions]
    return Axis.plain(
        ["[PAD]" if patch is None else patch_label(patch) for patch in patches],
        special=[patch is None for patch in patches],
        patches=patches,
    )
