"""Draw the maps of all heads, of a model or of one layer, as a grid of tiles."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from attnviz.analyses.maps.compute import head_maps
from attnviz.analyses.maps.result import HeadMaps
from attnviz.figures.cells import logarithmic
from attnviz.figures.layout import CaptionLength, Page, color_bar
from attnviz.figures.style import (
    ACCENT,
    AXIS_ROOM,
    FAINT,
    FULL_WIDTH,
    GAP,
    MARGIN,
    MM,
    MUTED,
    SMALL_SIZE,
    style,
    weight_colors,
)
from attnviz.results import AttentionResult, AxisGeometry, Special
from attnviz.results.axis import source

_LARGE_TILE, _LARGEST_TILE = 0.8, 1.5  # inches of a tile: with one layer, and at most
_LOWEST_TILE = 0.2  # inches of a tile at least
_TILE = 64  # cells a side at most; longer maps are pooled for display


def heads(
    result: AttentionResult | HeadMaps,
    *,
    layer: int | None = None,
    words: bool = True,
    special: Special = "keep",
    width: float = FULL_WIDTH,
    caption: CaptionLength = "short",
) -> Figure:
    """Draw the maps of all heads side by side: layers down, heads across.

    Parameters
    ----------
    result : AttentionResult or HeadMaps
        From `attend` or `head_maps`.
    layer : int, optional
        Draw only the heads of this layer, larger.
    words : bool, default True
        Whether to merge word pieces into words.
    special : {"keep", "hide", "remove"}
        Whether to keep special tokens, to hide them, or to remove them and renormalize the rows.
    width : float, default 183
        The width of the figure in mm. One column of a journal is 89 mm, two are 183.
    caption : {"short", "full"}
        Whether the caption has two lines, or also says how everything was measured. The file always
        says so in its metadata.

    Returns
    -------
    Figure
        A new figure.

    Raises
    ------
    InputError
        The layer does not exist, or `special` is unknown.
    """
    if isinstance(result, HeadMaps):
        maps = result
    else:
        maps = head_maps(result, layer=layer, words=words, special=special)
    with style([source(maps.provenance)]):
        page = Page(width * MM, caption)
        bottom = draw_head_grid(page, maps, (page.left, page.right), MARGIN)
        count = "" if _is_pooled(maps) else f"{len(maps.rows)} "
        directions = f"in each tile the {count}queries run down and the keys across"
        parts = [source(maps.provenance), directions, *maps.notes]
        if _is_pooled(maps):
            parts.append("colors on a logarithmic scale")
        return page.finish_with_caption(bottom + GAP, parts, maps.checked_agreement)


def _is_pooled(maps: HeadMaps) -> bool:
    """Whether the maps are pooled maps of a long text."""
    return bool(maps.sides[1].landmarks)


def _norm(maps: HeadMaps, weights: Tensor) -> Normalize:
    """Return the range of colors: up to 1, or less for images, audio and long texts.

    Each of many keys gets a small weight.
    """
    if maps.sides[1] == AxisGeometry():
        return Normalize(0.0, 1.0)
    if _is_pooled(maps):
        return logarithmic(weights)
    # By rank, since torch.quantile takes no more than 16 million values.
    ranked = _pooled(weights).flatten().sort().values
    return Normalize(0.0, max(float(ranked[int(0.995 * (len(ranked) - 1))]), 1e-12))


def draw_head_grid(
    page: Page,
    maps: HeadMaps,
    place: tuple[float, float],
    top: float,
    *,
    weights: Tensor | None = None,
    marked: tuple[int, Sequence[int]] | None = None,
) -> float:
    """Draw the maps as one image with a title and a color bar; return the lower edge.

    place : the left and right edge in inches. top : the upper edge in inches. weights : values to
    draw instead of the maps, (layers, heads, height, width). marked : the layer and heads to frame.
    """
    weights = maps.weights if weights is None else weights
    layers, heads = weights.shape[:2]
    numbers = maps.heads or tuple(range(heads))
    left, right = place
    prefix = "All " if numbers == tuple(range(heads)) else ""
    suffix = f" of layer {maps.layers[0]}" if layers == 1 else ""
    title = f"{prefix}{layers * heads} head{'s' * (layers * heads > 1)}{suffix}"
    top = page.title(left, top, title, right - left)

    one_layer = layers == 1  # it has larger tiles, each with its number
    indent, below = (0.0, GAP) if one_layer else (AXIS_ROOM, AXIS_ROOM - 0.06)
    rows = math.ceil(heads * _LARGE_TILE / (right - left)) if one_layer else layers
    columns = math.ceil(heads / rows) if one_layer else heads
    image, (wide, high) = _tile(weights, rows, columns, headroom=0.3 if one_layer else 0.12)
    width = min(right - left - indent, columns * _LARGEST_TILE)
    height: float = max(width * image.shape[0] / image.shape[1], rows * _LOWEST_TILE)
    ax = page.axes(left + indent, top, width, height)
    drawn = ax.imshow(
        image,
        weight_colors(),
        aspect="auto",
        origin="upper",
        interpolation="nearest",
        interpolation_stage="data",  # resample weights, not colors: half the time
        norm=_norm(maps, weights),
        extent=(0, columns, rows, 0),
    )
    framed = set()
    if marked is not None:
        row = maps.layers.index(marked[0]) * heads
        framed = {row + numbers.index(head) for head in marked[1]}
    corners = [(number % columns, number // columns + 1 - high) for number in range(layers * heads)]
    # The edges of all tiles, so that empty maps are visible; marked tiles come last, on top.
    order = sorted(range(len(corners)), key=lambda number: number in framed)
    boxes = [(*corners[number], wide, high) for number in order]
    edges = PolyCollection(
        [[(x, y), (x + w, y), (x + w, y + h), (x, y + h)] for x, y, w, h in boxes],
        facecolors="none",
        edgecolors=[ACCENT if number in framed else FAINT for number in order],
        linewidths=[1.4 if number in framed else 0.3 for number in order],
        clip_on=False,
        zorder=2,
    )
    ax.add_collection(edges, autolim=False)
    ax.spines[:].set_visible(False)
    if one_layer:
        for number, (x, y) in enumerate(corners):
            ax.text(x, y - 0.04, f"head {numbers[number]}", fontsize=SMALL_SIZE, color=MUTED)
        ax.set_axis_off()
    else:
        _number_sides(ax, maps.layers, numbers, (width / columns, height / rows), (wide, high))
    bar = page.axes(right - 0.35 * width - 0.08, top + height + below, 0.35 * width, 0.06)
    color_bar(drawn, bar, horizontal=True)
    return top + height + below + 0.18


def _tile(
    weights: Tensor, rows: int, columns: int, *, headroom: float
) -> tuple[NDArray[np.float32], tuple[float, float]]:
    """Arrange maps (layers, heads, m, n) as one image of rows × columns tiles.

    Returns the image, and the share of its tile that each map fills, across and down.

    headroom : the gap above each map, as a share of its height.
    """
    maps = _pooled(weights)
    m, n = maps.shape[1:]
    across, down = max(1, round(0.12 * n)), max(1, round(headroom * m))
    places = torch.full((rows * columns, m + down, n + across), torch.nan, device="cpu")
    places[: len(maps), down:, :n] = maps
    side_by_side = places.reshape(rows, columns, m + down, n + across).transpose(1, 2)
    image = side_by_side.reshape(rows * (m + down), columns * (n + across))
    return image.numpy(), (n / (n + across), m / (m + down))


def _pooled(weights: Tensor) -> Tensor:
    """Return the maps (layers · heads, m, n), pooled to the cells that a tile has room for."""
    maps = weights.flatten(0, 1)
    m, n = (min(side, _TILE) for side in maps.shape[1:])
    return maps if maps.shape[1:] == (m, n) else adaptive_avg_pool2d(maps, (m, n))


def _number_sides(
    ax: Axes,
    layers: Sequence[int],
    heads: Sequence[int],
    step: tuple[float, float],
    tile: tuple[float, float],
) -> None:
    """Number the layers down and the heads across, with gaps where there is little room.

    step : the distance of tiles in inches, across and down. tile : the share that a map fills.
    """
    for axis, numbers, room, place in (
        (ax.xaxis, heads, step[0], tile[0] / 2),
        (ax.yaxis, layers, step[1], 1 - tile[1] / 2),
    ):
        every = math.ceil(1.6 * SMALL_SIZE / 72 / room)
        axis.set_ticks(
            np.arange(0, len(numbers), every) + place,
            [str(number) for number in numbers[::every]],
            fontsize=SMALL_SIZE,
        )
    ax.tick_params(length=0)
    ax.set_xlabel("head", color=MUTED, loc="left")
    ax.set_ylabel("layer", color=MUTED)
