"""All heads of a model, or of one layer, as one mosaic of small maps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from attnviz.plot import caption
from attnviz.plot.layout import Page, colour_bar
from attnviz.plot.style import (
    ACCENT,
    FAINT,
    FULL_WIDTH,
    MM,
    MUTED,
    TEXT_SIZE,
    TITLE_SIZE,
    style,
    weight_colours,
)
from attnviz.records import AttentionResult, HeadMaps, Special
from attnviz.words import make_maps

_MARGIN, _GAP = 0.06, 0.12  # inches
_LABELS = 0.34  # inches for the numbers along a side and its name
_TILE = 64  # cells a side at most; longer maps are pooled for display


def head_grid(
    result: AttentionResult | HeadMaps,
    *,
    layer: int | None = None,
    words: bool = True,
    special: Special = "keep",
    width: float = FULL_WIDTH,
) -> Figure:
    """Draw the maps of all heads side by side: layers down, heads across.

    Parameters
    ----------
    result : from `attend`; or the maps of all heads (`make_maps`).
    layer : only the heads of this layer, larger.
    words : merge word pieces into words.
    special : "keep" special tokens, "hide" them, or "remove" them and renormalise the rows.
    width : of the figure, in mm: 89 is one column of a journal, 183 two.

    Raises
    ------
    InputError : no such layer, or an unknown `special`.
    """
    if isinstance(result, HeadMaps):
        maps = result
    else:
        maps = make_maps(result, layer=layer, words=words, special=special)
    with style([maps.provenance.text]):
        page = Page(width * MM)
        place = _MARGIN, page.width - _MARGIN
        bottom = draw_mosaic(page, maps, place, _MARGIN)
        each = f"in each tile the {len(maps.rows)} queries run down and the keys across"
        parts = [caption.source(maps.provenance), each, *maps.notes]
        end = caption.write_caption(page, place, bottom + _GAP, parts, maps.agreement)
        return page.finish(end + _MARGIN)


def draw_mosaic(
    page: Page,
    maps: HeadMaps,
    place: tuple[float, float],
    top: float,
    *,
    marked: tuple[int, Sequence[int]] | None = None,
) -> float:
    """Draw the maps as one image under a title, with a colour bar; return where it ends.

    place : the left and right edge, top : the upper one, in inches. marked : (layer, heads) to
    frame.
    """
    weights = _pooled(maps.weights)
    rows, columns, m, n = weights.shape
    left, right = place
    title = f"All {rows * columns} heads" + (f" of layer {maps.layers[0]}" if rows == 1 else "")
    top = page.write(left, top, [title], points=TITLE_SIZE, weight="bold") + _GAP / 2
    gap = max(1, round(0.12 * max(m, n)))
    width = right - left - _LABELS
    height = width * (rows * (m + gap)) / (columns * (n + gap))
    ax = page.axes(left + _LABELS, top, width, height)
    image = torch.full((rows, columns, m + gap, n + gap), torch.nan)
    image[:, :, :m, :n] = weights
    ax.imshow(
        image.transpose(1, 2).reshape(rows * (m + gap), columns * (n + gap)).numpy(),
        cmap=weight_colours(),
        vmin=0.0,
        vmax=1.0,
        aspect="auto",
        interpolation="nearest",
        extent=(0, columns, rows, 0),
    )
    middle = 0.5 / (1 + gap / n), 0.5 / (1 + gap / m)
    ax.set_xticks(np.arange(columns) + middle[0], np.arange(columns), fontsize=TEXT_SIZE - 1)
    ax.set_yticks(
        np.arange(rows) + middle[1],
        list(map(str, maps.layers)),
        fontsize=TEXT_SIZE - 1,
    )
    ax.tick_params(length=0)
    ax.set_xlabel("head", color=MUTED, loc="left")
    ax.set_ylabel("layer", color=MUTED)
    ax.spines[:].set_visible(False)
    framed = {(maps.layers.index(marked[0]), head) for head in marked[1]} if marked else set()
    for tile in np.ndindex(rows, columns):
        chosen = tile in framed
        ax.add_patch(
            Rectangle(
                tile[::-1],
                2 * middle[0],
                2 * middle[1],
                fill=False,
                edgecolor=ACCENT if chosen else FAINT,
                linewidth=1.4 if chosen else 0.3,
                clip_on=False,
                zorder=3 if chosen else 2,
            )
        )
    bar = page.axes(right - 0.35 * width - 0.08, top + height + 0.28, 0.35 * width, 0.06)
    colour_bar(ax.images[0], bar, horizontal=True)
    return top + height + _LABELS + 0.12


def _pooled(maps: Tensor) -> Tensor:
    """Average long maps to at most 64 × 64 cells; a tile has no room for more."""
    rows, columns, m, n = maps.shape
    if max(m, n) <= _TILE:
        return maps
    small = adaptive_avg_pool2d(maps.flatten(0, 1), (min(m, _TILE), min(n, _TILE)))
    return small.reshape(rows, columns, *small.shape[-2:])
