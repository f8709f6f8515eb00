"""Draw what each head attends to as one cell, where there are too many heads for their maps."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from attnviz.analyses.maps.finding import OTHER_WORDS
from attnviz.analyses.maps.result import HeadMaps
from attnviz.figures.head_grid import HeadGrid
from attnviz.figures.layout import Page, line_height
from attnviz.figures.style import AXIS_ROOM, SMALL_SIZE, theme

_LARGEST_CELL = 0.3  # inches
_TALLEST = 2.0  # the height of a cell, in its widths
_LIGHTEST = 0.12  # the share of its color that a cell has at least
_LINED = 0.08  # inches of a cell with room for lines around it
_APART = 0.14  # inches between the entries of the key


def draw_head_summary(
    page: Page,
    maps: HeadMaps,
    looks: Sequence[tuple[str, float]],
    place: tuple[float, float],
    top: float,
    *,
    marked: Sequence[tuple[int, int]] = (),
    tallest: float = math.inf,
) -> float:
    """Draw a cell for each head with a key of the colors; return the lower edge.

    looks : what each head attends to, and how much. place : the left and right edge in inches.
    marked : the layer and head of the cells to frame, counted in the maps.
    tallest : inches of the grid at most.
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
    for layer, head in marked:
        look: dict[str, Any] = {"fill": False, "linewidth": 1.4, "clip_on": False}
        ax.add_patch(
            Rectangle(grid.place(layer, head), 1, 1, edgecolor=theme().accent, zorder=3, **look)
        )
    ax.set(xlim=(0, grid.columns), ylim=(grid.rows, 0))
    ax.spines[:].set_visible(False)
    grid.number_sides(ax, (across, down))
    bottom = top + down * grid.rows + AXIS_ROOM + 0.06
    return _draw_key(page, Counter(name for name, _ in looks), colors, place, bottom)


def _colors() -> dict[str, str]:
    """Return the color of what heads attend to."""
    blue, red, orange, green, _, purple = theme().cycle[:6]
    return {
        "previous": blue,
        "next": purple,
        "itself": orange,
        "same": red,
        "first": theme().gray,
        "special": theme().muted,
        OTHER_WORDS: green,
    }


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
    return page.write(
        left, top, page.ruler.wrap(note, right - left, SMALL_SIZE), color=theme().muted
    )
