"""Draw attention maps, of one head or of all: rows are queries, columns keys, color is weight."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal, TypeAlias

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PolyCollection
from matplotlib.colors import Colormap, LogNorm, Normalize, to_rgb, to_rgba
from matplotlib.figure import Figure, SubFigure
from matplotlib.gridspec import SubplotSpec
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.patheffects import withStroke
from matplotlib.transforms import Bbox
from numpy.typing import NDArray
from torch import Tensor

from attnviz.analyses.maps import compute
from attnviz.analyses.maps.result import MOST_MAPS, AttentionMap, HeadMaps, HeadRanking
from attnviz.errors import InputError, refuse_given, true_or_false, whole_numbers
from attnviz.figures import arcs, cells, claims, figure, layout, style
from attnviz.figures.arcs import Grid
from attnviz.figures.cells import Edges, HeadGrid, Look, Ticks, WeightScale, fit_ticks, frame
from attnviz.figures.layout import CaptionLength, Page, Pair, Place, color_bar, line_height
from attnviz.figures.style import GAP, MARGIN, MM, SMALL_SIZE, TEXT_SIZE, WIDE, theme
from attnviz.heads import OTHER_WORDS, head_families, where_heads_look
from attnviz.results import AttentionResult, AxisGeometry, Special
from attnviz.results.text import literal, source

_LABEL = 0.18  # inches of the name of an axis
_LONGEST = 0.3  # share of the width for the labels of rows at most
_LARGEST_CELL = 0.46  # inches of a cell beside others
_READABLE = 0.13  # inches of a row with room for its label
_SHARES = 0.55, 0.6, 0.64  # of the width, for a map with an overview beside it
_ARROW = np.array(
    [(-1, 0.1), (0.3, 0.1), (0.3, 0.45), (1, 0), (0.3, -0.45), (0.3, -0.1), (-1, -0.1), (-1, 0.1)]
)
_MOST_CELLS = 500  # along a side; more would be too small for print
_LARGEST_IMAGE = 3.2  # inches of a side of the image
_MOST_DOUBLINGS = 5.0  # at which colors end
_LONGEST_WORD = 0.5  # inches of a word beside a tile
_LEAST_ROOM = 1.6  # inches of a color scale with its ends
_LARGEST_HEAD = 0.3  # inches of the cell of a head where heads are summarized
_LIGHTEST = 0.12  # the share of its color that a cell has at least
Patch: TypeAlias = tuple[int, int] | str
_Form: TypeAlias = Literal["sentence", "paragraph", "excerpt", "matrix"]  # of a map and its text
_Looks: TypeAlias = Sequence[tuple[str, float]]  # what each head attends to, and how much


# --- one map


def heatmap(
    result: AttentionResult | AttentionMap,
    *,
    layer: int | Sequence[int] | None = None,
    head: int | Sequence[int] | None = None,
    patch: Patch | None = None,
    matrix: bool = False,
    words: bool = True,
    special: Special = "keep",
    rows: slice | None = None,
    columns: slice | None = None,
    overview: bool | None = None,
    width: float | None = None,
    caption: CaptionLength = "short",
    ax: Axes | None = None,
    vmin: float | None = None,
    vmax: float | None = None,
    norm: Normalize | None = None,
    cmap: str | Colormap | None = None,
    annot: bool | None = None,
    cbar: bool = True,
    cbar_ax: Axes | None = None,
    title: str | None = None,
    figsize: tuple[float, float] | None = None,
    **pcolormesh: Any,
) -> Axes:
    """Draw the attention map of one head, or the mean map of several heads or layers.

    The words of a text stand above their columns, with arcs from queries to the keys that they look
    at. Rows are queries and columns are keys. With `ax`, labels are along both sides. A longer text
    is written out above the map; from 48 keys on, its scale is logarithmic. The rows and columns of
    a text of 12 to 60 sentences are its sentences, in a narrow figure of 3 or more. If the keys are
    patches of an image, the weights of one query are drawn over the image instead. Special tokens
    and queries with one key have gray cells on a scale of their own; setting a scale or colors
    makes all cells alike.

    Parameters
    ----------
    result : AttentionResult or AttentionMap
        From `attend` or `attention_map`.
    layer : int or sequence of int, optional
        The layer, counted from 0 (-1 is the last); several are averaged.
    head : int or sequence of int, optional
        The head, counted from 0; several are averaged, and by default all of several layers.
        Otherwise, if the layer or the head is left out, the head is chosen in which content words
        attend to each other most.
    patch : (int, int) or str, optional
        The query whose weights are drawn over an image: the row and column of a patch, counted from
        0, or a token or word ("[CLS]", "cat"). By default the last token of a text, else [CLS],
        else the patch in the middle.
    matrix : bool, default False
        Draw queries × keys for an image too.
    words : bool, default True
        Merge word pieces into words.
    special : {"keep", "hide", "remove"}
        Keep special tokens, hide them, or remove them and renormalize the rows.
    rows, columns : slice, optional
        A part of the map, counted from 0: words, or tokens of a long text.
    overview : bool, optional
        Whether to draw all heads beside the map, with the drawn head marked. By default only if the
        head was chosen automatically.
    width : float, optional
        The width of a new figure in mm. One column of a journal is 89 mm, two are 183. By default
        89 for one head of up to 12 words, else 183.
    caption : {"short", "full"}
        Whether the caption has two lines, or also says how everything was measured. The file always
        says so in its metadata.
    ax : Axes, optional
        The axes to draw into. By default a new figure is created.
    vmin, vmax : float, optional
        The ends of the color scale. By default 0, and the largest weight between words. Over an
        image, vmax is a multiple of even weight: 8 ends the scale at an eighth and at eight times
        even weight.
    norm : Normalize, optional
        The color scale, in place of vmin and vmax.
    cmap : str or Colormap, optional
        The colors, by default white to dark blue.
    annot : bool, optional
        Whether to write the weights into the cells. By default where they have room.
    cbar : bool, default True
        Whether to draw the color bar.
    cbar_ax : Axes, optional
        The axes of the color bar.
    title : str, optional
        The title, by default what the map shows.
    figsize : (float, float), optional
        The size in inches; only the width counts, in place of `width`.
    **pcolormesh
        For `Axes.pcolormesh`, or seaborn's `fmt`, `annot_kws`, `cbar_kws` and `square`.

    Returns
    -------
    Axes
        The axes of the map. `.figure` is the figure.

    Raises
    ------
    InputError
        The layer, head or patch does not exist, or an argument is not what it should be.

    Examples
    --------
    >>> import attnviz
    >>> result = attnviz.attend("the train left the station on time")
    >>> axes = attnviz.plot.heatmap(result, layer=2, head=8, special="remove", width=120)
    """
    width = width if figsize is None else figsize[0] / MM
    look = Look(vmin, vmax, norm, cmap, annot, cbar, cbar_ax, title, pcolormesh)
    part: dict[str, Any] = {"words": words, "special": special, "rows": rows, "columns": columns}
    if ax is not None:
        why = "ax is drawn into as it is. Leave ax out for a page of its own, or leave this out."
        refuse_given(why, overview=overview, width=width, caption=caption != "short")
    if isinstance(result, AttentionMap):
        changes = part | {"words": not words, "special": special != "keep", "overview": overview}
        why = "the map is already computed. Give it to attention_map, or draw the result of attend."
        refuse_given(why, layer=layer, head=head, **changes)
        selected = SelectedMap(result, find_query(result, patch, matrix=matrix))
    else:
        shown = False if overview is None and ax is not None else overview
        selected = select_map(
            result, layer=layer, head=head, patch=patch, matrix=matrix, overview=shown, **part
        )
    return draw_heatmap(selected, look, width=width, caption=caption, ax=ax)


@dataclass(frozen=True, eq=False)
class SelectedMap:
    """The content of a heatmap."""

    map: AttentionMap
    query: int | None = None  # the row that is drawn over an image; None draws rows and columns
    overview: HeadMaps | None = None  # of all heads, drawn beside the map
    ranking: HeadRanking | None = None  # best first, or by the words asked for, if one was chosen
    asked: tuple[int, int] | None = None  # the cell of these words, if the map shows them

    @cached_property
    def finding(self) -> claims.Finding:
        """What the map shows; without a title if that is nothing that has one."""
        return claims.of_map(self.map, self.asked) or claims.Finding("")


def select_map(
    result: AttentionResult,
    *,
    layer: int | Sequence[int] | None = None,
    head: int | Sequence[int] | None = None,
    find: tuple[str, str] | None = None,
    patch: Patch | None = None,
    matrix: bool = False,
    words: bool = True,
    special: Special = "keep",
    rows: slice | None = None,
    columns: slice | None = None,
    overview: bool | None = None,
    attend_again: Callable[[Sequence[int], tuple[int, ...]], AttentionResult] | None = None,
) -> SelectedMap:
    """Choose the heads that were left open and return the content of their heatmap.

    The parameters are those of `heatmap`, and two more. find : two words; the head is chosen by the
    weight from the first to the second. attend_again : runs the model once more for a layer and
    some heads, which an exact part of a streamed map needs if the layer is chosen here.
    """
    ranking: HeadRanking | None = None
    if find is not None:
        ranking = compute.find_heads(result, query=find[0], key=find[1])
    layers = () if layer is None else whole_numbers(layer, "layer")
    if len(layers) > 1:
        reason: tuple[str, ...] = ()
        heads = result.layer(layers[0]).kept if head is None else whole_numbers(head, "head")
    else:
        if ranking is None and (layer is None or head is None):
            ranking = compute.rank_heads(result)
        asked = layers[0] if layers else None
        one, heads, reason = compute.choose_head(result, asked, head, ranking=ranking)
        layers = (one,)
    exact = result
    if attend_again and result.streamed and layer is None and (rows or columns):
        exact = attend_again(layers, heads)
    drawn = compute.attention_map(
        exact, layer=layers, head=heads, words=words, special=special, rows=rows, columns=columns,
        notes=reason,
    )  # fmt: skip
    query = find_query(drawn, patch, matrix=matrix)
    beside = None
    if overview is not None and true_or_false(overview, "overview"):
        beside = compute.head_maps(result, words=words, special=special)
    elif overview is None and reason:
        beside = compute.make_overview(result, words=words, special=special)
    whole = rows is None and columns is None
    cell = claims.cell_of(drawn, *find) if find is not None and whole else None
    return SelectedMap(drawn, query, beside, ranking, cell)


def draw_heatmap(
    selected: SelectedMap,
    look: Look = Look(),  # noqa: B008  it does not change
    *,
    width: float | None = None,
    caption: CaptionLength = "short",
    ax: Axes | None = None,
) -> Axes:
    """Draw a new page, `width` mm wide, or only the map into the axes."""
    drawn, query = selected.map, selected.query
    if width is None:
        is_narrow = _is_sentence(drawn) and _has_few_words(drawn) and selected.overview is None
        width = style.COLUMN_WIDTH if is_narrow else style.FULL_WIDTH
    colors = None if ax is None else style.theme_on(ax.get_facecolor())
    with style.drawing([*drawn.rows, *drawn.columns, source(drawn.provenance)], theme=colors):
        if ax is not None:
            return _draw_into(ax, selected, look)
        page = Page(width, caption, shown=True)
        if query is None:
            return _map_page(page, selected, look)
        return _image_page(page, selected, query, look)


def _draw_into(ax: Axes, selected: SelectedMap, look: Look) -> Axes:
    """Draw a map into axes of the user, with its verdict in the title."""
    drawn, query, before = selected.map, selected.query, {*ax.get_children()}
    ruler, scale = layout.Ruler(ax.figure.dpi), style.text_scale()
    agreement = drawn.checked_agreement
    if (verdict := agreement.verdict.upper()) == "VERIFIED":
        verdict = f"verified to {agreement.largest_difference():.0e}"
    model = f"{literal(drawn.provenance.model)}{drawn.provenance.with_changes}, {verdict}"
    where = drawn.where
    if query is None:
        _fit_into_place(ax, drawn, look, ruler)
        (m, n), box = drawn.weights.shape, ax.get_window_extent()
        cell = (float(min(box.width / n, box.height / m)) / ax.figure.dpi / scale,) * 2
        _draw_matrix(ax, drawn, WeightScale.of(drawn).with_look(look), ruler, cell)
        mappable: ScalarMappable = ax.collections[0]
        label, say = "weight", None
    else:
        mappable = draw_over_image(ax, drawn, query, look)
        label, say = "÷ even weight", times
        where += f", {query_name(drawn, query)}"
    if isinstance(fitted := ax.get_axes_locator(), _Located):
        ax.apply_aspect(fitted())  # the cells may be square
    room = ax.get_window_extent().width / ax.figure.dpi / scale
    lines = [where, ruler.longest((model, verdict), room, TEXT_SIZE)]
    title = "\n".join(lines) if look.title is None else look.title
    heading = ax.set_title(title, loc="left", fontsize=TEXT_SIZE, parse_math=False)
    if look.cbar:
        how = {"label": label, "beside": look.cbar_ax is None, "say": say}
        bar = color_bar(mappable, look.cbar_ax or ax, **(how | look.mesh.get("cbar_kws", {})))
        layout.enlarge(bar.findobj(), scale)
        if look.cbar_ax is None:
            bar.set_axes_locator(_Located(bar, ax))
    new = {*ax.get_children()} - before
    layout.enlarge([heading, *ax.xaxis.findobj(), *ax.yaxis.findobj(), *new], scale)
    return ax


@dataclass(frozen=True)
class _Located:
    """Where axes are in their figure; `tight_layout` knows the axes there by their grid."""

    ax: Axes
    place: Bbox | Axes  # until a layout engine places the axes; or what a color bar is beside

    def __call__(self, *_: object) -> Bbox:
        if isinstance(self.place, Axes):  # the bar is as tall as the cells
            x, y, wide, high = self.place.get_position().bounds
            return Bbox.from_bounds(x + 1.03 * wide, y, 0.1 * wide, high)
        return self.place if _is_free(self.ax) else self.ax.get_position(original=True)

    def get_subplotspec(self) -> SubplotSpec | None:
        return self.ax.get_subplotspec()


def _is_free(ax: Axes) -> bool:
    """Return whether no layout engine places axes, nor has placed them."""
    figure = ax.get_figure(root=True)
    return figure is not None and figure.get_layout_engine() is None


def _fit_into_place(ax: Axes, drawn: AttentionMap, look: Look, ruler: layout.Ruler) -> None:
    """Shrink axes that no layout engine places, so that labels and bar stay in their place."""
    if not _is_free(ax):
        return
    scale = style.text_scale()
    wide, high = (side / ax.figure.dpi / scale for side in ax.figure.bbox.size)
    box = ax.get_position(original=True)
    cell = box.width * wide / drawn.weights.shape[1]
    rows = fit_ticks(drawn.rows, cell, ruler, axis="y", side=drawn.sides[0])
    columns = fit_ticks(drawn.columns, cell, ruler, axis="x", side=drawn.sides[1])
    right = 0.5 if look.cbar and look.cbar_ax is None else 0.0
    room = rows.room + _LABEL, right, columns.room + _LABEL, 2.5 * line_height(TEXT_SIZE)
    left, right, below, above = (max(0.0, inches - 0.12) for inches in room)
    across = max(0.2 * box.width, box.width - (left + right) / wide)
    tall = max(0.2 * box.height, box.height - (below + above) / high)
    place = Bbox.from_bounds(box.x0 + left / wide, box.y0 + below / high, across, tall)
    ax.set_axes_locator(_Located(ax, place))
    ax.apply_aspect(place)


def _map_page(page: Page, selected: SelectedMap, look: Look) -> Axes:
    drawn, overview = selected.map, selected.overview
    form, right = _place_map(page, selected)
    scale = WeightScale.of(drawn, linear=form == "sentence").with_look(look)
    links, claimed = _links_of_text(selected) if form in ("paragraph", "excerpt") else ([], [])
    start = _head_map(page, selected, look, form, bool(links)) + GAP / 2
    if form in ("paragraph", "excerpt"):
        how = {"whole": form == "paragraph"}
        start = arcs.draw_paragraph(page, drawn, links, claimed, start, scale.colors, **how) + GAP
    count, edge = max(arcs.sentences_of(drawn)) + 1, page.right
    is_wide, of_words = page.width > WIDE, form != "excerpt"
    draw = {"sentence": _draw_sentence, "excerpt": _draw_sentences}.get(form, _draw_panel)
    if form == "paragraph" and count > 2 and not is_wide:
        draw, of_words = _draw_sentences, False
    ax, bottom, (left, end) = draw(page, selected, scale, (start, right))
    if look.cbar_ax is not None:
        color_bar(scale.bars[0][1], look.cbar_ax, "attention weight")
    if form == "paragraph" and count > 1 and is_wide:  # both maps side by side
        beside, numbers = right + GAP, arcs.sentences_of(drawn)
        for draw_line, number in itertools.product((ax.axhline, ax.axvline), range(1, count)):
            draw_line(numbers.index(number), color=theme().gray, linewidth=0.4)
        _, below, _ = _draw_sentences(page, selected, scale, (start, page.right), beside)
        if overview is None:
            left, end = beside, below
        else:
            place, edge, end = (beside, page.right), right, bottom
            bottom = draw_overview(page, overview, place, below + GAP, marked=drawn)
    elif overview is not None:
        left, end = (right + GAP, start) if right < page.right else (left, end + GAP)
        end = draw_overview(page, overview, (left, page.right), end, marked=drawn)
    parts = [source(drawn.provenance), *drawn.notes]
    if drawn.signed:
        parts.insert(1, claims.SIGNED)
    if drawn.masked is not None and not (form in ("sentence", "excerpt") and _is_causal(drawn)):
        parts.insert(1, "hatched: keys that the query may not attend to")
    if of_words and max(drawn.weights.shape) > _MOST_CELLS:
        parts.append("each cell is the largest of several weights")
    if isinstance(ax.collections[0].norm, LogNorm):
        parts.append(claims.ON_LOGARITHMIC_SCALE)
    agreement = drawn.checked_agreement
    page.finish(end + GAP, parts, agreement, left=left, right=edge, bottom=bottom)
    return ax


def _head_map(page: Page, selected: SelectedMap, look: Look, form: _Form, has_links: bool) -> float:
    """Write the title, and which head it is; return the lower edge."""
    drawn, finding, where = selected.map, selected.finding, selected.map.where
    title = (finding.sentence if form == "matrix" else finding.title) or where
    title = title if look.title is None else look.title
    points = style.TITLE_SIZE - 2 * page.smaller * (form != "matrix")
    top = page.subtitle(page.left, MARGIN, title, page.room, points=points)
    if form == "matrix":
        return top if title == where else page.subheading(top, where)
    says = [where]
    if form == "sentence":
        unit, other = claims.unit_of(drawn.rows), claims.unit_of(drawn.columns)
        among = "those" if unit == other == "position" else f"the {other}s"
        splits = f"splits 100% among {among} along the top"
        if drawn.special == "hide":
            splits += " and the special tokens, which are hidden"
        elif drawn.weights.sum(-1).min() < 0.99:
            splits = splits.replace("100%", "less than 100%")
        says += [f"Each row is one {unit} and {splits}", *filter(None, [finding.more])]
    elif has_links:
        of = "The" if form == "paragraph" else "The sentences with the"
        says += [f"{of} strongest links between words: a dashed box looks at a solid one"]
    points = SMALL_SIZE - page.smaller
    return page.paragraph(page.left, top, f"{'. '.join(says)}.", page.room, points=points)


def _place_map(page: Page, selected: SelectedMap) -> tuple[_Form, float]:
    """Return what is above a map, and its right edge: an overview is beside it on a wide page."""
    drawn, room, is_wide = selected.map, page.room, page.width > WIDE
    two_columns = selected.overview is not None and is_wide
    form: _Form = "matrix"  # unless a text of too many words for one line is written above it
    count, length = max(arcs.sentences_of(drawn)) + 1, len(drawn.rows)
    if _is_sentence(drawn) and not claims.is_right_to_left("".join(drawn.rows)):
        if count <= 11 and length <= 250:
            form = "paragraph"
        elif 2 < count <= 60 and length <= 40 * count:
            form = "excerpt"
    if _is_sentence(drawn) and (form == "matrix" or count <= 2 or length <= 40):
        if two_columns:
            few = style.COLUMN_WIDTH * MM - GAP
            room = few if _has_few_words(drawn) else _SHARES[-1] * room
        if Grid.of(page, drawn, page.left + room).pitch >= arcs.PITCH:
            return "sentence", page.left + room
    two_columns = two_columns or (form == "paragraph" and count > 1 and is_wide)
    # The smallest share in which each column has room for its label.
    needed = len(drawn.columns) * style.SMALLEST_SIZE * 1.2 / 72 + 1.3  # labels and color bar
    share = next((share for share in _SHARES if share * page.room > needed), _SHARES[-1])
    return form, page.left + (share if two_columns else 1.0) * page.room


def _draw_panel(
    page: Page, selected: SelectedMap, scale: WeightScale, place: Place
) -> tuple[Axes, float, Place]:
    """Draw the map as a matrix with its labels and color bars.

    place : the upper and the right edge. Returns the axes, the lower edge, and the left and upper
    edge of what comes next.
    """
    drawn, finding, is_alone = selected.map, selected.finding, selected.overview is None
    top, right = place
    ruler, room = page.ruler, right - page.left
    longest, left = _LONGEST * room, MARGIN + _LABEL
    largest = 0.55 if is_alone else _LARGEST_CELL
    for _ in range(3):  # the size of cells and the room of labels depend on each other
        across, down = _cell_size(drawn, right - left - style.BAR_ROOM, largest)
        labels = fit_ticks(drawn.rows, down, ruler, axis="y", side=drawn.sides[0], longest=longest)
        left = MARGIN + _LABEL + labels.room
    space = right - left - style.BAR_ROOM
    across, down = _cell_size(drawn, space, largest)
    m, n = drawn.weights.shape
    is_beside = is_alone and space - across * n > 1.6  # the caption, of a small map
    if is_alone and not is_beside:
        across, down = _cell_size(drawn, space, 0.7)  # no narrow column stays empty
    ax = page.axes(left, top, across * n, down * m)
    below = _draw_matrix(ax, drawn, scale, ruler, (across, down), longest)
    if finding.cell is not None:
        frame(ax, finding.cell[::-1], (1, 1))
        if claims.is_logarithmic(n):
            _name_cell(ax, drawn, scale, finding.cell)
    if scale.look.cbar and scale.look.cbar_ax is None:
        _draw_bars(page, scale, left + across * n + MARGIN, top, down * m)
    bottom = top + down * m + below.room + _LABEL
    if is_beside:
        return ax, bottom, (left + across * n + style.BAR_ROOM + GAP, top - GAP)
    return ax, bottom, (page.left, bottom + GAP / 2)


# --- below its sentence


def _is_sentence(drawn: AttentionMap) -> bool:
    """Whether a map has one row and one column for each word of a text, and shares in its rows."""
    return drawn.is_text and not drawn.signed and not drawn.sums and len(drawn.rows) > 1


def _has_few_words(drawn: AttentionMap) -> bool:
    return int(drawn.is_word[0].sum()) <= 12


def _links_of_text(selected: SelectedMap) -> tuple[list[arcs.Link], list[arcs.Cell]]:
    """Return the strongest links of a text, and those of the claim."""
    drawn, finding, weights = selected.map, selected.finding, selected.map.weights.float()
    linked = claims.links_between(drawn)
    claimed: list[tuple[int, int]] = []
    if finding.family is not None and (finding.family & linked).any():
        linked &= finding.family
        claimed = [(query, key) for query, key in linked.nonzero().tolist()]
    if finding.cell is not None:
        claimed = [finding.cell]
    return arcs.distant_links(weights, linked, drawn.rows, finding.cell), claimed


def _draw_sentences(
    page: Page, selected: SelectedMap, scale: WeightScale, place: Place, left: float | None = None
) -> tuple[Axes, float, Place]:
    """Draw how the words of each sentence share their weight among sentences; see `_draw_panel`.

    left : the left edge beside the map of the words, where numbers name the sentences.
    """
    drawn, finding, (top, right), is_alone = selected.map, selected.finding, place, left is None
    left = page.left if left is None else left
    numbers = torch.tensor(arcs.sentences_of(drawn))
    count = int(numbers.max()) + 1
    belongs = (numbers == torch.arange(count)[:, None]).float()
    shares = belongs @ (drawn.weights.float().nan_to_num(0.0) * ~drawn.uninformative) @ belongs.T
    shares /= shares.sum(-1, keepdim=True)
    masked = None if drawn.masked is None else belongs @ (~drawn.masked).float() @ belongs.T == 0
    claimed = torch.zeros_like(shares, dtype=torch.bool)
    says = "Rows look at columns: % of the weight between words."
    if finding.cell is not None and (cell := numbers[[*finding.cell]]).min() >= 0:
        claimed[tuple(cell)] = True
        says += " The framed cell holds the link in the title."
    end = page.subtitle(left, top, "Where the words of each sentence look", right - left)
    end = page.paragraph(left, end, says, right - left) + 0.18  # inches

    row = int(claimed.any(1).nonzero()[0]) if claimed.any() else -1
    grid = Grid.of_sentences(page, drawn, (left, right), row, named=is_alone)
    names = tuple(word.text for word in grid.rows)
    none: dict[str, Any] = {"special_rows": (), "special_columns": (), "starts_with_sink": False}
    sides = AxisGeometry(), AxisGeometry()
    of = replace(
        drawn, weights=shares, rows=names, columns=names, masked=masked, sides=sides, **none
    )
    scale = WeightScale.of(of).with_look(scale.look if is_alone else Look(cbar=False))
    ax = page.axes(grid.left, end, *grid.size)
    least = 0.005 if count <= 11 else max(1 / count, 0.05)
    _draw_below(ax, of, grid, scale, claimed, least)
    every = next(one for one in (1, 2, 5, 10) if one * grid.pitch >= 1.6 * SMALL_SIZE / 72)
    shown = range(every - 1, count, every)
    ax.set_xticks(grid.middles()[1][shown], [f"{n + 1}" for n in shown], fontsize=SMALL_SIZE)
    ax.xaxis.tick_top()
    ax.tick_params(axis="x", length=0)
    bottom = _draw_brackets(page, drawn, grid, end + grid.size[1], right)
    if scale.look.cbar and scale.look.cbar_ax is None:
        bottom = cells.draw_scales(page, scale.ends[:1], (left, right), bottom + 2.4 * MM) + GAP / 2
    return ax, bottom, (page.left, bottom)


def _is_causal(drawn: AttentionMap) -> bool:
    later = torch.ones(drawn.weights.shape, device="cpu").triu(1) > 0
    return drawn.masked is not None and bool((drawn.masked == later).all())


def _draw_sentence(
    page: Page, selected: SelectedMap, scale: WeightScale, place: Place
) -> tuple[Axes, float, Place]:
    """Draw the words with arcs above, the map exactly below, and the scales; see `_draw_panel`."""
    drawn, finding, (top, right) = selected.map, selected.finding, place
    grid = Grid.of(page, drawn, right, finding.cell or ())
    names = arcs.Names.fit(grid, page.ruler, (page.left, right))
    linked = claims.links_between(drawn)
    shown = torch.zeros_like(linked)  # the cells of the claim
    if finding.family is not None:
        shown |= finding.family
    if finding.cell is not None:
        shown[finding.cell] = True
    claimed = [
        (query, key)
        for query, key in shown.nonzero().tolist()
        if query != key and (finding.cell or linked[query, key])
    ]
    links = arcs.strongest_links(drawn.weights.float(), linked, claimed)
    high = 18 if len(drawn.rows) > 40 else 16 if page.width > WIDE else 13
    above = arcs.Arcs(links, names, claimed, high * MM)
    start, (wide, tall) = top + above.height + max(names.feet), grid.size
    ax = page.axes(grid.left, start, wide, tall)
    canvas = page.canvas(page.left, top, right - page.left, start - top - 0.1 * MM)
    above.draw(canvas, start, scale.colors)
    least = max(1 / len(drawn.rows), 0.1)
    _draw_below(ax, drawn, grid, scale, shown, least)
    names.draw(canvas, start, ax, grid.middles()[1].tolist())
    bottom = _draw_brackets(page, drawn, grid, start + tall, right)
    if scale.look.cbar and scale.look.cbar_ax is None:
        bottom = cells.draw_scales(page, scale.ends, (page.left, right), bottom + 2.4 * MM)
        bottom += GAP / 2
    return ax, bottom, (page.left, bottom)


def _draw_below(
    ax: Axes, drawn: AttentionMap, grid: Grid, scale: WeightScale, claimed: Tensor, least: float
) -> None:
    """Draw a map below its words, with a line around the claimed cells (m, n) and row labels.

    least : the smallest weight between words that is written into its cell.
    """
    weights, look, edges = drawn.weights.float(), scale.look, grid.edges
    is_large = grid.pitch >= 4 * MM and grid.height >= 3.6 * MM
    written = None
    if is_large if look.annot is None else look.annot:
        shown = weights >= least
        if look.annot is None:  # of gray cells only those that take half of a row
            shown &= ~scale.uninformative | (weights >= 0.5) | claimed
        written = grid.spaced(shown)
    masked = None if drawn.masked is None else grid.spaced(drawn.masked)
    thin = {"linewidth": 0.6 if grid.pitch > 3 * MM else 0.25}
    look = replace(look, mesh=thin | dict(look.mesh))
    gray = grid.spaced(scale.uninformative)
    scale = replace(scale, uninformative=gray, masked=masked, look=look)
    points = style.NUMBER_SIZE - TEXT_SIZE + grid.points
    weights = grid.spaced(weights)
    _draw_weights(ax, weights, scale, edges, written, lambda one: f"{100 * one:.0f}", points)
    cells.outline(ax, grid.spaced(claimed), edges)
    wide, tall = grid.size
    if len(grid.rows) >= 6 and _is_causal(drawn):
        ax.text(
            1 - 2 * MM / wide, 1 - 2 * MM / tall, "comes later: not read", fontsize=SMALL_SIZE,
            color=theme().muted, ha="right", va="top", transform=ax.transAxes,
            bbox={"facecolor": theme().ground, "linewidth": 0, "pad": 2},
        )  # fmt: skip
    _label_rows(ax, grid)


def _label_rows(ax: Axes, grid: Grid) -> None:
    """Write the word of each row, or of every second, with an arrow to its cells."""
    rows, (places, _) = grid.rows, grid.middles()
    every = 1 if grid.height >= 2.6 * MM else 2
    claimed_row = next((n for n, word in enumerate(rows) if word.is_claimed), 0)
    shown = range(claimed_row % every, len(places), every)
    size = min(grid.points, max(style.SMALLEST_SIZE, every * grid.height * 72 / 1.15))
    ticks = ax.set_yticks(places[shown], [rows[n].text for n in shown], fontsize=size)
    for n, tick in zip(shown, ticks, strict=True):
        label = tick.label2 if grid.right_to_left else tick.label1
        label.set(parse_math=False, **rows[n].look)
    ax.tick_params(axis="y", length=0, pad=(arcs.ARROW - 0.2 * MM) * 72 * style.text_scale())
    for claimed, color in ((False, theme().gray), (True, theme().claim)):
        of = [places[n] for n in shown if rows[n].is_claimed is claimed]
        arrow = Path(_ARROW * [-1 if grid.right_to_left else 1, 1])
        ax.plot(
            [-2 * MM / grid.pitch] * len(of), of, linestyle="none", marker=arrow, markersize=6,
            color=color, markeredgewidth=0, clip_on=False,
        )  # fmt: skip
    if grid.right_to_left:
        ax.yaxis.tick_right()
        ax.invert_xaxis()
    ax.set_ylim(grid.edges[0][-1], 0)


def _draw_brackets(page: Page, drawn: AttentionMap, grid: Grid, top: float, right: float) -> float:
    """Draw brackets below the two texts of a pair, the prompt and what was generated."""
    if not grid.breaks:
        return top
    _, names = arcs.parts_of(drawn)
    below, points = 3.2 * MM + line_height(SMALL_SIZE), SMALL_SIZE - page.smaller
    canvas = page.canvas(page.left, top + MM, right - page.left, below - MM)
    limits = itertools.pairwise([0, grid.breaks[0], len(grid.places)])
    for name, (first, last) in zip(names, limits, strict=True):
        start, end = sorted((grid.places[first], grid.places[last - 1]))
        start, end = start - grid.pitch / 2 + 0.3 * MM, end + grid.pitch / 2 - 0.3 * MM
        line = [start, start, end, end], [top + high * MM for high in (1.6, 2.4, 2.4, 1.6)]
        half = page.ruler.width(name, points) / 2
        middle = min(max((start + end) / 2, page.left + half), right - half), top + 3.2 * MM
        arcs.draw_bracket(canvas, line, name, middle, fontsize=points, ha="center", va="top")
    return top + below


def _name_cell(ax: Axes, drawn: AttentionMap, scale: WeightScale, cell: tuple[int, int]) -> None:
    """Enlarge a cell of a long map, with its weight and the words of its query and key."""
    row, column = cell
    weight = float(drawn.weights[row, column])
    fill = scale.colors(scale.norm(weight))
    ax.plot(column + 0.5, row + 0.5, "o", color=theme().claim, markerfacecolor=fill, markersize=6)
    is_right = column > len(drawn.columns) / 2
    text = ax.annotate(
        f"{literal(drawn.rows[row])} → {literal(drawn.columns[column])} {weight:.0%}",
        (column + 0.5, row + 0.5), (-5 if is_right else 5, 0), textcoords="offset points",
        ha="right" if is_right else "left", va="center", fontsize=SMALL_SIZE,
        color=theme().claim, parse_math=False,
    )  # fmt: skip
    text.set_path_effects([withStroke(linewidth=2, foreground=theme().ground)])


def _draw_bars(page: Page, scale: WeightScale, left: float, top: float, tall: float) -> None:
    """Draw the color bars of a map beside it, one below the other where it is tall enough."""
    (name, words), *others = scale.bars
    others = others if tall > 1.0 else []  # inches
    height = min(0.6 * tall, 1.5) if others else min(tall, 1.5)
    labels = f"attention weight {name}".strip(), "attention weight", "weight"
    if (scale.norm.vmin or 0.0) < 0:
        labels = "weight (signed)", "weight", "weight"
    label = page.ruler.longest(labels, height, TEXT_SIZE)
    color_bar(words, page.bar(left, top, height), label)
    for name, bar in others:
        name = name.removeprefix("of ")
        labels = name, name.removeprefix("the ").replace(" tokens and", ","), ""
        label = page.ruler.longest(labels, 0.28 * tall, TEXT_SIZE)
        color_bar(bar, page.bar(left, top + 0.72 * tall, 0.25 * tall), label)


def _cell_size(drawn: AttentionMap, room: float, largest: float) -> tuple[float, float]:
    """Return the width and height of a cell: square, unless the map would be very flat."""
    m, n = drawn.weights.shape
    across = min(largest, room / n)
    down = max(across, min(_READABLE, across * n / 2 / m))
    return across, min(down, 9.0 / m)  # inches of a page


def _draw_matrix(
    ax: Axes,
    drawn: AttentionMap,
    scale: WeightScale,
    ruler: layout.Ruler,
    cell: Pair,
    longest: float = math.inf,
) -> Ticks:
    """Draw the cells and their labels; return the labels of the columns."""
    weights, look = drawn.weights.float(), scale.look
    (m, n), (across, down) = weights.shape, cell
    write = min(cell) >= 0.22 if look.annot is None else look.annot
    if (size := (min(m, _MOST_CELLS), min(n, _MOST_CELLS))) != (m, n):
        weights, scale = cells.pool_largest(weights[None], size)[0], scale.pooled(size)
    written = weights >= round(1 / n, 2) - 0.005
    if drawn.signed:
        written = weights.abs() >= 0.1 * weights.abs().max()
    edges = np.linspace(0, m, size[0] + 1), np.linspace(0, n, size[1] + 1)
    thin = {"linewidth": 0.1} if max(cell) < MM else {}
    scale = replace(scale, look=replace(look, mesh=thin | dict(look.mesh)))
    _draw_weights(ax, weights, scale, edges, written if write else None)
    ax.set_aspect("equal" if across == down or look.mesh.get("square") else "auto")
    row_side, column_side = drawn.sides
    rows = fit_ticks(drawn.rows, down, ruler, axis="y", side=row_side, longest=longest)
    columns = fit_ticks(drawn.columns, across, ruler, axis="x", side=column_side, longest=longest)
    rows.apply(ax, "y")
    columns.apply(ax, "x")
    unit = f", {rows.unit}" if rows.unit else ""
    names = [f"query (attending){unit}", f"query{unit}", "query", ""]
    name = ruler.longest(names, down * m, TEXT_SIZE)
    ax.set_ylabel(name, color=theme().muted, fontsize=TEXT_SIZE)
    unit = f", {columns.unit}" if columns.unit else ""
    ax.set_xlabel(f"key (attended to){unit}", color=theme().muted, fontsize=TEXT_SIZE)
    ends = drawn.boundary if any(drawn.boundary) else (drawn.generated_from,) * 2
    for draw_line, place in zip((ax.axhline, ax.axvline), ends, strict=True):
        if place:
            draw_line(place, color=theme().ink, linewidth=0.8)
    return columns


def _draw_weights(
    ax: Axes,
    weights: Tensor,
    scale: WeightScale,
    edges: Edges,
    written: Tensor | None,
    say: Callable[[float], str] = cells.decimals,
    points: float = style.NUMBER_SIZE,
) -> None:
    """Draw weights (m, n) as cells, the masked ones hatched, with the numbers of some `written`."""
    look = scale.look
    if "fmt" in look.mesh:
        say = f"{{:{look.mesh['fmt']}}}".format
    if written is not None and scale.masked is not None:
        written = written & ~scale.masked
    for shown, norm, colors in (
        (~scale.uninformative, scale.norm, scale.colors),
        (scale.uninformative, scale.neutral, theme().neutral),
    ):
        if norm is not None:
            values = weights if shown.all() else weights.masked_fill(~shown, torch.nan)
            mesh = cells.draw_cells(ax, values, colors, norm, edges=edges, **look.cells)
            if written is not None:
                how = {"shown": shown & written, "edges": edges, **look.mesh.get("annot_kws", {})}
                cells.write_numbers(ax, mesh, weights, say, points, **how)
    if scale.masked is not None:
        _hatch(ax, scale.masked, edges)


def _hatch(ax: Axes, masked: Tensor, edges: Edges) -> None:
    """Hatch the cells of keys that a query may not attend to, as one area."""
    down, across = edges
    boxes = []
    padded = np.pad(masked.numpy(), ((0, 0), (1, 1)))
    for top, bottom, row in zip(down[:-1], down[1:], padded, strict=True):
        for left, right in across[np.diff(row).nonzero()[0]].reshape(-1, 2):
            corners = (left, top), (right, top), (right, bottom), (left, bottom), (0, 0)
            boxes.append(Path(corners, closed=True))
    area = PathPatch(
        Path.make_compound_path(*boxes), facecolor=theme().masked, edgecolor=theme().ground,
        linewidth=0.0, hatch="//////", zorder=1.5,
    )  # fmt: skip
    ax.add_patch(area)


# --- over an image


def find_query(drawn: AttentionMap, patch: Patch | None, *, matrix: bool) -> int | None:
    """Return the row of a map to draw over the image; None if it is drawn as a matrix."""
    patches = drawn.sides[0].patches or (None,) * len(drawn.rows)
    over_image = drawn.image is not None and any(drawn.sides[1].patches or ())
    if not over_image:
        why = "it is drawn as queries and keys anyway, not over an image. Leave it out."
        refuse_given(why, matrix=matrix)
    if matrix or not over_image:
        if patch is None:
            return None
        raise InputError(
            f"The patch {patch!r} cannot be used for a matrix of queries and keys, only for "
            "weights that are drawn over an image. Leave it out."
        )
    if patch is None:
        words = drawn.is_word[0].tolist()
        if texts := [n for n, place in enumerate(patches) if place is None and words[n]]:
            return texts[-1]
        if "[CLS]" in drawn.rows:
            return drawn.rows.index("[CLS]")
        rows, columns = _grid_size(drawn.sides[0])
        return patches.index((rows // 2, columns // 2)) if any(patches) else len(patches) - 1
    for row, (label, place) in enumerate(zip(drawn.rows, patches, strict=True)):
        if patch == place or (isinstance(patch, str) and patch.casefold() == label.casefold()):
            return row
    tokens = [label for label, place in zip(drawn.rows, patches, strict=True) if place is None]
    choices = [*dict.fromkeys(tokens)][:8]
    if any(patches):
        rows, columns = _grid_size(drawn.sides[0])
        choices.append(f"a patch as (row, column) from (0, 0) to ({rows - 1}, {columns - 1})")
    raise InputError(f"{patch!r} is not a query of the map. Choose {' or '.join(choices)}.")


def _image_page(page: Page, selected: SelectedMap, query: int, look: Look) -> Axes:
    drawn, overview, ruler = selected.map, selected.overview, page.ruler
    image = drawn.image
    assert image is not None
    is_beside = overview is not None and page.width > WIDE
    # A tall overview is beside two pictures one below the other, a wide one beside both.
    is_stacked = overview is not None and is_beside and len(overview.layers) > len(overview.numbers)
    share = (0.5 if is_stacked else 0.62) if is_beside else 1.0
    side = (page.room * share - style.BAR_ROOM - GAP) / (1 if is_stacked else 2)
    side = min(_LARGEST_IMAGE, side)
    tall = min(side * image.shape[0] / image.shape[1], 2 * _LARGEST_IMAGE)

    where = f"{drawn.where}, {query_name(drawn, query)}"
    ratio, patch = _times_even(drawn, query), _patch_of(drawn, query)
    most_read = divmod(int(ratio.argmax()), ratio.shape[1])
    name = literal(drawn.rows[query]) if patch is None else f"The framed patch {patch}"
    to = "itself" if patch == most_read else f"patch {most_read}"
    finding = f"{name} attends most to {to}: {float(ratio.max()):.1f} × even weight"
    top = page.heading(finding if look.title is None else look.title)
    top = page.subheading(top, where) + GAP / 2
    under_name = line_height(SMALL_SIZE) + 0.02
    first, second = (MARGIN, top), (MARGIN + side + GAP, top)
    if is_stacked:
        second = MARGIN, top + under_name + tall + GAP
    names = "image, as the model reads it", "weight ÷ even (framed: most)"
    for (left, above), name in zip((first, second), names, strict=True):
        page.write(left, above, ruler.wrap(name, side, SMALL_SIZE)[:1], color=theme().muted)
    image_axes = page.axes(first[0], first[1] + under_name, side, tall)
    _draw_picture(image_axes, drawn, query, image.numpy())
    left, below = second[0], second[1] + under_name
    ax = page.axes(left, below, side, tall)
    mappable = draw_over_image(ax, drawn, query, look)
    frame(ax, most_read[::-1], (1, 1), style.LIGHT.ink)
    if look.cbar:
        bar = look.cbar_ax or page.bar(left + side + GAP / 2, below, tall)
        label = ruler.longest(("weight ÷ even weight", "÷ even", ""), min(tall, 1.5), TEXT_SIZE)
        color_bar(mappable, bar, label, say=times)

    bottom = below + tall
    if overview is not None:
        of_heads = _on_grid(overview.weights[..., query, :], overview.sides[1])
        of_heads, _ = _doublings(len(drawn.columns) * of_heads, look)
        _, limit = _doublings(ratio, look)
        ratios = (of_heads / limit).clamp(-1, 1)
        place, start = (page.left, page.right), bottom + GAP
        if is_beside:
            place, start = (left + side + style.BAR_ROOM + GAP, page.right), top
        end = draw_overview(page, overview, place, start, ratios=ratios, marked=drawn)
        bottom = max(bottom, end)
    parts = [source(drawn.provenance), *drawn.notes, _share_note(drawn, query)]
    page.finish(bottom + GAP, parts, drawn.checked_agreement)
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


def times(doublings: float, _: object = None) -> str:
    """Return a ratio from its logarithm, for a color bar: "8×", "1/4×"."""
    ratio = 2 ** abs(doublings)
    return f"{ratio:.3g}×" if doublings >= 0 else f"1/{ratio:.3g}×"


def query_name(drawn: AttentionMap, query: int) -> str:
    """Return where the weights that are drawn over an image come from."""
    if (patch := _patch_of(drawn, query)) is not None:
        return f"from the patch in row {patch[0]}, column {patch[1]}"
    label = drawn.rows[query]
    is_special = any(drawn.special_rows[query : query + 1])
    return f"from {literal(label) if is_special else claims.quoted(label)}"


def _patch_of(drawn: AttentionMap, query: int) -> tuple[int, int] | None:
    patches = drawn.sides[0].patches
    return patches[query] if patches else None


def _share_note(drawn: AttentionMap, query: int) -> str:
    """Return a note on the share of a row that goes to tokens outside of the image."""
    if None not in (drawn.sides[1].patches or ()):
        return "each cell is one patch"
    row = drawn.weights[query]
    on_image = float(_on_grid(row, drawn.sides[1]).sum())
    share = 1 - on_image / max(float(row.sum()), 1e-12)
    percent = f"{share:.0%}" if share >= 0.01 else "less than 1%"
    return f"each cell is one patch; {percent} of the weight goes to other tokens"


def draw_over_image(ax: Axes, drawn: AttentionMap, query: int, look: Look) -> ScalarMappable:
    """Draw the ratio of each patch's weight to even weights, below the image as a shadow."""
    assert drawn.image is not None
    why = "colors over an image are shaded by it. Leave it out, or draw matrix=True."
    refuse_given(why, annot=look.annot, **look.mesh)
    doublings, limit = _doublings(_times_even(drawn, query), look)
    colors = style.IMAGE_COLORS if look.cmap is None else mpl.colormaps.get_cmap(look.cmap)
    mesh = ax.pcolormesh(
        doublings.numpy(), cmap=colors, norm=Normalize(-limit, limit), linewidth=0, rasterized=True
    )
    _draw_picture(ax, drawn, query, cells.shadow(drawn.image), zorder=2)
    return mesh


def _times_even(drawn: AttentionMap, query: int) -> Tensor:
    """Return the weights of the patches, divided by even weights of all keys, (rows, columns)."""
    readable = len(drawn.columns)
    if drawn.masked is not None:
        readable = int((~drawn.masked[query]).sum())
    return _on_grid(drawn.weights[query].float(), drawn.sides[1]) * readable


def _doublings(ratio: Tensor, look: Look) -> tuple[Tensor, float]:
    """Return the logarithm of ratios to even weights, base 2, and where their colors end."""
    doublings = ratio.clamp(min=2.0**-_MOST_DOUBLINGS).log2()
    if look.vmin is not None or look.norm is not None:
        raise InputError(
            "The colors over an image are symmetric around even weight, so vmin and norm cannot be "
            "set. Set vmax: 8 means from an eighth of even weight to eight times as much."
        )
    if look.vmax is not None:
        if not 1 < look.vmax < math.inf:
            raise InputError(
                f"vmax over an image is a multiple of even weight above 1, not {look.vmax:g}."
            )
        return doublings, math.log2(look.vmax)
    return doublings, min(_MOST_DOUBLINGS, max(1.0, float(doublings.max())))


def _draw_picture(
    ax: Axes, drawn: AttentionMap, query: int, pixels: NDArray[Any], **look: Any
) -> None:
    """Draw pixels over all patches, with a frame around that of the query."""
    rows, columns = _grid_size(drawn.sides[1])
    ax.imshow(pixels, extent=(0, columns, rows, 0), aspect="auto", origin="upper", **look)
    ax.set(xlim=(0, columns), ylim=(rows, 0), xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
    if (patch := _patch_of(drawn, query)) is not None:
        size = max(1.0, max(rows, columns) / 25)  # frames around smaller patches are larger
        corner = patch[1] + (1 - size) / 2, patch[0] + (1 - size) / 2
        box = frame(ax, corner, (size, size), linewidth=1.4)
        box.set(clip_on=True, path_effects=[withStroke(linewidth=2.6, foreground="white")])


# --- all heads


@figure
def heads(
    result: AttentionResult | HeadMaps,
    *,
    layer: int | None = None,
    words: bool = True,
    special: Special = "keep",
    width: float = style.FULL_WIDTH,
    caption: CaptionLength = "short",
    figure: Figure | SubFigure | None = None,
) -> Figure:
    """Draw the maps of all heads side by side: layers down, heads across.

    Parameters
    ----------
    result : AttentionResult or HeadMaps
        From `attend` or `head_maps`.
    layer : int, optional
        Draw only the heads of this layer (-1 is the last), larger.
    words, special
        As in `attnviz.head_maps`.

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
        maps = compute.head_maps(result, layer=layer, words=words, special=special)
    with layout.new_page(width, caption, [source(maps.provenance)], figure) as page:
        top = page.heading(claims.of_heads(maps)) + 0.02
        place = page.left, page.right
        parts = [source(maps.provenance)]
        if (looks := summaries(maps)) is not None:
            bottom = draw_head_summary(page, maps, looks, place, top) + GAP
            bottom = _draw_examples(page, maps, looks, place, bottom)
        else:
            bottom = draw_head_grid(page, maps, place, top, names=_names_of(maps))
            count = "" if maps.sides[1].cell > 1 else f"{len(maps.rows)} "
            parts += [f"in each tile the {count}queries run down and the keys across"]
        parts += maps.notes
        if maps.signed:
            parts.insert(1, claims.SIGNED)
        elif claims.is_logarithmic(maps.weights.shape[-1]):
            parts.append(claims.ON_LOGARITHMIC_SCALE)
        return page.finish(bottom + GAP, parts, maps.checked_agreement)


def summaries(maps: HeadMaps) -> list[tuple[str, float]] | None:
    """Return what to draw of each head where there are too many for their maps, else None."""
    return where_heads_look(maps) if maps.weights.shape[:2].numel() > MOST_MAPS else None


def _names_of(maps: HeadMaps) -> list[str]:
    """Return the family of each head, with its share, as in "previous 78%"; "" without one."""
    families = head_families(maps)
    return ["" if of is None else f"{of[0].family} {of[1]:.0%}" for of in families]


def _key_of(names: Sequence[str]) -> list[tuple[str, str, str]]:
    """Return the marks of a key of what heads attend to, with how many do."""
    counts, colors = Counter(names), {**theme().roles, OTHER_WORDS: theme().ground}
    key = []
    for name in filter(counts.get, colors):
        word = " word" if name in ("first", "same") else ""
        mark, color = ("□", theme().ink) if name == OTHER_WORDS else ("■", colors[name])
        key.append((mark, color, f"{name}{word} ({counts[name]})"))
    return key


def _draw_examples(
    page: Page, maps: HeadMaps, looks: _Looks, place: tuple[float, float], top: float
) -> float:
    """Draw the map of the head that gives most to each of the things heads attend to."""
    names = [name for name in (*theme().roles, OTHER_WORDS) if name in dict(looks)]
    best = [max((share, n) for n, (of, share) in enumerate(looks) if of == name) for name in names]
    numbers = [n for _, n in best]  # in the order of the key
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
    marked: Sequence[tuple[int, int]] = (),
    names: Sequence[str] = (),
    titles: Sequence[str] = (),
) -> float:
    """Draw the maps as one image with a color bar; return the lower edge.

    place : the left and right edge in inches. ratios : values from -1 to 1 to draw instead of the
    maps, (layers, heads, height, width); their colors are explained elsewhere. marked : the indices
    of layer and head of the tiles to frame. names, titles : what to write above each tile on the
    right and on the left, if there is room; families of smaller tiles have marks with a key.
    """
    scale, weights = WeightScale.of(maps), maps.weights
    if ratios is not None:
        nothing = torch.zeros(ratios.shape[2:], dtype=torch.bool, device="cpu")
        scale = WeightScale(Normalize(-1, 1), None, nothing, None, style.IMAGE_COLORS)
        weights = ratios
    grid, (left, right) = HeadGrid(maps.layers, maps.numbers), place
    rows, columns, one_layer = grid.rows, grid.columns, len(grid.layers) == 1
    words, indent = None, style.AXIS_ROOM
    if one_layer:  # it has larger tiles, each with its number
        rows = math.ceil(columns * 0.8 / (right - left))
        columns = math.ceil(columns / rows)
        words = _words_beside(maps, page.ruler, (right - left) / columns)
        indent = 0.0 if words is None else words[0].room
    heads = torch.arange(weights.shape[:2].numel(), device="cpu").view(weights.shape[:2])
    order = grid.arrange(heads).flatten().tolist()  # of the tiles
    room = (right - left - indent) / columns
    if one_layer:
        titles = titles or [f"head {number}" for number in grid.heads]
        titles, names = _fit_titles(titles, names, page.ruler, room)
    elif names:
        names = [names[n].partition(" ")[0] for n in order]
    has_marks = any(names) and not one_layer and room <= 0.45  # inches
    headroom = 0.3 if one_layer else 0.2 if has_marks else 0.24 if any(names) else 0.12
    tiles = grid.arrange(weights).flatten(0, 1)
    image, (wide, high) = _tile(tiles, scale, rows, columns, headroom=headroom)
    width = min(right - left - indent, columns * 1.5)
    height: float = max(width * image.shape[0] / image.shape[1], rows * 0.2)
    ax = page.axes(left + indent, top, width, height)
    ax.add_image(cells.CellImage(ax, image, (rows, columns)))
    ax.set(xlim=(0, columns), ylim=(rows, 0))
    ax.spines[:].set_visible(False)
    corners = [(number % columns, number // columns + 1 - high) for number in range(len(tiles))]
    # The edges of all tiles, so that empty maps are visible; marked tiles come last, on top.
    boxes = [[(x, y), (x + wide, y), (x + wide, y + high), (x, y + high)] for x, y in corners]
    framed = {order.index(layer * len(grid.heads) + head) for layer, head in marked}
    upward = sorted(range(len(boxes)), key=framed.__contains__)
    look: dict[str, Any] = {"facecolors": "none", "clip_on": False, "zorder": 2}
    look["edgecolors"] = [theme().claim if n in framed else theme().faint for n in upward]
    look["linewidths"] = [1.4 if n in framed else 0.3 for n in upward]
    ax.add_collection(PolyCollection([boxes[n] for n in upward], **look), autolim=False)
    label = partial(ax.text, fontsize=SMALL_SIZE if one_layer else style.SMALLEST_SIZE)
    for number, (x, y) in enumerate(corners):
        if one_layer:
            label(x, y - 0.04, titles[number], color=theme().muted)
        if any(names) and one_layer:
            label(x + wide, y - 0.04, names[number], color=theme().muted, ha="right")
        elif any(names) and not has_marks:
            label(x, y - 0.03, names[number], color=theme().muted)
    if has_marks:
        named = [(x, y, name) for (x, y), name in zip(corners, names, strict=False) if name]
        bars = [[(x, y), (x + wide, y), (x + wide, y - 0.06), (x, y - 0.06)] for x, y, _ in named]
        colors = [theme().roles[name] for _, _, name in named]
        ax.add_collection(PolyCollection(bars, facecolors=colors, linewidths=0), autolim=False)
    bottom = top + height + (GAP if one_layer else style.AXIS_ROOM + 0.04)
    if not one_layer:
        grid.number_sides(ax, (width / columns, height / rows), (wide / 2, 1 - high / 2))
    elif words is None:
        ax.set_axis_off()
    else:
        m, n = weights.shape[2:]
        across, down = wide / n, high / m
        starts = [row + 1 - high for row in range(rows)]
        queries, keys = words
        heights = tuple(start + down * y for start in starts for y in queries.places)
        replace(queries, labels=queries.labels * rows, places=heights).apply(ax, "y")
        replace(keys, places=tuple(across * x for x in keys.places)).apply(ax, "x")
    if ratios is not None:
        return bottom
    if has_marks:
        bottom = page.legend(left, bottom, right, _key_of(names)) + 0.04
    if words is None:
        return cells.draw_scales(page, scale.ends, (left, right), bottom)
    beside, below = left + indent + width / columns, top + height + words[1].room
    if right - beside < _LEAST_ROOM:
        beside, bottom = left, below + MARGIN
    return max(below, cells.draw_scales(page, scale.ends, (beside, right), bottom))


def _fit_titles(
    titles: Sequence[str], names: Sequence[str], ruler: layout.Ruler, room: float
) -> tuple[Sequence[str], Sequence[str]]:
    """Shorten titles and names ("next 78%") until both have room above a tile, in inches."""
    numbers = [title.removeprefix("head ") for title in titles]
    short = [name.partition(" ")[0] for name in names]
    for choice in ((titles, names), (numbers, names), (numbers, short)):
        if sum(ruler.widest(texts, SMALL_SIZE) for texts in choice) + GAP < room:
            return choice
    return titles, []


def _words_beside(maps: HeadMaps, ruler: layout.Ruler, tile: float) -> tuple[Ticks, Ticks] | None:
    """Return the labels beside a tile of some inches, or None if some have no room."""
    cell = (tile - _LONGEST_WORD / 2) / maps.weights.shape[3]
    if cell * 72 < 1.2 * style.SMALLEST_SIZE or maps.sides[1].cell > 1:
        return None
    (y, x), longest = maps.sides, _LONGEST_WORD
    rows = fit_ticks(maps.rows, cell, ruler, axis="y", side=y, longest=longest)
    return rows, fit_ticks(maps.columns, cell, ruler, axis="x", side=x, longest=longest)


def _tile(
    maps: Tensor, scale: WeightScale, rows: int, columns: int, *, headroom: float
) -> tuple[NDArray[np.uint8], tuple[float, float]]:
    """Return the colors of maps (N, m, n) in tiles with a gap, and the share that a map fills."""
    m, n = (min(side, 64) for side in maps.shape[1:])  # the cells that a tile has room for
    scale, maps = scale.pooled((m, n)), cells.pool_largest(maps.float(), (m, n))
    across, down = max(1, round(0.12 * n)), max(1, round(headroom * m))
    places = np.empty((rows * columns, m + down, n + across, 4), np.uint8)
    places[:] = cells.as_bytes(to_rgba(theme().ground))
    places[: len(maps), down:, :n] = scale.rgba(maps)
    side_by_side = places.reshape(rows, columns, m + down, n + across, 4).transpose(0, 2, 1, 3, 4)
    image = side_by_side.reshape(rows * (m + down), columns * (n + across), 4)
    return image, (n / (n + across), m / (m + down))


def draw_overview(
    page: Page,
    maps: HeadMaps,
    place: tuple[float, float],
    top: float,
    *,
    marked: AttentionMap,
    ratios: Tensor | None = None,
) -> float:
    """Draw all heads with those of a map framed; return the lower edge. See `draw_head_grid`."""
    numbers, room = [maps.numbers.index(head) for head in marked.heads], place[1] - place[0]
    heads = [(maps.layers.index(layer), head) for layer in marked.layers for head in numbers]
    looks = None if ratios is not None else summaries(maps)
    these = "This head" if len(heads) == 1 else "These heads"
    scale = "on one scale" if looks is None else "by what they attend to"
    title = f"{these} among all {maps.weights.shape[:2].numel():,}, {scale}"
    top = page.subtitle(place[0], top, title, room)
    if looks is None:
        names = [] if ratios is not None else _names_of(maps)
        return draw_head_grid(page, maps, place, top, ratios=ratios, marked=heads, names=names)
    how: dict[str, Any] = {"marked": heads, "tallest": 0.4 * room}
    return draw_head_summary(page, maps, looks, place, top + 0.04, **how)


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
    """Draw a cell for each head, at most `tallest` together, with a key; see `draw_head_grid`."""
    grid = HeadGrid(maps.layers, maps.numbers)
    left, right = place[0] + style.AXIS_ROOM, place[1]
    across = min(_LARGEST_HEAD, (right - left) / grid.columns)
    room = (right - left) / grid.rows / 2  # no taller than half of its width
    down = min(_LARGEST_HEAD, max(across, min(2 * across, room)), tallest / grid.rows)
    colors = {**theme().roles, OTHER_WORDS: theme().ground}
    ground = np.array(to_rgb(theme().ground))
    shares = [max(share, 0.7 * (name == "itself")) for name, share in looks]  # ink is never gray
    mixes = _LIGHTEST + (1 - _LIGHTEST) * np.array(shares)[:, None].clip(0, 1)
    full = np.array([to_rgb(colors[name]) for name, _ in looks])
    fills = torch.from_numpy((1 - mixes) * ground + mixes * full).view(*maps.weights.shape[:2], 3)
    ax = grid.draw(page, (left, top), (across, down), fills, interpolation="nearest")
    if across >= 0.08:  # inches with room for lines
        line: dict[str, Any] = {"color": theme().faint, "linewidth": 0.4, "clip_on": False}
        ax.hlines(range(grid.rows + 1), 0, grid.columns, **line)
        ax.vlines(range(grid.columns + 1), 0, grid.rows, **line)
    for place_of in marked:
        frame(ax, grid.place(*place_of), (1, 1), linewidth=1.4)
    ax.set(xlim=(0, grid.columns), ylim=(grid.rows, 0))
    ax.spines[:].set_visible(False)
    y = top + down * grid.rows + style.AXIS_ROOM + 0.06
    y = page.legend(place[0], y, right, _key_of([name for name, _ in looks]))
    note = "The darker a head, the more of its attention goes there."
    return page.paragraph(place[0], y, note, right - place[0])
