"""Matrices as cells of colour, with their numbers where there is room."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import Colormap, LogNorm, Normalize
from matplotlib.patches import Rectangle
from torch import Tensor

from attnviz.figures.style import ACCENT, INK, NUMBER_SIZE, value_colours
from attnviz.formula.attention import HIDDEN

# More cells than this are drawn as one image; without lines between them they are too fine to be
# told apart sooner, and would swell a file.
_LINED_CELLS, _UNLINED_CELLS = 64 * 64, 32 * 32


def draw_cells(
    ax: Axes,
    values: Tensor,
    colours: Colormap,
    norm: Normalize,
    *,
    lines: bool = True,
    extent: tuple[int, int] | None = None,
) -> QuadMesh:
    """Draw (m, n) numbers as cells, the first row on top; what a mask hides stays blank.

    extent : how many rows and columns the cells stand for, where each joins several.
    """
    m, n = values.shape
    down, across = extent or (m, n)
    vector = m * n <= (_LINED_CELLS if lines else _UNLINED_CELLS)
    mesh = ax.pcolormesh(
        np.linspace(0, across, n + 1),
        np.linspace(0, down, m + 1),
        values.masked_fill(values < HIDDEN, torch.nan).numpy(),
        cmap=colours,
        norm=norm,
        edgecolors="white" if vector and lines else "none",
        linewidth=0.4 if vector and lines else 0.0,
        rasterized=not vector,
    )
    ax.set_xlim(0, across)
    ax.set_ylim(down, 0)
    ax.grid(visible=False)  # it would be drawn over the cells, in axes of a user's that have one
    ax.spines[:].set_visible(False)
    ax.set_xticks([])
    ax.set_yticks([])
    return mesh


def logarithmic(weights: Tensor) -> LogNorm:
    """Return colours by the logarithm of weights (…, m, n), for maps in which cells are pooled.

    In a long text most of the weights are so small that in proportion only a line would be seen.
    Colours begin at a third of what each cell has where a query weighs all tokens alike, and end at
    what 1 cell in 500 exceeds.
    """
    alike = 1 / weights.shape[-1]
    known = weights[weights > 0].sort().values
    top = float(known[int(0.998 * (len(known) - 1))]) if len(known) else 0.0
    return LogNorm(alike / 3, max(top, 3 * alike))


def draw_values(
    ax: Axes, values: Tensor, *, largest: float | None = None, lines: bool = False
) -> QuadMesh:
    """Draw numbers of both signs; colours end at ± `largest`, by default the largest of all."""
    end = largest or range_of(values)
    return draw_cells(ax, values, value_colours(), Normalize(-end, end), lines=lines)


def range_of(values: Tensor, share: float = 1.0) -> float:
    """Return what a share of the absolute numbers do not exceed, without what masks hide.

    Among features, a few are often far larger than all others.
    """
    finite = values[values > HIDDEN].abs().flatten().sort().values
    return float(finite[int(share * (len(finite) - 1))].clamp(min=1e-12)) if len(finite) else 1.0


def write_numbers(
    ax: Axes,
    mesh: QuadMesh,
    values: Tensor,
    say: Callable[[float], str] | Sequence[Sequence[str]],
    points: float = NUMBER_SIZE,
) -> None:
    """Write each number into its cell, dark on light and light on dark.

    say : how a number is written, or what stands in each cell.
    """
    for (i, j), value in np.ndenumerate(values.numpy()):
        red, green, blue, _ = mesh.cmap(mesh.norm(value)) if value > HIDDEN else (1, 1, 1, 1)
        dark = 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.45
        place, colour = (j + 0.5, i + 0.5), "white" if dark else INK
        text = say(value) if callable(say) else say[i][j]
        ax.text(*place, text, fontsize=points, color=colour, ha="center", va="center")


def decimals(weight: float) -> str:
    """Return a weight in two decimals, as it fits a cell: ".25"."""
    return f"{weight:.2f}".removeprefix("0")


def number(value: float) -> str:
    """Return a number of either sign as it fits a cell: in one decimal, or in none."""
    if value < HIDDEN:
        return "\N{MINUS SIGN}∞"
    said = f"{value:.1f}" if abs(value) < 100 else f"{value:.0f}"
    return said.replace("-", "\N{MINUS SIGN}")


def frame(ax: Axes, corner: tuple[float, float], size: tuple[float, float]) -> None:
    """Frame some cells in the colour of what is pointed at."""
    box = Rectangle(
        corner, *size, fill=False, edgecolor=ACCENT, linewidth=1.0, clip_on=False, zorder=3
    )
    ax.add_patch(box)
