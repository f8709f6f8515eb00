"""Draw all heads of a model or of one layer, as a grid of their maps or of what they attend to."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import torch
from matplotlib.collections import PolyCollection
from matplotlib.colors import Normalize, to_rgb
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from attnviz.analyses.maps.compute import head_maps
from attnviz.analyses.maps.result import AttentionMap, HeadMaps
from attnviz.errors import refuse_given
from attnviz.figures import figure
from attnviz.figures.cells import CellImage, Ticks, fit_ticks, frame
from attnviz.figures.claims import ON_LOGARITHMIC_SCALE, SIGNED, is_logarithmic, of_heads
from attnviz.figures.head_grid import HeadGrid
from attnviz.figures.layout import CaptionLength, Page, Ruler, color_bar, line_height, new_page
from attnviz.figures.scale import WeightScale, bytes_of, pool_largest
from attnviz.figures.style import (
    AXIS_ROOM,
    FULL_WIDTH,
    GAP,
    IMAGE_COLORS,
    SMALL_SIZE,
    SMALLEST_SIZE,
    TEXT_SIZE,
    theme,
)
from attnviz.heads import OTHER_WORDS, head_families, where_heads_look
from attnviz.results import AttentionResult, Special
from attnviz.results.text import source

_LARGE_TILE, _LARGEST_TILE = 0.8, 1.5  # inches of a tile: with one layer, and at most
_NAMED_TILE = 0.45  # inches of a tile with room for the name of its family
_LONGEST_WORD = 0.5  # inches of a word beside a tile
_SHORTEST_BAR = 0.4  # inches of a color bar with room for its numbers
_LOWEST_TILE = 0.2  # inches of a tile at least
_LOW = 0.4  # the height of a summary beside a map, as a share of its width, at most
_MOST_TILES = 200  # more heads are summarized
_TILE = 64  # cells a side at most; longer maps are pooled for display
_LARGEST_CELL = 0.3  # inches
_TALLEST = 2.0  # the height of a cell, in its widths
_LIGHTEST = 0.12  # the share of its color that a cell has at least
_LINED = 0.08  # inches of a cell with room for lines around it
_APART = 0.14  # inches between the entries of the key
_Looks: TypeAlias = Sequence[tuple[str, float]]  # what each head attends to, and how much


@figure
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

    Raises
    ------
    InputError
        The layer does not exist, or `special` is unknown.

    Examples
    --------
    >>> import attnviz
    >>> result = attnviz.attend("the train left the station on time")
    >>> figure = attnviz.plot.heads(result, layer=2)
    """
    if isinstance(result, HeadMaps):
        why = "the maps are already computed. Give it to head_maps, or draw the result of attend."
        refuse_given(why, layer=layer, words=not words, special=special != "keep")
        maps = result
    else:
        maps = head_maps(result, layer=layer, words=words, special=special)
    with new_page(width, caption, [source(maps.provenance)]) as page:
        top = page.heading(of_heads(maps)) + 0.02
        place = page.left, page.right
        parts = [source(maps.provenance)]
        if (looks := summaries(maps)) is not None:
            bottom = draw_head_summary(page, maps, looks, place, top) + GAP
            bottom = _draw_examples(page, maps, looks, place, bottom)
            parts += ["name a layer to see the maps of all its heads"]
        else:
            families = head_families(maps)
            names = ["" if of is None else f"{of[0].family} {of[1]:.0%}" for of in families]
            bottom = draw_head_grid(page, maps, place, top, names=names)
            count = "" if maps.sides[1].cell > 1 else f"{len(maps.rows)} "
            parts += [f"in each tile the {count}queries run down and the keys across"]
        parts += maps.notes
        if maps.signed:
            parts.insert(1, SIGNED)
        elif is_logarithmic(maps.weights.shape[-1]):
            parts.append(ON_LOGARITHMIC_SCALE)
        return page.finish_with_caption(bottom + GAP, parts, maps.checked_agreement)


def summaries(maps: HeadMaps) -> list[tuple[str, float]] | None:
    """Return what to draw of each head where there are too many for their maps, else None."""
    return where_heads_look(maps) if maps.weights.shape[:2].numel() > _MOST_TILES else None


def _draw_examples(
    page: Page, maps: HeadMaps, looks: _Looks, place: tuple[float, float], top: float
) -> float:
    """Draw the map of the head that gives most to each of the things heads attend to."""
    names = list(dict.fromkeys(name for name, _ in looks))
    best = [max((share, n) for n, (of, share) in enumerate(looks) if of == name) for name in names]
    numbers = [n for _, n in sorted(best, reverse=True)]
    count = len(maps.numbers)
    weights = maps.weights.flatten(0, 1)[numbers][None]
    shown = replace(maps, weights=weights, layers=maps.layers[:1], heads=())
    titles = [f"{maps.layers[n // count]}.{maps.numbers[n % count]}" for n in numbers]
    title, families = "The clearest head of each kind (layer.head)", [looks[n][0] for n in numbers]
    top = page.subtitle(place[0], top, title, place[1] - place[0])
    return draw_head_grid(page, shown, place, top, names=families, titles=titles)


def draw_head_grid(
    page: Page,
    maps: HeadMaps,
    place: tuple[float, float],
    top: float,
    *,
    ratios: Tensor | None = None,
    marked: AttentionMap | None = None,
    names: Sequence[str] = (),
    titles: Sequence[str] = (),
) -> float:
    """Draw the maps as one image with a color bar; return the lower edge.

    place : the left and right edge in inches. top : the upper edge in inches. ratios : values from
    -1 to 1 to draw instead of the maps, (layers, heads, height, width); their colors are explained
    elsewhere. marked : the map of the heads to frame. names : what to write above each tile, if
    there is room.
    """
    scale = WeightScale.of(maps)
    if ratios is not None:
        nothing = torch.zeros(ratios.shape[2:], dtype=torch.bool, device="cpu")
        scale = WeightScale(Normalize(-1, 1), None, nothing, None, IMAGE_COLORS)
    weights = maps.weights if ratios is None else ratios
    grid = HeadGrid(maps.layers, maps.numbers)
    left, right = place

    one_layer = len(grid.layers) == 1  # it has larger tiles, each with its number
    indent, below = (0.0, GAP) if one_layer else (AXIS_ROOM, AXIS_ROOM + 0.04)
    rows, columns = grid.rows, grid.columns
    words = None
    if one_layer:
        rows = math.ceil(columns * _LARGE_TILE / (right - left))
        columns = math.ceil(columns / rows)
        words = _words_beside(maps, page.ruler, (right - left) / columns)
        indent = 0.0 if words is None else words[0].room
    room = (right - left - indent) / columns
    is_named = any(names) and room > _NAMED_TILE
    if one_layer:
        titles = titles or [f"head {number}" for number in grid.heads]
        titles, names = _fit_titles(titles, names, page.ruler, room)
        is_named = any(names)
    else:
        names = [name.partition(" ")[0] for name in names]
    headroom = 0.3 if one_layer else 0.24 if is_named else 0.12
    tiles = grid.arrange(weights).flatten(0, 1)
    image, (wide, high) = _tile(tiles, scale, rows, columns, headroom=headroom)
    width = min(right - left - indent, columns * _LARGEST_TILE)
    height: float = max(width * image.shape[0] / image.shape[1], rows * _LOWEST_TILE)
    ax = page.axes(left + indent, top, width, height)
    ax.add_image(CellImage(ax, image, (rows, columns)))
    ax.set(xlim=(0, columns), ylim=(rows, 0))
    places = [grid.place(layer, head) for layer, head in marked_heads(maps, marked)]
    framed = {row * grid.columns + column for column, row in places}
    corners = [(number % columns, number // columns + 1 - high) for number in range(len(tiles))]
    # The edges of all tiles, so that empty maps are visible; marked tiles come last, on top.
    order = sorted(range(len(corners)), key=lambda number: number in framed)
    edges = PolyCollection(
        [
            [(x, y), (x + wide, y), (x + wide, y + high), (x, y + high)]
            for x, y in (corners[number] for number in order)
        ],
        facecolors="none",
        edgecolors=[theme().accent if number in framed else theme().faint for number in order],
        linewidths=[1.4 if number in framed else 0.3 for number in order],
        clip_on=False,
        zorder=2,
    )
    ax.add_collection(edges, autolim=False)
    ax.spines[:].set_visible(False)
    if one_layer:
        for number, (x, y) in enumerate(corners):
            ax.text(x, y - 0.04, titles[number], fontsize=SMALL_SIZE, color=theme().muted)
            if is_named:
                place_of = x + wide, y - 0.04
                color = theme().accent
                ax.text(*place_of, names[number], fontsize=SMALL_SIZE, color=color, ha="right")
        if words is None:
            ax.set_axis_off()
        else:
            m, n = weights.shape[2:]
            across, down = wide / n, high / m
            starts = [row + 1 - high for row in range(rows)]
            queries, keys = words
            heights = tuple(start + down * y for start in starts for y in queries.places)
            replace(queries, labels=queries.labels * rows, places=heights).apply(ax, "y")
            replace(keys, places=tuple(across * x for x in keys.places)).apply(ax, "x")
    else:
        for number, text in enumerate(names if is_named else ()):
            column, row = grid.place(*divmod(number, len(grid.heads)))
            place_of = column, row + 1 - high - 0.03
            ax.text(*place_of, text, fontsize=SMALLEST_SIZE, color=theme().accent)
        grid.number_sides(ax, (width / columns, height / rows), (wide / 2, 1 - high / 2))
    bottom = top + height + below
    if ratios is not None:
        return bottom
    if words is None:
        _draw_bars(page, scale, place, bottom)
        return bottom + 0.18
    _draw_bars(page, scale, (left + indent + width / columns, right), bottom)
    return max(bottom + 0.18, top + height + words[1].room)


def _fit_titles(
    titles: Sequence[str], names: Sequence[str], ruler: Ruler, room: float
) -> tuple[Sequence[str], Sequence[str]]:
    """Shorten the titles and the names of tiles until both have room above one, in inches.

    names : of families, with their share: "next 78%".
    """
    numbers = [title.removeprefix("head ") for title in titles]
    short = [name.partition(" ")[0] for name in names]
    for choice in ((titles, names), (numbers, names), (numbers, short)):
        if sum(ruler.widest(texts, SMALL_SIZE) for texts in choice) + GAP < room:
            return choice
    return titles, []


def _words_beside(maps: HeadMaps, ruler: Ruler, tile: float) -> tuple[Ticks, Ticks] | None:
    """Return the labels of queries and keys beside a tile, or None if some have no room.

    tile : inches across, at most.
    """
    cell = (tile - _LONGEST_WORD / 2) / maps.weights.shape[3]
    if cell * 72 < 1.2 * SMALLEST_SIZE or maps.sides[1].cell > 1:
        return None
    rows, columns = (
        fit_ticks(words, cell, ruler, axis=axis, side=side, longest=_LONGEST_WORD)
        for words, axis, side in zip((maps.rows, maps.columns), "yx", maps.sides, strict=True)
    )
    return rows, columns


def _draw_bars(page: Page, scale: WeightScale, place: tuple[float, float], top: float) -> None:
    """Draw as many color bars as fit side by side, aligned with the right edge."""
    left, right = place
    size = max(0.19 * (right - left), _SHORTEST_BAR)
    bars = scale.bars
    labels = [f"weight {name}".strip() for name, _ in bars]
    if sum(size + page.ruler.width(label, TEXT_SIZE) + 2 * GAP for label in labels) > right - left:
        bars, labels = bars[:1], ["weight"]
    end = right - 0.08
    for label, (_, bar) in zip(labels[::-1], bars[::-1], strict=True):
        color_bar(bar, page.axes(end - size, top, size, 0.06), label, horizontal=True)
        end -= size + page.ruler.width(label, TEXT_SIZE) + 2 * GAP


def _tile(
    maps: Tensor, scale: WeightScale, rows: int, columns: int, *, headroom: float
) -> tuple[NDArray[np.uint8], tuple[float, float]]:
    """Arrange maps (N, m, n) as one image of rows × columns tiles.

    Returns the colors, and the share of its tile that each map fills, across and down.

    headroom : the gap above each map, as a share of its height.
    """
    m, n = (min(side, _TILE) for side in maps.shape[1:])  # the cells that a tile has room for
    scale, maps = scale.pooled((m, n)), pool_largest(maps.float(), (m, n))
    across, down = max(1, round(0.12 * n)), max(1, round(headroom * m))
    places = np.empty((rows * columns, m + down, n + across, 4), np.uint8)
    places[:] = bytes_of(theme().ground)
    places[: len(maps), down:, :n] = scale.rgba(maps)
    side_by_side = places.reshape(rows, columns, m + down, n + across, 4).transpose(0, 2, 1, 3, 4)
    image = side_by_side.reshape(rows * (m + down), columns * (n + across), 4)
    return image, (n / (n + across), m / (m + down))


def marked_heads(maps: HeadMaps, marked: AttentionMap | None) -> list[tuple[int, int]]:
    """Return the index of the layer and of the head of each head of a map."""
    if marked is None:
        return []
    heads = [maps.numbers.index(head) for head in marked.heads]
    return [(maps.layers.index(layer), head) for layer in marked.layers for head in heads]


def draw_overview(
    page: Page,
    maps: HeadMaps,
    place: tuple[float, float],
    top: float,
    *,
    marked: AttentionMap,
    ratios: Tensor | None = None,
) -> float:
    """Draw all heads with the drawn one framed, below a title; return the lower edge.

    The parameters are those of `draw_head_grid`.
    """
    count = maps.weights.shape[0] * maps.weights.shape[1]
    these = "This head" if len(marked.layers) * len(marked.heads) == 1 else "These heads"
    looks = None if ratios is not None else summaries(maps)
    scale = "on one scale" if looks is None else "by what they attend to"
    title = f"{these} among all {count:,}, {scale}"
    top = page.subtitle(place[0], top, title, place[1] - place[0])
    if looks is not None:
        heads, tallest = marked_heads(maps, marked), _LOW * (place[1] - place[0])
        return draw_head_summary(
            page, maps, looks, place, top + 0.04, marked=heads, tallest=tallest
        )
    return draw_head_grid(page, maps, place, top, ratios=ratios, marked=marked)


def draw_head_summary(
    page: Page,
    maps: HeadMaps,
    looks: _Looks,
    place: tuple[float, float],
    top: float,
    *,
    marked: Sequence[tuple[int, int]] = (),
    tallest: float = math.inf,
) -> float:
    """Draw a cell for each head with a key of the colors; return the lower edge.

    place : the left and right edge in inches. marked : the indices of layer and head of the cells
    to frame. tallest : inches at most.
    """
    grid = HeadGrid(maps.layers, maps.numbers)
    left, right = place[0] + AXIS_ROOM, place[1]
    across = min(_LARGEST_CELL, (right - left) / grid.columns)
    room = (right - left) / grid.rows / 2  # no taller than half of its width
    down = min(_LARGEST_CELL, max(across, min(_TALLEST * across, room)), tallest / grid.rows)
    ax = page.axes(left, top, across * grid.columns, down * grid.rows)
    colors = _colors()
    cells = np.empty((grid.rows, grid.columns, 3))
    for number, (name, share) in enumerate(looks):
        column, row = grid.place(*divmod(number, len(grid.heads)))
        cells[row, column] = _shade(colors[name], share)
    extent = (0, grid.columns, grid.rows, 0)
    ax.imshow(cells, aspect="auto", origin="upper", interpolation="nearest", extent=extent)
    if across >= _LINED:
        line: dict[str, Any] = {"color": theme().ground, "linewidth": 0.6}
        ax.hlines(range(1, grid.rows), 0, grid.columns, **line)
        ax.vlines(range(1, grid.columns), 0, grid.rows, **line)
    for place_of in marked:
        frame(ax, grid.place(*place_of), (1, 1), linewidth=1.4)
    ax.set(xlim=(0, grid.columns), ylim=(grid.rows, 0))
    ax.spines[:].set_visible(False)
    grid.number_sides(ax, (across, down))
    bottom = top + down * grid.rows + AXIS_ROOM + 0.06
    return _draw_key(page, Counter(name for name, _ in looks), colors, place, bottom)


def _colors() -> dict[str, str]:
    """Return the color of what heads attend to."""
    blue, red, orange, green, _, purple = theme().cycle[:6]
    return {
        "previous": blue, "next": purple, "itself": orange, "same": red, "first": theme().gray,
        "special": theme().muted, OTHER_WORDS: green,
    }  # fmt: skip


def _shade(color: str, share: float) -> NDArray[np.float64]:
    """Return a color between the background and `color`, which stands for all of the attention."""
    mix = _LIGHTEST + (1 - _LIGHTEST) * min(max(share, 0.0), 1.0)
    return (1 - mix) * np.array(to_rgb(theme().ground)) + mix * np.array(to_rgb(color))


def _draw_key(
    page: Page,
    counts: Mapping[str, int],
    colors: Mapping[str, str],
    place: tuple[float, float],
    top: float,
) -> float:
    """Write the name and the number of heads beside each color; return the lower edge."""
    left, right = place
    x = left
    for name, color in colors.items():
        if not counts[name]:
            continue
        word = " word" if name in ("first", "same") else ""
        text = f"{name}{word} ({counts[name]})"
        room = 0.12 + page.ruler.width(text, SMALL_SIZE) + _APART
        if x > left and x + room - _APART > right:
            x, top = left, top + line_height(SMALL_SIZE) + 0.03
        page.write(x, top, ["■"], color=color)
        page.write(x + 0.12, top, [text])
        x += room
    top += line_height(SMALL_SIZE) + 0.03
    note = "The darker a head, the more of its attention goes there."
    return page.paragraph(left, top, note, right - left)
