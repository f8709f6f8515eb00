"""Draw the weights of one query over the image whose patches are the keys."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, ListedColormap, Normalize
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray

from attnviz.analyses.maps.head_grid import draw_head_grid
from attnviz.analyses.maps.result import AttentionMap, HeadMaps
from attnviz.errors import InputError
from attnviz.figures import caption
from attnviz.figures.layout import (
    Page,
    Ruler,
    color_bar,
    line_height,
)
from attnviz.figures.style import (
    ACCENT,
    BAR_ROOM,
    BAR_WIDTH,
    GAP,
    MARGIN,
    MUTED,
    SMALL_SIZE,
    TEXT_SIZE,
    WIDE,
    weight_colors,
)
from attnviz.results import AxisGeometry
from attnviz.results.words import literal, selection, source

Patch: TypeAlias = tuple[int, int] | str

_LARGEST = 3.2  # inches of a side of the image
_SHADE = 0.3  # opacity of black in the image


def shows_image(drawn: AttentionMap) -> bool:
    """Whether the keys of a map are patches of an image that can be drawn."""
    patches = drawn.sides[1].patches
    return drawn.image is not None and patches is not None and any(patches)


def find_query(
    drawn: AttentionMap, patch: Patch | None = None, *, matrix: bool = False
) -> int | None:
    """Return the row of a map to draw over the image; None if it is drawn as a matrix.

    Raises
    ------
    InputError
        The patch or token does not exist, or a patch is given for a matrix.
    """
    patches = drawn.sides[0].patches
    if matrix or not shows_image(drawn):
        if patch is None:
            return None
        raise InputError(
            f"Expected a patch only where weights are drawn over an image, got {patch!r} for a "
            "matrix of queries and keys. Leave it out."
        )
    if patch is None:
        return _default(drawn)
    if isinstance(patch, str):
        matches = [n for n, label in enumerate(drawn.rows) if label.casefold() == patch.casefold()]
        if matches:
            return matches[0]
        tokens = list(dict.fromkeys(_tokens(drawn)))
        what = f"{', '.join(tokens[:8])} or a patch as (row, column)" if tokens else "a patch"
        raise InputError(f"Expected {what}, got {patch!r}. Choose one of these.")
    if patches is None or not any(patches):
        raise InputError(
            f"Expected a word of the text, got the patch {patch!r}, but the queries of the "
            f"{drawn.stack} stack are no patches. Choose a word."
        )
    if patch not in patches:
        rows, columns = _grid(drawn.sides[0])
        raise InputError(
            f"Expected a patch from row 0 to {rows - 1} and column 0 to {columns - 1}, "
            f"got {patch!r}. Both are counted from 0."
        )
    return patches.index(patch)


def _tokens(drawn: AttentionMap) -> list[str]:
    """Return the queries that are no patches."""
    patches = drawn.sides[0].patches or (None,) * len(drawn.rows)
    return [label for label, patch in zip(drawn.rows, patches, strict=True) if patch is None]


def _default(drawn: AttentionMap) -> int:
    """Return the last token of a text; else the row of [CLS], or of the patch in the middle."""
    patches = drawn.sides[0].patches or (None,) * len(drawn.rows)
    special = drawn.special_rows or (False,) * len(drawn.rows)
    words = [n for n, patch in enumerate(patches) if patch is None and not special[n]]
    if words:
        return words[-1]
    if "[CLS]" in drawn.rows:
        return drawn.rows.index("[CLS]")
    if not any(patches):
        return len(patches) - 1
    rows, columns = _grid(drawn.sides[0])
    return patches.index((rows // 2, columns // 2))


def _grid(side: AxisGeometry) -> tuple[int, int]:
    """Return how many rows and columns of patches there are."""
    known = [patch for patch in side.patches or () if patch is not None]
    return 1 + max(row for row, _ in known), 1 + max(column for _, column in known)


def _on_grid(weights: torch.Tensor, side: AxisGeometry) -> torch.Tensor:
    """Arrange the last dimension of weights (…, n) like the image: (…, rows, columns)."""
    assert side.patches is not None
    image = weights.new_zeros((*weights.shape[:-1], *_grid(side)))
    keys = [n for n, patch in enumerate(side.patches) if patch is not None]
    rows, columns = zip(*(side.patches[n] for n in keys), strict=True)
    image[..., list(rows), list(columns)] = weights[..., keys]
    return image


def draw_overlay(
    drawn: AttentionMap,
    query: int,
    overview: HeadMaps | None,
    width: float,
    ax: Axes | None,
) -> Axes:
    """Draw the map into axes, or with a caption on a new page, `width` inches wide."""
    if ax is None:
        return _page(drawn, query, overview, width)
    mappable = _draw(ax, drawn, query)
    title = f"{caption.short(drawn)}, {_query_name(drawn, query)}"
    ax.set_title(title, loc="left", fontsize=TEXT_SIZE, parse_math=False)
    color_bar(mappable, ax.inset_axes((1.03, 0.5, 0.03, 0.5)), "attention weight")
    return ax


def _page(drawn: AttentionMap, query: int, overview: HeadMaps | None, width: float) -> Axes:
    """Draw the image, the map over it, an overview and a caption on a new page."""
    ruler, page = Ruler(), Page(width)
    image = drawn.image
    assert image is not None
    inner = width - 2 * MARGIN
    three_columns = overview is not None and width > WIDE
    side = min(_LARGEST, (inner * (0.62 if three_columns else 1.0) - BAR_ROOM - GAP) / 2)
    tall = min(side * image.shape[0] / image.shape[1], 2 * _LARGEST)

    title = f"{selection(drawn.stack, drawn.layer, drawn.heads)}, "
    title += _query_name(drawn, query)
    top = page.title(MARGIN, MARGIN, title, inner) + GAP / 2
    below = top + line_height(SMALL_SIZE) + 0.02
    left = MARGIN
    for name in ("image, as the model sees it", "weights over it"):
        page.write(left, top, ruler.wrap(name, side, SMALL_SIZE)[:1], color=MUTED)
        left += side + GAP
    image_axes = page.axes(MARGIN, below, side, tall)
    image_axes.imshow(image.numpy(), extent=_extent(drawn), aspect="auto", origin="upper")
    _outline(image_axes, drawn, query)
    ax = page.axes(MARGIN + side + GAP, below, side, tall)
    mappable = _draw(ax, drawn, query)
    bar = page.axes(MARGIN + 2 * side + 1.5 * GAP, below, BAR_WIDTH, min(tall, 1.5))
    color_bar(mappable, bar, ruler.longest(("attention weight", "weight"), tall, TEXT_SIZE))

    bottom, place = below + tall, (MARGIN, width - MARGIN)
    if overview is not None:
        on_image = _on_grid(overview.weights[..., query, :], overview.sides[1])
        corner = (MARGIN + 2 * side + GAP + BAR_ROOM + GAP, place[1]) if three_columns else place
        start = top if three_columns else bottom + GAP
        marked = (drawn.layer, drawn.heads)
        end = draw_head_grid(page, overview, corner, start, weights=on_image, marked=marked)
        bottom = max(bottom, end)
    parts = [source(drawn.provenance), *drawn.notes, _share_note(drawn, query)]
    end = caption.write_caption(page, place, bottom + GAP, parts, drawn.agreement)
    page.finish(end + MARGIN)
    return ax


def _query_name(drawn: AttentionMap, query: int) -> str:
    patch = None if drawn.sides[0].patches is None else drawn.sides[0].patches[query]
    if patch is None:
        label = literal(drawn.rows[query])
        return f"from {label}" if _is_special(drawn, query) else f"from “{label}”"
    return f"from the patch in row {patch[0]}, column {patch[1]}"


def _is_special(drawn: AttentionMap, query: int) -> bool:
    return bool(drawn.special_rows) and drawn.special_rows[query]


def _share_note(drawn: AttentionMap, query: int) -> str:
    """Return a note on the share of a row that goes to tokens outside of the image."""
    row = drawn.weights[query]
    on_image = float(_on_grid(row, drawn.sides[1]).sum())
    share = 1 - on_image / max(float(row.sum()), 1e-12)
    if drawn.sides[1].patches is None or None not in drawn.sides[1].patches:
        return "each cell is one patch"
    percent = f"{share:.0%}" if share >= 0.01 else "less than 1%"
    return f"each cell is one patch; {percent} of the weight goes to other tokens"


def _extent(drawn: AttentionMap) -> tuple[float, float, float, float]:
    """Return the edges of the image in patches: left, right, bottom, top."""
    rows, columns = _grid(drawn.sides[1])
    return 0.0, float(columns), float(rows), 0.0


def _draw(ax: Axes, drawn: AttentionMap, query: int) -> ScalarMappable:
    """Draw the weights with the image's shades over them; return the source of the color bar."""
    assert drawn.image is not None
    weights = _on_grid(drawn.weights[query], drawn.sides[1]).float().numpy()
    norm = Normalize(0.0, max(float(weights.max()), 1e-12))
    ax.pcolormesh(weights, cmap=weight_colors(), norm=norm, linewidth=0)
    shades, extent = _shades(drawn.image.numpy()), _extent(drawn)
    ax.imshow(shades, extent=extent, aspect="auto", origin="upper", zorder=2)
    _outline(ax, drawn, query)
    mappable = ScalarMappable(norm, _under_shades(weight_colors()))
    mappable.set_array(weights)
    return mappable


def _shades(image: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return a black image (H, W, 4) that is more opaque where the image is darker.

    Without the image's own colors, those of the weights keep their hue.
    """
    brightness = image @ np.array([0.2126, 0.7152, 0.0722]) / 255
    shades = np.zeros((*brightness.shape, 4))
    shades[..., 3] = _SHADE * (1 - brightness)
    return shades


def _under_shades(colors: Colormap) -> ListedColormap:
    """Return the colormap as it looks where the image has medium brightness."""
    return ListedColormap(colors(np.linspace(0, 1, 256))[:, :3] * (1 - _SHADE / 2))


def _outline(ax: Axes, drawn: AttentionMap, query: int) -> None:
    """Frame the patch of the query, and hide the axes."""
    ax.set_xlim(*_extent(drawn)[:2])
    ax.set_ylim(*_extent(drawn)[2:])
    ax.set_xticks([])
    ax.set_yticks([])
    ax.spines[:].set_visible(False)
    patches = drawn.sides[0].patches
    if patches is not None and (patch := patches[query]) is not None:
        ax.add_patch(
            Rectangle(
                (patch[1], patch[0]),
                1,
                1,
                fill=False,
                edgecolor=ACCENT,
                linewidth=1.4,
                zorder=3,
                path_effects=[withStroke(linewidth=2.6, foreground="white")],
            )
        )
