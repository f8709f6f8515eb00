"""Draw the weights of one query over the image whose patches are the keys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from torch import Tensor

from attnviz.analyses.maps.head_grid import draw_overview
from attnviz.analyses.maps.result import AttentionMap, HeadMaps
from attnviz.errors import InputError, refuse_given
from attnviz.figures.cells import frame
from attnviz.figures.layout import Page, color_bar, line_height
from attnviz.figures.scale import Look
from attnviz.figures.style import (
    BAR_ROOM,
    BAR_WIDTH,
    GAP,
    IMAGE_COLORS,
    LIGHT,
    LUMINANCE,
    MARGIN,
    SMALL_SIZE,
    TEXT_SIZE,
    WIDE,
    theme,
)
from attnviz.results import AxisGeometry
from attnviz.results.axis import literal, source

Patch: TypeAlias = tuple[int, int] | str

_LARGEST_IMAGE = 3.2  # inches of a side of the image
_SHADE = 0.4  # of black where the image is black: more would hide the colors
_BRIGHTENED = 0.7  # the exponent of the brightness of the image
_FINE = 25  # patches along a side: the frames around smaller ones are larger than they are
_MOST_DOUBLINGS = 5.0  # at which colors end


def find_query(
    drawn: AttentionMap, patch: Patch | None = None, *, matrix: bool = False
) -> int | None:
    """Return the row of a map to draw over the image; None if it is drawn as a matrix."""
    patches = drawn.sides[0].patches or (None,) * len(drawn.rows)
    key_patches = drawn.sides[1].patches
    over_image = drawn.image is not None and key_patches is not None and any(key_patches)
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


def draw_image_page(
    page: Page, drawn: AttentionMap, query: int, overview: HeadMaps | None, look: Look
) -> Axes:
    """Draw the image, the map over it, an overview and a caption."""
    image, ruler = drawn.image, page.ruler
    assert image is not None
    inner = page.room
    is_beside = is_stacked = False
    if overview is not None and page.width > WIDE:
        # A tall overview is beside two pictures one below the other, a wide one beside both.
        is_beside, is_stacked = True, overview.weights.shape[0] > overview.weights.shape[1]
    share = (0.5 if is_stacked else 0.62) if is_beside else 1.0
    side = (inner * share - BAR_ROOM - GAP) / (1 if is_stacked else 2)
    side = min(_LARGEST_IMAGE, side)
    tall = min(side * image.shape[0] / image.shape[1], 2 * _LARGEST_IMAGE)

    where = f"{drawn.where}, {query_name(drawn, query)}"
    title = _finding(drawn, query) if look.title is None else look.title
    top = page.heading(title)
    lines = ruler.wrap(where, inner, TEXT_SIZE)
    top = page.write(page.left, top, lines, points=TEXT_SIZE, color=theme().muted) + GAP / 2
    under_name = line_height(SMALL_SIZE) + 0.02
    first, second = (MARGIN, top), (MARGIN + side + GAP, top)
    if is_stacked:
        second = MARGIN, top + under_name + tall + GAP
    names = "image, as the model reads it", "weight ÷ even (framed: most)"
    for (left, above), name in zip((first, second), names, strict=True):
        page.write(left, above, ruler.wrap(name, side, SMALL_SIZE)[:1], color=theme().muted)
    image_axes = page.axes(first[0], first[1] + under_name, side, tall)
    rows, columns = _grid_size(drawn.sides[1])
    image_axes.imshow(image.numpy(), extent=(0, columns, rows, 0), aspect="auto", origin="upper")
    _outline(image_axes, drawn, query)
    left, below = second[0], second[1] + under_name
    ax = page.axes(left, below, side, tall)
    mappable = draw_over_image(ax, drawn, query, look)
    row, column = _most_read(drawn, query)
    frame(ax, (column, row), (1, 1), LIGHT.ink)
    if look.cbar:
        beside = (left + side + GAP / 2, below, BAR_WIDTH, min(tall, 1.5))
        bar = page.axes(*beside) if look.cbar_ax is None else look.cbar_ax
        label = ruler.longest(("weight ÷ even weight", "÷ even", ""), beside[-1], TEXT_SIZE)
        color_bar(mappable, bar, label, say=times)

    bottom = below + tall
    if overview is not None:
        keys = len(drawn.columns)
        _, limit = _doublings(_times_even(drawn, query), look)
        of_heads = _on_grid(overview.weights[..., query, :], overview.sides[1])
        of_heads, _ = _doublings(keys * of_heads, look)
        ratios = (of_heads / limit).clamp(-1, 1)
        place, start = (page.left, page.right), bottom + GAP
        if is_beside:
            place, start = (left + side + BAR_ROOM + GAP, page.right), top
        end = draw_overview(page, overview, place, start, ratios=ratios, marked=drawn)
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


def times(doublings: float, _: object = None) -> str:
    """Return a ratio from its logarithm, for a color bar.

    >>> times(3.0), times(-2.0)
    ('8×', '1/4×')
    """
    ratio = 2 ** abs(doublings)
    return f"{ratio:.3g}×" if doublings >= 0 else f"1/{ratio:.3g}×"


def query_name(drawn: AttentionMap, query: int) -> str:
    """Return where the weights that are drawn over an image come from."""
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


def draw_over_image(ax: Axes, drawn: AttentionMap, query: int, look: Look) -> ScalarMappable:
    """Draw how each patch's weight compares with even weights, shaded by the image.

    Colors are those of the logarithm of the ratio, white at even weights. The image lies over them
    as a shadow, so that its details stay visible. Returns the source of the color bar.
    """
    assert drawn.image is not None
    why = "colors over an image are shaded by it. Leave it out, or draw matrix=True."
    refuse_given(why, annot=look.annot, **look.mesh)
    doublings, limit = _doublings(_times_even(drawn, query), look)
    colors = IMAGE_COLORS if look.cmap is None else mpl.colormaps.get_cmap(look.cmap)
    mesh = ax.pcolormesh(
        doublings.numpy(), cmap=colors, norm=Normalize(-limit, limit), linewidth=0, rasterized=True
    )
    rows, columns = _grid_size(drawn.sides[1])
    brightness = (drawn.image.numpy() @ np.array(LUMINANCE) / 255) ** _BRIGHTENED
    ax.imshow(
        np.zeros((*brightness.shape, 3)),
        alpha=_SHADE * (1 - brightness),
        extent=(0, columns, rows, 0),
        aspect="auto",
        origin="upper",
        zorder=2,
    )
    _outline(ax, drawn, query)
    return mesh


def _times_even(drawn: AttentionMap, query: int) -> Tensor:
    """Return the weights of the patches, divided by even weights of all keys, (rows, columns)."""
    readable = len(drawn.columns)
    if drawn.masked is not None:
        readable = int((~drawn.masked[query]).sum())
    return _on_grid(drawn.weights[query].float(), drawn.sides[1]) * readable


def _doublings(ratio: Tensor, look: Look) -> tuple[Tensor, float]:
    """Return the logarithm of ratios to even weights, base 2, and where their colors end.

    Ratios that are smaller than any that has a color of its own are clipped.
    """
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


def _most_read(drawn: AttentionMap, query: int) -> tuple[int, int]:
    """Return the row and column of the patch that a query gives the most weight."""
    ratio = _times_even(drawn, query)
    return divmod(int(ratio.argmax()), ratio.shape[1])


def _finding(drawn: AttentionMap, query: int) -> str:
    """Return which patch a query gives the most weight."""
    ratio = _times_even(drawn, query)
    row, column = _most_read(drawn, query)
    query_patch = drawn.sides[0].patches[query] if drawn.sides[0].patches else None
    query_label = literal(drawn.rows[query])
    name = query_label if query_patch is None else f"The framed patch {query_patch}"
    to = "itself" if query_patch == (row, column) else f"patch ({row}, {column})"
    return f"{name} attends most to {to}: {float(ratio.max()):.1f} × even weight"


def _outline(ax: Axes, drawn: AttentionMap, query: int) -> None:
    """Frame the patch of the query, and hide the axes."""
    rows, columns = _grid_size(drawn.sides[1])
    ax.set(xlim=(0, columns), ylim=(rows, 0), xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
    patch = drawn.sides[0].patches[query] if drawn.sides[0].patches else None
    if patch is not None:
        size = max(1.0, max(rows, columns) / _FINE)
        corner = patch[1] + (1 - size) / 2, patch[0] + (1 - size) / 2
        box = Rectangle(
            corner, size, size, fill=False, edgecolor=theme().accent, linewidth=1.4, zorder=3
        )
        box.set_path_effects([withStroke(linewidth=2.6, foreground="white")])
        ax.add_patch(box)
