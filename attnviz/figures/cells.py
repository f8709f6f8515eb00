"""Draw matrices as cells of color, with their numbers where there is room."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import Colormap, LogNorm, Normalize
from matplotlib.patches import Rectangle
from torch import Tensor

from attnviz.figures.style import ACCENT, INK, NUMBER_SIZE, value_colors
from attnviz.formula.attention import HIDDEN

# Matrices with more cells are drawn as one image, which keeps files small.
_LINED_CELLS, _UNLINED_CELLS = 64 * 64, 32 * 32


def draw_cells(
    ax: Axes,
    values: Tensor,
    colors: Colormap,
    norm: Normalize,
    *,
    lines: bool = True,
    extent: tuple[int, int] | None = None,
) -> QuadMesh:
    """Draw numbers (m, n) as cells, the first row on top. Masked numbers stay blank.

    extent : the rows and columns that the cells cover, if they are pooled.
    """
    m, n = values.shape
    down, across = extent or (m, n)
    vector = m * n <= (_LINED_CELLS if lines else _UNLINED_CELLS)
    mesh = ax.pcolormesh(
        np.linspace(0, across, n + 1),
        np.linspace(0, down, m + 1),
        values.masked_fill(values < HIDDEN, torch.nan).numpy(),
        cmap=colors,
        norm=norm,
        edgecolors="white" if vector and lines else "none",
        linewidth=0.4 if vector and lines else 0.0,
        rasterized=not vector,
    )
    ax.set_xlim(0, across)
    ax.set_ylim(down, 0)
    ax.grid(visible=False)  # axes of the user may have one
    ax.spines[:].set_visible(False)
    ax.set_xticks([])
    ax.set_yticks([])
    return mesh


def logarithmic(weights: Tensor) -> LogNorm:
    """Return a logarithmic color scale for pooled weights (…, m, n).

    In a long text most weights are too small for a linear scale. Colors begin at a third of uniform
    weights, and end at the value that 1 cell in 500 exceeds.
    """
    uniform = 1 / weights.shape[-1]
    positive = weights[weights > 0].sort().values
    top = float(positive[int(0.998 * (len(positive) - 1))]) if len(positive) else 0.0
    return LogNorm(uniform / 3, max(top, 3 * uniform))


def draw_values(
    ax: Axes, values: Tensor, *, largest: float | None = None, lines: bool = False
) -> QuadMesh:
    """Draw signed numbers. Colors end at ± `largest`, by default the largest absolute number."""
    end = largest or range_of(values)
    return draw_cells(ax, values, value_colors(), Normalize(-end, end), lines=lines)


def range_of(values: Tensor, share: float = 1.0) -> float:
    """Return the quantile of the absolute numbers, without masked ones.

    A few features are often far larger than all others.
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
    """Write each number into its cell, in a color with contrast.

    say : a function that formats a number, or the texts of the cells.
    """
    for (i, j), value in np.ndenumerate(values.numpy()):
        red, green, blue, _ = mesh.cmap(mesh.norm(value)) if value > HIDDEN else (1, 1, 1, 1)
        dark = 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.45
        place, color = (j + 0.5, i + 0.5), "white" if dark else INK
        text = say(value) if callable(say) else say[i][j]
        ax.text(*place, text, fontsize=points, color=color, ha="center", va="center")


def decimals(weight: float) -> str:
    """Return a weight with two decimals for a cell: ".25"."""
    return f"{weight:.2f}".removeprefix("0")


def number(value: float) -> str:
    """Return a signed number with at most one decimal for a cell."""
    if value < HIDDEN:
        return "\N{MINUS SIGN}∞"
    text = f"{value:.1f}" if abs(value) < 100 else f"{value:.0f}"
    return text.replace("-", "\N{MINUS SIGN}")


def frame(ax: Axes, corner: tuple[float, float], size: tuple[float, float]) -> None:
    """Draw a frame around some cells."""
    box = Rectangle(
        corner, *size, fill=False, edgecolor=ACCENT, linewidth=1.0, clip_on=False, zorder=3
    )
    ax.add_patch(box)
