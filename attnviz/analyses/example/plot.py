"""Draw a worked example as tables: what is printed, and our numbers from both sources."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from attnviz.analyses.example.compute import example as replay
from attnviz.analyses.example.result import ExampleResult, Matrix
from attnviz.figures.cells import draw_cells, frame, write_numbers
from attnviz.figures.layout import Page, Ruler, line_height
from attnviz.figures.style import (
    ACCENT,
    FULL_WIDTH,
    MARGIN,
    MM,
    MUTED,
    SMALL_SIZE,
    SMALLEST_SIZE,
    TEXT_SIZE,
    WIDE,
    style,
    weight_colors,
)
from attnviz.results.axis import literal

# Inches, unless said otherwise.
_BELOW, _GAP = 0.1, 0.1  # below a stage, and between its matrices
_CELL, _ROW = 0.38, 0.16  # a cell's width at most, and its height
_LABEL = 0.45  # width of the labels of rows
_DARKEST = 0.38  # of the colors, so that all numbers are legible


def example(worked: ExampleResult | str, *, width: float = FULL_WIDTH) -> Figure:
    """Draw a worked example: the inputs, then each printed stage beside our numbers.

    Cells that do not follow from the inputs, or from the printed stages before, are framed.

    Parameters
    ----------
    worked : ExampleResult or str
        From `attnviz.example`, or the name of a bundled example.
    width : float, default 183
        The width of the figure in mm. One column of a journal is 89 mm, two are 183.

    Returns
    -------
    Figure
        A new figure.

    Raises
    ------
    InputError
        No such example.
    """
    worked = replay(worked) if isinstance(worked, str) else worked
    notes = [note for stage in worked.stages for note in stage.notes]
    with style([worked.title, *worked.tokens, *notes]):
        page, ruler = Page(width * MM), Ruler()
        across = page.width - 2 * MARGIN
        top = page.title(MARGIN, MARGIN, literal(worked.title, 120), across) + _BELOW
        given = [
            Matrix(f"{m.key}, given", m.values, m.texts, m.rows, m.columns) for m in worked.given
        ]
        top = _draw_row(page, ruler, given, top)
        for number, stage in enumerate(worked.stages, start=1):
            head = "" if stage.head is None else f"head {stage.head}, "
            title = [f"{number} {head}{stage.title}", stage.formula, *stage.notes]
            top = _draw_row(page, ruler, [title, *stage.matrices()], top)
        caption = (
            "Each stage is computed from what is given and, if something is printed before it, "
            "from the nearest printed stages. A framed cell differs from the printed one by more "
            "than half a unit of the last digit and the largest effect of rounding before it. "
            f"{worked.conclusion()} Own code, float64; no model."
        )
        lines = ruler.wrap(caption, across, SMALL_SIZE)
        return page.finish(page.write(MARGIN, top, lines, color=MUTED) + MARGIN)


def _draw_row(page: Page, ruler: Ruler, row: Sequence[Matrix | list[str]], top: float) -> float:
    """Draw the title and the matrices of a stage beside each other; return the lower edge."""
    slots = 4 if page.width >= WIDE else 2
    room = (page.width - 2 * MARGIN + _GAP) / slots - _GAP
    for start in range(0, len(row), slots):
        line = row[start : start + slots]
        matrices = [item for item in line if isinstance(item, Matrix)]
        headings = [
            ruler.wrap(matrix.heading_with_count(), room, SMALL_SIZE) for matrix in matrices
        ]
        below = top + (max(map(len, headings)) + 1) * line_height(SMALL_SIZE) + 0.02
        bottom = top
        for place, item in enumerate(line):
            left = MARGIN + place * (room + _GAP)
            if isinstance(item, Matrix):
                bottom = max(bottom, _draw_matrix(page, ruler, item, (left, top, room), below))
                continue
            title, *texts = item
            title_lines = ruler.wrap(literal(title, 120), room, TEXT_SIZE, "bold")
            end = page.write(left, top, title_lines, points=TEXT_SIZE, weight="bold")
            for text in texts:
                lines = ruler.wrap(literal(text, 400), room, SMALL_SIZE)
                end = page.write(left, end + 0.02, lines, color=MUTED)
            bottom = max(bottom, end)
        top = bottom + _BELOW
    return top


def _draw_matrix(
    page: Page, ruler: Ruler, matrix: Matrix, place: tuple[float, float, float], below: float
) -> float:
    """Draw a heading, and cells with numbers and labels; frame those that do not follow.

    place : left edge, upper edge and width in inches. below : the upper edge of the cells.
    """
    left, top, room = place
    wrong = matrix.follows is not None and not matrix.follows.all()
    heading = ruler.wrap(matrix.heading_with_count(), room, SMALL_SIZE)
    page.write(left, top, heading, color=ACCENT if wrong else MUTED)
    m, n = matrix.values.shape
    cell = min(_CELL, (room - _LABEL) / len(matrix.columns))
    ax = page.axes(left + _LABEL, below, n * cell, m * _ROW)
    low, high = np.nanmin(matrix.values), np.nanmax(matrix.values)
    norm = Normalize(low, low + max(high - low, 1e-12) / _DARKEST)
    mesh = draw_cells(ax, matrix.values, weight_colors(), norm)
    longest = max((text for row in matrix.texts for text in row), key=len)
    sizes = (SMALL_SIZE, SMALLEST_SIZE)
    fitting = [size for size in sizes if ruler.width(longest, size) <= cell - 0.02]
    ax.xaxis.tick_top()
    if fitting:
        texts = [[text.replace("-", "\N{MINUS SIGN}") for text in row] for row in matrix.texts]
        write_numbers(ax, mesh, matrix.values, texts, fitting[0])
        columns = [ruler.clip(literal(label, 8), cell, fitting[0]) for label in matrix.columns[:n]]
        ax.set_xticks(np.arange(n) + 0.5, columns, fontsize=fitting[0], color=MUTED)
    rows = [ruler.clip(literal(label), _LABEL - 0.07, SMALL_SIZE) for label in matrix.rows]
    ax.set_yticks(np.arange(m) + 0.5, rows, fontsize=SMALL_SIZE)
    ax.tick_params(length=0, pad=1.5)
    if matrix.follows is not None:
        for i, j in (~matrix.follows).nonzero().tolist():
            frame(ax, (j + 0.05, i + 0.09), (0.9, 0.82))
    return below + m * _ROW
