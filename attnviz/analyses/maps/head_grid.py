"""All heads of a model, or of one layer, as one mosaic of small maps."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

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
from attnviz.figures import caption
from attnviz.figures.cells import logarithmic
from attnviz.figures.layout import Page, colour_bar
from attnviz.figures.style import (
    ACCENT,
    FAINT,
    FULL_WIDTH,
    MM,
    MUTED,
    SMALL_SIZE,
    style,
    weight_colours,
)
from attnviz.results import AttentionResult, AxisGeometry, Special
from attnviz.results.labels import source

_MARGIN, _GAP = 0.06, 0.12  # inches
_LABELS = 0.34  # inches for the numbers along a side and its name
_LARGE_TILE, _LARGEST_TILE = 0.8, 1.5  # inches of a tile where one layer is drawn, and ever
_LOWEST_TILE = 0.2  # inches of a tile, however few its queries
_TILE = 64  # cells a side at most; longer maps are pooled for display


def heads(
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
    result : from `attend`; or the maps of all heads (`head_maps`).
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
        maps = head_maps(result, layer=layer, words=words, special=special)
    with style([source(maps.provenance)]):
        page = Page(width * MM)
        place = _MARGIN, page.width - _MARGIN
        bottom = draw_mosaic(page, maps, place, _MARGIN)
        count = "" if _is_pooled(maps) else f"{len(maps.rows)} "
        each = f"in each tile the {count}queries run down and the keys across"
        parts = [source(maps.provenance), each, *maps.notes]
        if _is_pooled(maps):
            parts.append("colours on a logarithmic scale")
        end = caption.write_caption(page, place, bottom + _GAP, parts, maps.agreement)
        return page.finish(end + _MARGIN)


def _is_pooled(maps: HeadMaps) -> bool:
    """Whether the maps are those of a long text, pooled to what a tile has room for."""
    return bool(maps.sides[1].landmarks)


def _norm(maps: HeadMaps) -> Normalize:
    """Return how weights become colours: up to 1, or to less where keys are many.

    Of the hundreds of patches of an image or frames of a sound each gets little, and of the
    thousands of tokens of a long text next to nothing.
    """
    if maps.sides[1] == AxisGeometry():
        return Normalize(0.0, 1.0)
    if _is_pooled(maps):
        return logarithmic(maps.weights)
    tiles = _pooled(maps.weights)
    # By rank, since torch.quantile takes no more than 16 million values.
    top = float(tiles.flatten().sort().values[int(0.995 * (tiles.numel() - 1))])
    return Normalize(0.0, max(top, 1e-12))


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
    layers, heads = maps.weights.shape[:2]
    numbers = maps.heads or tuple(range(heads))
    left, right = place
    which = "All " if numbers == tuple(range(heads)) else ""
    one = f" of layer {maps.layers[0]}" if layers == 1 else ""
    title = f"{which}{layers * heads} head{'s' * (layers * heads > 1)}{one}"
    top = page.title(left, top, title, right - left)

    folded = layers == 1  # then there is room for larger tiles, each under its number
    indent, below = (0.0, _GAP) if folded else (_LABELS, _LABELS - 0.06)
    rows = math.ceil(heads * _LARGE_TILE / (right - left)) if folded else layers
    columns = math.ceil(heads / rows) if folded else heads
    image, (wide, high) = _tile(maps.weights, rows, columns, headroom=0.3 if folded else 0.12)
    width = min(right - left - indent, columns * _LARGEST_TILE)
    height: float = max(width * image.shape[0] / image.shape[1], rows * _LOWEST_TILE)
    ax = page.axes(left + indent, top, width, height)
    drawn = ax.imshow(
        image,
        weight_colours(),
        aspect="auto",
        origin="upper",
        interpolation="nearest",
        interpolation_stage="data",  # colours of pixels: half the time of pixels of colours
        norm=_norm(maps),
        extent=(0, columns, rows, 0),
    )
    framed = set()
    if marked is not None:
        row = maps.layers.index(marked[0]) * heads
        framed = {row + numbers.index(head) for head in marked[1]}
    corners = [(number % columns, number // columns + 1 - high) for number in range(layers * heads)]
    _frame(ax, corners, (wide, high), framed)
    ax.spines[:].set_visible(False)
    if folded:
        for number, (x, y) in enumerate(corners):
            ax.text(x, y - 0.04, f"head {numbers[number]}", fontsize=SMALL_SIZE, color=MUTED)
        ax.set_axis_off()
    else:
        _number_sides(ax, maps.layers, numbers, (width / columns, height / rows), (wide, high))
    bar = page.axes(right - 0.35 * width - 0.08, top + height + below, 0.35 * width, 0.06)
    colour_bar(drawn, bar, horizontal=True)
    return top + height + below + 0.18


def _tile(
    weights: Tensor, rows: int, columns: int, *, headroom: float
) -> tuple[NDArray[np.float32], tuple[float, float]]:
    """Lay (layers, heads, m, n) maps out as one image of rows × columns tiles.

    headroom : the gap above each tile, as a share of its height. Returns the image, and how much
    of its place each map fills, across and down.
    """
    maps = _pooled(weights)
    m, n = maps.shape[1:]
    across, down = max(1, round(0.12 * n)), max(1, round(headroom * m))
    places = torch.full((rows * columns, m + down, n + across), torch.nan)
    places[: len(maps), down:, :n] = maps
    side_by_side = places.reshape(rows, columns, m + down, n + across).transpose(1, 2)
    image = side_by_side.reshape(rows * (m + down), columns * (n + across))
    return image.numpy(), (n / (n + across), m / (m + down))


def _pooled(weights: Tensor) -> Tensor:
    """Return (layers · heads, m, n) maps, no larger than a tile has room for."""
    maps = weights.flatten(0, 1)
    m, n = (min(side, _TILE) for side in maps.shape[1:])
    return maps if maps.shape[1:] == (m, n) else adaptive_avg_pool2d(maps, (m, n))


def _frame(
    ax: Axes,
    corners: Sequence[tuple[float, float]],
    size: tuple[float, float],
    marked: Collection[int],
) -> None:
    """Draw the edges of all tiles, so that an empty map is seen too; those marked stand out."""
    wide, high = size
    order = sorted(range(len(corners)), key=lambda number: number in marked)  # marked on top
    found = [(*corners[number], number in marked) for number in order]
    ax.add_collection(
        PolyCollection(
            [[(x, y), (x + wide, y), (x + wide, y + high), (x, y + high)] for x, y, _ in found],
            facecolors="none",
            edgecolors=[ACCENT if stands_out else FAINT for _, _, stands_out in found],
            linewidths=[1.4 if stands_out else 0.3 for _, _, stands_out in found],
            clip_on=False,
            zorder=2,
        ),
        autolim=False,
    )


def _number_sides(
    ax: Axes,
    layers: Sequence[int],
    heads: Sequence[int],
    step: tuple[float, float],
    tile: tuple[float, float],
) -> None:
    """Number the layers down and the heads across, every few of them where they stand close.

    step : from tile to tile in inches, across and down. tile : its share of that.
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
