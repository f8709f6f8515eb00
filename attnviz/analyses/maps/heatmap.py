"""Draw one attention map: rows are queries, columns are keys, color is weight.

Where the keys are patches of an image, the weights of one query are drawn over the image.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from torch import Tensor
from torch.nn.functional import adaptive_max_pool2d

from attnviz.analyses.maps.compute import (
    attention_map,
    choose_head,
    find_heads,
    head_maps,
    make_overview,
    rank_heads,
)
from attnviz.analyses.maps.head_grid import draw_head_grid
from attnviz.analyses.maps.result import AttentionMap, HeadMaps, HeadMatches, HeadRanking
from attnviz.errors import InputError
from attnviz.figures.cells import Ticks, decimals, draw_cells, fit_ticks, logarithmic, write_numbers
from attnviz.figures.layout import Page, Ruler, color_bar, line_height
from attnviz.figures.style import (
    ACCENT,
    BAR_ROOM,
    BAR_WIDTH,
    FULL_WIDTH,
    GAP,
    INK,
    MARGIN,
    MM,
    MUTED,
    SMALL_SIZE,
    TEXT_SIZE,
    WIDE,
    style,
    weight_colors,
)
from attnviz.results import AttentionResult, AxisGeometry, Special
from attnviz.results.axis import literal, selection, source

Patch: TypeAlias = tuple[int, int] | str

_LABEL = 0.18  # inches of the name of an axis
_LONGEST = 0.3  # share of the width for the labels of rows at most
_LARGEST_CELL, _LARGEST_ALONE = 0.46, 0.55  # inches, with an overview and without
_WRITTEN_CELL = 0.22  # inches: larger cells have room for their number
_READABLE = 0.13  # inches of a row with room for its label
_TALLEST = 9.0  # inches of a map
_NAMED = 64  # tokens: longer parts of a long text have a logarithmic scale
_MOST_CELLS = 500  # along a side; more would be too small for print
_LARGEST_IMAGE = 3.2  # inches of a side of the image
_SHADE = 0.3  # opacity of black in the image


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
    if ax is not None and not isinstance(ax, Axes):
        raise InputError(f"{ax!r:.60} is not axes. Pass axes of matplotlib, or leave ax out.")
    return draw_heatmap(selected, width=width, ax=ax)


@dataclass(frozen=True, eq=False)
class SelectedMap:
    """The content of a heatmap.

    query : the row that is drawn over an image; None draws rows and columns. overview : the maps of
    all heads, drawn beside the map. ranking : all heads, best first; None if no head had to be
    chosen. matches : all heads by the weight between the two words that were asked for.
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
    """Choose the heads that were left open and return the content of their heatmap.

    The parameters are those of `heatmap`, and two more. find : two words; the head is chosen by the
    weight from the first to the second. attend_again : runs the model once more for a layer and
    some heads. An exact part of a streamed map needs it if the layer is chosen here, because exact
    weights are available only for layers that are named before a run.
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


def find_query(
    drawn: AttentionMap, patch: Patch | None = None, *, matrix: bool = False
) -> int | None:
    """Return the row of a map to draw over the image; None if it is drawn as a matrix."""
    patches = drawn.sides[0].patches or (None,) * len(drawn.rows)
    key_patches = drawn.sides[1].patches
    if matrix or drawn.image is None or key_patches is None or not any(key_patches):
        if patch is None:
            return None
        raise InputError(
            f"The patch {patch!r} cannot be used for a matrix of queries and keys, only for "
            "weights that are drawn over an image. Leave it out."
        )
    if patch is None:
        return _default_query(drawn, patches)
    for row, (label, place) in enumerate(zip(drawn.rows, patches, strict=True)):
        if patch == place or (isinstance(patch, str) and patch.casefold() == label.casefold()):
            return row
    tokens = [label for label, place in zip(drawn.rows, patches, strict=True) if place is None]
    choices = [*dict.fromkeys(tokens)][:8]
    if any(patches):
        rows, columns = _grid_size(drawn.sides[0])
        choices.append(f"a patch as (row, column) from (0, 0) to ({rows - 1}, {columns - 1})")
    raise InputError(f"{patch!r} is not a query of the map. Choose {' or '.join(choices)}.")


def _default_query(drawn: AttentionMap, patches: Sequence[tuple[int, int] | None]) -> int:
    """Return the last word of a text; else the row of [CLS], or of the patch in the middle."""
    special = drawn.special_rows or (False,) * len(drawn.rows)
    words = [n for n, patch in enumerate(patches) if patch is None and not special[n]]
    if words:
        return words[-1]
    if "[CLS]" in drawn.rows:
        return drawn.rows.index("[CLS]")
    rows, columns = _grid_size(drawn.sides[0])
    return patches.index((rows // 2, columns // 2)) if any(patches) else len(patches) - 1


def draw_heatmap(
    selected: SelectedMap, *, width: float = FULL_WIDTH, ax: Axes | None = None
) -> Axes:
    """Draw a new page, `width` mm wide, or only the map into the axes."""
    drawn, query = selected.map, selected.query
    with style([*drawn.rows, *drawn.columns, source(drawn.provenance)]):
        if ax is None:
            page = Page(width * MM, shown=True)
            if query is None:
                return _matrix_page(page, drawn, selected.overview)
            return _image_page(page, drawn, query, selected.overview)
        agreement = drawn.checked_agreement
        verdict = agreement.verdict.upper()
        if verdict == "VERIFIED":
            verdict = f"verified to {agreement.largest_difference():.0e}"
        title = f"{selection(drawn.stack, drawn.layer, drawn.heads)}\n"
        title += f"{literal(drawn.provenance.model)}{drawn.provenance.with_changes}, {verdict}"
        if query is None:
            _draw_matrix(ax, drawn, Ruler())
            mappable: ScalarMappable = ax.collections[0]
        else:
            mappable = _draw_over_image(ax, drawn, query)
            title += f", {_query_name(drawn, query)}"
        ax.set_title(title, loc="left", fontsize=TEXT_SIZE, parse_math=False)
        color_bar(mappable, ax.inset_axes((1.03, 0.5, 0.03, 0.5)), "attention weight")
        return ax


def _matrix_page(page: Page, drawn: AttentionMap, overview: HeadMaps | None) -> Axes:
    """Draw title, map, overview and caption."""
    ruler, inner = page.ruler, page.right - page.left
    two_columns = overview is not None and page.width > WIDE
    room = inner * (0.55 if two_columns else 1.0)
    title = selection(drawn.stack, drawn.layer, drawn.heads)
    top = page.title(MARGIN, MARGIN, title, room) + GAP / 2
    longest = _LONGEST * room
    largest = _LARGEST_CELL if overview else _LARGEST_ALONE
    left = MARGIN + _LABEL
    for _ in range(3):  # the size of cells and the room of labels depend on each other
        across, down = _cell_size(drawn, MARGIN + room - left - BAR_ROOM, largest)
        labels = fit_ticks(drawn.rows, down, ruler, axis="y", side=drawn.sides[0], longest=longest)
        left = MARGIN + _LABEL + labels.room
    across, down = _cell_size(drawn, MARGIN + room - left - BAR_ROOM, largest)
    m, n = drawn.weights.shape
    ax = page.axes(left, top, across * n, down * m)
    below = _draw_matrix(ax, drawn, ruler, (across, down), longest)
    tall = min(down * m, 1.5)
    bar = page.axes(left + across * n + MARGIN, top, BAR_WIDTH, tall)
    label = ruler.longest(("attention weight", "weight"), tall, TEXT_SIZE)
    color_bar(ax.collections[0], bar, label)
    bottom = top + down * m + below.room + _LABEL

    caption_left, end = page.left, bottom + GAP / 2
    if overview is not None:
        if two_columns:
            caption_left, end = MARGIN + room + GAP, MARGIN
        place, marked = (caption_left, page.right), (drawn.layer, drawn.heads)
        end = draw_head_grid(page, overview, place, end, marked=marked)
    parts = [source(drawn.provenance), *drawn.notes]
    if max(m, n) > _MOST_CELLS:
        parts.append("each cell is the largest of several weights")
    if _is_long(drawn):
        parts.append("colors on a logarithmic scale")
    end = page.caption(end + GAP, parts, drawn.checked_agreement, left=caption_left)
    page.finish(max(bottom, end) + MARGIN)
    return ax


def _cell_size(drawn: AttentionMap, room: float, largest: float) -> tuple[float, float]:
    """Return the width and height of a cell: square, unless the map would be very flat."""
    m, n = drawn.weights.shape
    across = min(largest, room / n)
    down = across
    if across < _READABLE:
        down = max(across, min(_READABLE, across * n / 2 / m))
    return across, min(down, _TALLEST / m)


def _draw_matrix(
    ax: Axes,
    drawn: AttentionMap,
    ruler: Ruler,
    cell: tuple[float, float] | None = None,
    longest: float = math.inf,
) -> Ticks:
    """Draw the cells and their labels; return the labels of the columns."""
    weights = drawn.weights.float()
    m, n = weights.shape
    pooled: Tensor = weights
    if max(m, n) > _MOST_CELLS:
        pooled = adaptive_max_pool2d(weights[None], (min(m, _MOST_CELLS), min(n, _MOST_CELLS)))[0]
    if cell is None:
        box = ax.get_window_extent()
        cell = (float(min(box.width / n, box.height / m)) / ax.figure.dpi,) * 2
    across, down = cell
    norm = Normalize(0.0, max(drawn.top, 1e-12))
    if _is_long(drawn):
        norm = logarithmic(drawn.weights)
    mesh = draw_cells(ax, pooled, weight_colors(), norm, extent=(m, n))
    ax.set_aspect("equal" if across == down else "auto")
    row_side, column_side = drawn.sides
    rows = fit_ticks(drawn.rows, down, ruler, axis="y", side=row_side, longest=longest)
    columns = fit_ticks(drawn.columns, across, ruler, axis="x", side=column_side, longest=longest)
    rows.apply(ax, "y")
    columns.apply(ax, "x")
    unit = f", {rows.unit}" if rows.unit else ""
    names = [f"query (attending){unit}", f"query{unit}", "query", ""]
    ax.set_ylabel(ruler.longest(names, down * m, TEXT_SIZE), color=MUTED, fontsize=TEXT_SIZE)
    unit = f", {columns.unit}" if columns.unit else ""
    ax.set_xlabel(f"key (attended to){unit}", color=MUTED, fontsize=TEXT_SIZE)
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


def _image_page(page: Page, drawn: AttentionMap, query: int, overview: HeadMaps | None) -> Axes:
    """Draw the image, the map over it, an overview and a caption."""
    image, ruler = drawn.image, page.ruler
    assert image is not None
    inner = page.right - page.left
    three_columns = overview is not None and page.width > WIDE
    side = min(_LARGEST_IMAGE, (inner * (0.62 if three_columns else 1.0) - BAR_ROOM - GAP) / 2)
    tall = min(side * image.shape[0] / image.shape[1], 2 * _LARGEST_IMAGE)

    where = selection(drawn.stack, drawn.layer, drawn.heads)
    top = page.heading(f"{where}, {_query_name(drawn, query)}") + GAP / 2
    below = top + line_height(SMALL_SIZE) + 0.02
    left = MARGIN
    for name in ("image, as the model reads it", "weights over it"):
        page.write(left, top, ruler.wrap(name, side, SMALL_SIZE)[:1], color=MUTED)
        left += side + GAP
    image_axes = page.axes(MARGIN, below, side, tall)
    rows, columns = _grid_size(drawn.sides[1])
    image_axes.imshow(image.numpy(), extent=(0, columns, rows, 0), aspect="auto", origin="upper")
    _outline(image_axes, drawn, query)
    ax = page.axes(MARGIN + side + GAP, below, side, tall)
    mappable = _draw_over_image(ax, drawn, query)
    bar = page.axes(MARGIN + 2 * side + 1.5 * GAP, below, BAR_WIDTH, min(tall, 1.5))
    color_bar(mappable, bar, ruler.longest(("attention weight", "weight"), tall, TEXT_SIZE))

    bottom = below + tall
    if overview is not None:
        on_image = _on_grid(overview.weights[..., query, :], overview.sides[1])
        place, start = (page.left, page.right), bottom + GAP
        if three_columns:
            place, start = (MARGIN + 2 * side + GAP + BAR_ROOM + GAP, page.right), top
        marked = (drawn.layer, drawn.heads)
        end = draw_head_grid(page, overview, place, start, weights=on_image, marked=marked)
        bottom = max(bottom, end)
    parts = [source(drawn.provenance), *drawn.notes, _share_note(drawn, query)]
    page.finish_with_caption(bottom + GAP, parts, drawn.checked_agreement)
    return ax


def _grid_size(side: AxisGeometry) -> tuple[int, int]:
    """Return how many rows and columns of patches there are."""
    rows, columns = zip(*filter(None, side.patches or [(0, 0)]), strict=True)
    return 1 + max(rows), 1 + max(columns)


def _on_grid(weights: Tensor, side: AxisGeometry) -> Tensor:
    """Arrange the last dimension of weights (…, n) like the image: (…, rows, columns)."""
    assert side.patches is not None
    image = weights.new_zeros((*weights.shape[:-1], *_grid_size(side)))
    keys = [n for n, patch in enumerate(side.patches) if patch is not None]
    rows, columns = zip(*(side.patches[n] for n in keys), strict=True)
    image[..., list(rows), list(columns)] = weights[..., keys]
    return image


def _query_name(drawn: AttentionMap, query: int) -> str:
    patch = drawn.sides[0].patches[query] if drawn.sides[0].patches else None
    if patch is not None:
        return f"from the patch in row {patch[0]}, column {patch[1]}"
    label = literal(drawn.rows[query])
    is_special = bool(drawn.special_rows) and drawn.special_rows[query]
    return f"from {label}" if is_special else f"from “{label}”"


def _share_note(drawn: AttentionMap, query: int) -> str:
    """Return a note on the share of a row that goes to tokens outside of the image."""
    if None not in (drawn.sides[1].patches or ()):
        return "each cell is one patch"
    row = drawn.weights[query]
    on_image = float(_on_grid(row, drawn.sides[1]).sum())
    share = 1 - on_image / max(float(row.sum()), 1e-12)
    percent = f"{share:.0%}" if share >= 0.01 else "less than 1%"
    return f"each cell is one patch; {percent} of the weight goes to other tokens"


def _draw_over_image(ax: Axes, drawn: AttentionMap, query: int) -> ScalarMappable:
    """Draw the weights with the image's shades over them; return the source of the color bar.

    The shades are black, more opaque where the image is darker. Without the image's own colors,
    those of the weights keep their hue.
    """
    assert drawn.image is not None
    weights = _on_grid(drawn.weights[query], drawn.sides[1]).float().numpy()
    norm = Normalize(0.0, max(float(weights.max()), 1e-12))
    ax.pcolormesh(weights, cmap=weight_colors(), norm=norm, linewidth=0)
    brightness = drawn.image.numpy() @ np.array([0.2126, 0.7152, 0.0722]) / 255
    shades = np.zeros((*brightness.shape, 4))
    shades[..., 3] = _SHADE * (1 - brightness)
    rows, columns = _grid_size(drawn.sides[1])
    ax.imshow(shades, extent=(0, columns, rows, 0), aspect="auto", origin="upper", zorder=2)
    _outline(ax, drawn, query)
    # The color bar shows the colors as they look where the image has medium brightness.
    colors = weight_colors()(np.linspace(0, 1, 256))[:, :3] * (1 - _SHADE / 2)
    mappable = ScalarMappable(norm, ListedColormap(colors))
    mappable.set_array(weights)
    return mappable


def _outline(ax: Axes, drawn: AttentionMap, query: int) -> None:
    """Frame the patch of the query, and hide the axes."""
    rows, columns = _grid_size(drawn.sides[1])
    ax.set(xlim=(0, columns), ylim=(rows, 0), xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
    patch = drawn.sides[0].patches[query] if drawn.sides[0].patches else None
    if patch is not None:
        corner = patch[1], patch[0]
        box = Rectangle(corner, 1, 1, fill=False, edgecolor=ACCENT, linewidth=1.4, zorder=3)
        box.set_path_effects([withStroke(linewidth=2.6, foreground="white")])
        ax.add_patch(box)
