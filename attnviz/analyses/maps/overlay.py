"""What one query gives to every patch of an image, laid over the image."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, ListedColormap, Normalize
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray

from attnviz.analyses.maps.head_grid import draw_mosaic
from attnviz.analyses.maps.result import AttentionMap, HeadMaps
from attnviz.errors import InputError
from attnviz.figures import caption
from attnviz.figures.layout import (
    Page,
    Ruler,
    colour_bar,
    line_height,
)
from attnviz.figures.style import (
    ACCENT,
    MUTED,
    SMALL_SIZE,
    TEXT_SIZE,
    weight_colours,
)
from attnviz.results import AxisGeometry
from attnviz.results.labels import literal, selection, source

Patch: TypeAlias = tuple[int, int] | str

_MARGIN, _GAP = 0.06, 0.12  # inches
_BAR = 0.6  # inches that a colour bar takes with its numbers and its label
_LARGEST = 3.2  # inches of a side of the image
_SHADE = 0.3  # how dark the black of the image makes the colours of the weights


def shows_image(drawn: AttentionMap) -> bool:
    """Tell whether the keys of a map are patches of an image that can be drawn."""
    patches = drawn.sides[1].patches
    return drawn.image is not None and patches is not None and any(patches)


def find_query(
    drawn: AttentionMap, patch: Patch | None = None, *, matrix: bool = False
) -> int | None:
    """Return which row of a map to lay over the image; None where it is drawn as a matrix.

    Raises
    ------
    InputError : no such patch or token, or a patch where a matrix is drawn.
    """
    patches = drawn.sides[0].patches
    if matrix or not shows_image(drawn):
        if patch is None:
            return None
        raise InputError(
            f"Expected a patch only where weights are laid over an image, got {patch!r} for a "
            "matrix of queries and keys. Leave it out."
        )
    if patch is None:
        return _default(drawn)
    if isinstance(patch, str):
        found = [n for n, label in enumerate(drawn.rows) if label.casefold() == patch.casefold()]
        if found:
            return found[0]
        tokens = list(dict.fromkeys(_others(drawn)))
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


def _others(drawn: AttentionMap) -> list[str]:
    """Return the queries that are no patches."""
    patches = drawn.sides[0].patches or (None,) * len(drawn.rows)
    return [label for label, at in zip(drawn.rows, patches, strict=True) if at is None]


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
    """Lay the last dimension of weights (…, n) out as the image: (…, rows, columns)."""
    assert side.patches is not None
    image = weights.new_zeros((*weights.shape[:-1], *_grid(side)))
    at = [n for n, patch in enumerate(side.patches) if patch is not None]
    rows, columns = zip(*(side.patches[n] for n in at), strict=True)
    image[..., list(rows), list(columns)] = weights[..., at]
    return image


def draw_overlay(
    drawn: AttentionMap,
    query: int,
    overview: HeadMaps | None,
    width: float,
    ax: Axes | None,
) -> Axes:
    """Draw a new page, `width` inches wide, or only the map into axes that are given."""
    if ax is None:
        return _page(drawn, query, overview, width)
    mappable = _draw(ax, drawn, query)
    title = f"{caption.short(drawn)}, {_query_name(drawn, query)}"
    ax.set_title(title, loc="left", fontsize=TEXT_SIZE, parse_math=False)
    colour_bar(mappable, ax.inset_axes((1.03, 0.5, 0.03, 0.5)), "attention weight")
    return ax


def _page(drawn: AttentionMap, query: int, overview: HeadMaps | None, width: float) -> Axes:
    """Put the image, the map over it, an overview and a caption on a new page."""
    ruler, page = Ruler(), Page(width)
    image = drawn.image
    assert image is not None
    inner = width - 2 * _MARGIN
    three = overview is not None and width > 5.0
    side = min(_LARGEST, (inner * (0.62 if three else 1.0) - _BAR - _GAP) / 2)
    tall = min(side * image.shape[0] / image.shape[1], 2 * _LARGEST)

    title = f"{selection(drawn.stack, drawn.layer, drawn.heads)}, "
    title += _query_name(drawn, query)
    top = page.title(_MARGIN, _MARGIN, title, inner) + _GAP / 2
    below = top + line_height(SMALL_SIZE) + 0.02
    left = _MARGIN
    for name in ("image, as the model sees it", "weights over it"):
        page.write(left, top, ruler.wrap(name, side, SMALL_SIZE)[:1], color=MUTED)
        left += side + _GAP
    seen = page.axes(_MARGIN, below, side, tall)
    seen.imshow(image.numpy(), extent=_extent(drawn), aspect="auto", origin="upper")
    _outline(seen, drawn, query)
    ax = page.axes(_MARGIN + side + _GAP, below, side, tall)
    mappable = _draw(ax, drawn, query)
    bar = page.axes(_MARGIN + 2 * side + 1.5 * _GAP, below, 0.08, min(tall, 1.5))
    colour_bar(mappable, bar, ruler.longest(("attention weight", "weight"), tall, TEXT_SIZE))

    bottom, place = below + tall, (_MARGIN, width - _MARGIN)
    if overview is not None:
        tiles = _tiles(overview, query)
        corner = (_MARGIN + 2 * side + _GAP + _BAR + _GAP, place[1]) if three else place
        start = top if three else bottom + _GAP
        marked = (drawn.layer, drawn.heads)
        end = draw_mosaic(page, tiles, corner, start, marked=marked)
        bottom = max(bottom, end)
    parts = [source(drawn.provenance), *drawn.notes, _elsewhere(drawn, query)]
    end = caption.write_caption(page, place, bottom + _GAP, parts, drawn.agreement)
    page.finish(end + _MARGIN)
    return ax


def _tiles(maps: HeadMaps, query: int) -> HeadMaps:
    """Return for every head what the query gives to each patch, as an image of its own."""
    side = maps.sides[1]
    return replace(maps, weights=_on_grid(maps.weights[..., query, :], side))


def _query_name(drawn: AttentionMap, query: int) -> str:
    patch = None if drawn.sides[0].patches is None else drawn.sides[0].patches[query]
    if patch is None:
        label = literal(drawn.rows[query])
        return f"from {label}" if _is_special(drawn, query) else f"from “{label}”"
    return f"from the patch in row {patch[0]}, column {patch[1]}"


def _is_special(drawn: AttentionMap, query: int) -> bool:
    return bool(drawn.special_rows) and drawn.special_rows[query]


def _elsewhere(drawn: AttentionMap, query: int) -> str:
    """Say how much of a row goes to what is not on the image."""
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
    """Draw the weights and the image's shades over them; return what a colour bar needs."""
    assert drawn.image is not None
    weights = _on_grid(drawn.weights[query], drawn.sides[1]).float().numpy()
    norm = Normalize(0.0, max(float(weights.max()), 1e-12))
    ax.pcolormesh(weights, cmap=weight_colours(), norm=norm, linewidth=0)
    shades, extent = _shades(drawn.image.numpy()), _extent(drawn)
    ax.imshow(shades, extent=extent, aspect="auto", origin="upper", zorder=2)
    _outline(ax, drawn, query)
    mappable = ScalarMappable(norm, _under_shades(weight_colours()))
    mappable.set_array(weights)
    return mappable


def _shades(image: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return the image as black (H, W, 4) that covers more where the image is darker.

    The colours of the weights keep their hue, since the image's own are left out.
    """
    brightness = image @ np.array([0.2126, 0.7152, 0.0722]) / 255
    shades = np.zeros((*brightness.shape, 4))
    shades[..., 3] = _SHADE * (1 - brightness)
    return shades


def _under_shades(colours: Colormap) -> ListedColormap:
    """Return the colours as they look where the image is of middle brightness."""
    return ListedColormap(colours(np.linspace(0, 1, 256))[:, :3] * (1 - _SHADE / 2))


def _outline(ax: Axes, drawn: AttentionMap, query: int) -> None:
    """Frame the patch that asks, and hide the axes."""
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
