"""Draw one attention map: rows are queries, columns are keys, color is weight."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from torch import Tensor
from torch.nn.functional import adaptive_max_pool2d

from attnviz.analyses.maps.compute import attention_map, head_maps, make_overview
from attnviz.analyses.maps.head_grid import draw_head_grid
from attnviz.analyses.maps.heads import (
    HeadMatches,
    HeadRanking,
    choose_head,
    find_heads,
    rank_heads,
)
from attnviz.analyses.maps.overlay import Patch, draw_overlay, find_query
from attnviz.analyses.maps.result import AttentionMap, HeadMaps
from attnviz.figures import caption
from attnviz.figures.cells import (
    decimals,
    draw_cells,
    logarithmic,
    write_numbers,
)
from attnviz.figures.layout import Page, Ruler, color_bar
from attnviz.figures.style import (
    BAR_ROOM,
    BAR_WIDTH,
    FULL_WIDTH,
    GAP,
    INK,
    MARGIN,
    MM,
    MUTED,
    TEXT_SIZE,
    WIDE,
    style,
    weight_colors,
)
from attnviz.figures.ticks import Ticks, fit_ticks
from attnviz.results import AttentionResult, Special
from attnviz.results.words import selection, source

_LABEL = 0.18  # inches of the name of an axis
_LONGEST = 0.3  # share of the width for the labels of rows at most
_LARGEST_CELL, _LARGEST_ALONE = 0.46, 0.55  # inches, with an overview and without
_WRITTEN_CELL = 0.22  # inches: larger cells have room for their number
_READABLE = 0.13  # inches of a row with room for its label
_TALLEST = 9.0  # inches of a map
_NAMED = 64  # tokens: longer parts of a long text have a logarithmic scale
_MOST_CELLS = 500  # along a side; more would be too small for print


def heatmap(
    result: AttentionResult | AttentionMap,
    *,
    layer: int | None = None,
    head: int | Sequence[int] | None = None,
    patch: Patch | None = None,
    matrix: bool = False,
    words: bool = True,
    special: Special = "keep",
    rows: slice | None = None,
    columns: slice | None = None,
    overview: HeadMaps | bool | None = None,
    width: float = FULL_WIDTH,
    ax: Axes | None = None,
) -> Axes:
    """Draw the attention map of one head, or the mean map of several heads of a layer.

    Rows are queries and columns are keys. If the keys are patches of an image, the weights of one
    query are drawn over the image instead.

    Parameters
    ----------
    result : AttentionResult or AttentionMap
        From `attend` or `attention_map`.
    layer : int, optional
        The layer, counted from 0.
    head : int or sequence of int, optional
        The head, counted from 0, or several heads to average. If the layer or the head is left out,
        the head is chosen in which content words attend to each other most (`rank_heads`).
    patch : (int, int) or str, optional
        The query whose weights are drawn over an image: a patch as (row, column), counted from 0,
        or a token or word ("[CLS]", "cat"). By default the last token of a text, else [CLS], else
        the patch in the middle.
    matrix : bool, default False
        Whether to draw queries × keys for an image too.
    words : bool, default True
        Whether to merge word pieces into words.
    special : {"keep", "hide", "remove"}
        Whether to keep special tokens, to hide them, or to remove them and renormalize the rows.
    rows, columns : slice, optional
        A part of the map, counted from 0: words, or tokens of a long text.
    overview : bool or HeadMaps, optional
        Whether to draw all heads beside the map, with the drawn head marked. By default only if the
        head was chosen automatically. For an AttentionMap: the maps of all heads (`head_maps`).
    width : float, default 183
        The width of a new figure in mm. One column of a journal is 89 mm, two are 183.
    ax : Axes, optional
        The axes to draw into. By default a new figure is created.

    Returns
    -------
    Axes
        The axes of the map. `.figure` is the figure.

    Raises
    ------
    InputError
        The layer, head or patch does not exist, or `special` is unknown.
    """
    if isinstance(result, AttentionMap):
        selected = SelectedMap(
            result,
            find_query(result, patch, matrix=matrix),
            overview if isinstance(overview, HeadMaps) else None,
        )
    else:
        selected = select_map(
            result,
            layer=layer,
            head=head,
            patch=patch,
            matrix=matrix,
            words=words,
            special=special,
            rows=rows,
            columns=columns,
            overview=False if overview is None and ax is not None else overview,
        )
    return draw_heatmap(selected, width=width, ax=ax)


@dataclass(frozen=True, eq=False)
class SelectedMap:
    """What a heatmap shows.

    Attributes
    ----------
    map : AttentionMap
        The map of the heads that were named or chosen.
    query : int or None
        The row that is laid over an image; None draws rows and columns.
    overview : HeadMaps or None
        The maps of all heads, drawn beside the map.
    ranking : HeadRanking or None
        All heads, best first; None where no head had to be chosen.
    matches : HeadMatches or None
        All heads by the weight between the two words that were asked for.
    """

    map: AttentionMap
    query: int | None = None
    overview: HeadMaps | None = None
    ranking: HeadRanking | None = None
    matches: HeadMatches | None = None


def select_map(
    result: AttentionResult,
    *,
    layer: int | None = None,
    head: int | Sequence[int] | None = None,
    find: tuple[str, str] | None = None,
    patch: Patch | None = None,
    matrix: bool = False,
    words: bool = True,
    special: Special = "keep",
    rows: slice | None = None,
    columns: slice | None = None,
    overview: HeadMaps | bool | None = None,
    attend_again: Callable[[int, tuple[int, ...]], AttentionResult] | None = None,
) -> SelectedMap:
    """Choose the heads that were left open and return what their heatmap shows.

    Parameters
    ----------
    find : tuple of str, optional
        Two words. The head is chosen by the weight from the first to the second.
    attend_again : callable, optional
        Runs the model once more for a layer and some heads. It is called for an exact part of a
        streamed map whose layer was chosen here: exact weights are kept only of layers named
        before a run.

    The other parameters are those of `heatmap`.
    """
    matches = None if find is None else find_heads(result, query=find[0], key=find[1])
    ranking = None if matches is None else matches.ranking
    if ranking is None and (layer is None or head is None):
        ranking = rank_heads(result)
    chosen_layer, heads, reason = choose_head(result, layer, head, ranking=ranking)
    exact = result
    if attend_again and result.streamed and layer is None and (rows or columns):
        exact = attend_again(chosen_layer, heads)
    drawn = attention_map(
        exact,
        layer=chosen_layer,
        head=heads,
        words=words,
        special=special,
        rows=rows,
        columns=columns,
        notes=reason,
    )
    query = find_query(drawn, patch, matrix=matrix)
    if overview is True:
        overview = head_maps(result, words=words, special=special)
    elif overview is None and reason:
        overview = make_overview(result, words=words, special=special)
    beside = overview if isinstance(overview, HeadMaps) else None
    return SelectedMap(drawn, query, beside, ranking, matches)


def draw_heatmap(
    selected: SelectedMap, *, width: float = FULL_WIDTH, ax: Axes | None = None
) -> Axes:
    """Draw a new page, `width` mm wide, or only the map into the axes."""
    drawn = selected.map
    with style([*drawn.rows, *drawn.columns, source(drawn.provenance)]):
        if selected.query is not None:
            return draw_overlay(drawn, selected.query, selected.overview, width * MM, ax)
        if ax is None:
            return _page(drawn, selected.overview, width * MM)
        _draw(ax, drawn, Ruler())
        ax.set_title(caption.short(drawn), loc="left", fontsize=TEXT_SIZE, parse_math=False)
        color_bar(ax.collections[0], ax.inset_axes((1.03, 0.5, 0.03, 0.5)), "attention weight")
        return ax


def _page(drawn: AttentionMap, overview: HeadMaps | None, width: float) -> Axes:
    """Draw title, map, overview and caption on a new page, `width` inches wide."""
    ruler, page = Ruler(), Page(width)
    inner = width - 2 * MARGIN
    two_columns = overview is not None and width > WIDE
    room = inner * (0.55 if two_columns else 1.0)

    title = selection(drawn.stack, drawn.layer, drawn.heads)
    top = page.title(MARGIN, MARGIN, title, room) + GAP / 2
    longest = _LONGEST * room
    largest = _LARGEST_CELL if overview else _LARGEST_ALONE
    left = MARGIN + _LABEL
    for _ in range(3):  # the size of cells and the room of labels depend on each other
        across, down = _cells(drawn, MARGIN + room - left - BAR_ROOM, largest)
        labels = fit_ticks(drawn.rows, down, ruler, axis="y", side=drawn.sides[0], longest=longest)
        left = MARGIN + _LABEL + labels.room
    across, down = _cells(drawn, MARGIN + room - left - BAR_ROOM, largest)
    m, n = drawn.weights.shape
    ax = page.axes(left, top, across * n, down * m)
    below = _draw(ax, drawn, ruler, (across, down), longest)
    tall = min(down * m, 1.5)
    bar = page.axes(left + across * n + MARGIN, top, BAR_WIDTH, tall)
    label = ruler.longest(("attention weight", "weight"), tall, TEXT_SIZE)
    color_bar(ax.collections[0], bar, label)
    bottom = top + down * m + below.room + _LABEL

    place, end = (MARGIN, width - MARGIN), bottom + GAP / 2
    if overview is not None:
        if two_columns:
            place, end = (MARGIN + room + GAP, width - MARGIN), MARGIN
        end = draw_head_grid(page, overview, place, end, marked=(drawn.layer, drawn.heads))
    parts = [source(drawn.provenance), *drawn.notes]
    if max(m, n) > _MOST_CELLS:
        parts.append("each cell is the largest of several weights")
    if _is_long(drawn):
        parts.append("colors on a logarithmic scale")
    end = caption.write_caption(page, place, end + GAP, parts, drawn.agreement)
    page.finish(max(bottom, end) + MARGIN)
    return ax


def _cells(drawn: AttentionMap, room: float, largest: float) -> tuple[float, float]:
    """Return the width and height of a cell: square, unless the map would be very flat."""
    m, n = drawn.weights.shape
    across = min(largest, room / n)
    down = across
    if across < _READABLE:
        down = max(across, min(_READABLE, across * n / 2 / m))
    return across, min(down, _TALLEST / m)


def _draw(
    ax: Axes,
    drawn: AttentionMap,
    ruler: Ruler,
    cell: tuple[float, float] | None = None,
    longest: float = math.inf,
) -> Ticks:
    """Draw the cells and their labels; return the labels of the columns."""
    weights = drawn.weights.float()
    m, n = weights.shape
    shown = weights if max(m, n) <= _MOST_CELLS else _largest(weights)
    if cell is None:
        box = ax.get_window_extent()
        cell = (float(min(box.width / n, box.height / m)) / ax.figure.dpi,) * 2
    across, down = cell
    norm = _norm(drawn)
    mesh = draw_cells(ax, shown, weight_colors(), norm, extent=(m, n))
    ax.set_aspect("equal" if across == down else "auto")
    rows, columns = (
        fit_ticks(labels, size, ruler, axis=axis, side=side, longest=longest)
        for labels, size, axis, side in (
            (drawn.rows, down, "y", drawn.sides[0]),
            (drawn.columns, across, "x", drawn.sides[1]),
        )
    )
    rows.apply(ax, "y")
    columns.apply(ax, "x")
    names = [f"{name}{rows.unit and f', {rows.unit}'}" for name in ("query (attending)", "query")]
    names += ["query", ""]
    ax.set_ylabel(ruler.longest(names, down * m, TEXT_SIZE), color=MUTED, fontsize=TEXT_SIZE)
    ax.set_xlabel(
        f"key (attended to){columns.unit and f', {columns.unit}'}", color=MUTED, fontsize=TEXT_SIZE
    )
    if min(cell) >= _WRITTEN_CELL:
        write_numbers(ax, mesh, weights, decimals)
    row, column = drawn.boundary
    if row:
        ax.axhline(row, color=INK, linewidth=0.8)
    if column:
        ax.axvline(column, color=INK, linewidth=0.8)
    return columns


def _is_long(drawn: AttentionMap) -> bool:
    """Whether a map has too many tokens to label, and thus mostly tiny weights."""
    return bool(drawn.sides[1].landmarks) and max(drawn.weights.shape) > _NAMED


def _norm(drawn: AttentionMap) -> Normalize:
    """Return the scale of colors: linear, or logarithmic for a long text."""
    if _is_long(drawn):
        return logarithmic(drawn.weights)
    return Normalize(0.0, max(drawn.top, 1e-12))


def _largest(weights: Tensor) -> Tensor:
    """Return the weights, max-pooled to the cells that a page has room for."""
    size = [min(side, _MOST_CELLS) for side in weights.shape]
    pooled: Tensor = adaptive_max_pool2d(weights[None], size)[0]
    return pooled
