"""Draw a worked example as tables: what is printed, and our numbers from both sources."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import Normalize
from matplotlib.figure import Figure, SubFigure

from attnviz.analyses.example.compute import example as replay
from attnviz.analyses.example.result import STATES, ExampleResult, Matrix
from attnviz.figures import figure
from attnviz.figures.cells import draw_cells, frame, write_numbers
from attnviz.figures.layout import CaptionLength, Page, line_height, new_page
from attnviz.figures.style import FULL_WIDTH, SMALL_SIZE, SMALLEST_SIZE, WIDE, theme
from attnviz.results.text import literal, with_minus

DIFFERS, INHERITED, ROUNDED, EXACT = STATES
# Inches, unless said otherwise.
_BELOW, _GAP = 0.1, 0.1  # below a stage, and between its matrices
_CELL, _ROW = 0.38, 0.16  # a cell's width at most, and its height
_LABEL = 0.45  # width of the labels of rows
_LINES = {DIFFERS: 1.3, INHERITED: 0.5, ROUNDED: 0.8}  # points
_DARKEST = 0.38  # of the colors, so that all numbers are legible


@figure
def example(
    worked: ExampleResult | str,
    *,
    width: float = FULL_WIDTH,
    caption: CaptionLength = "short",
    figure: Figure | SubFigure | None = None,
) -> Figure:
    """Draw a worked example: the inputs, then each printed stage beside our numbers.

    A frame marks each cell in which an error begins, each that inherits one from a printed stage
    before, and each that follows only within rounding.

    Parameters
    ----------
    worked : ExampleResult or str
        From `attnviz.example`, or the name of a bundled example.

    Raises
    ------
    InputError
        No such example.

    Examples
    --------
    >>> import attnviz
    >>> figure = attnviz.plot.example("phones")
    """
    worked = replay(worked) if isinstance(worked, str) else worked
    notes = [note for stage in worked.stages for note in stage.notes]
    with new_page(width, caption, [worked.title, *worked.tokens, *notes], figure) as page:
        top = page.heading(worked.finding())
        top = page.subheading(top, literal(worked.title, 120))
        top = _draw_legend(page, top, worked) + _BELOW
        top = _draw_row(page, [one.matrix(f"{one.key}, given") for one in worked.given], top)
        for number, stage in enumerate(worked.stages, start=1):
            texts = [f"{number} {stage.title}", stage.formula, *stage.notes]
            top = _draw_row(page, [texts, *stage.matrices()], top)
        parts = (
            worked.conclusion(),
            "own code in float64, no model",
            "each stage is computed from what is given and, if something is printed before it, "
            "from the nearest printed stages",
            "a cell follows exactly if it differs from the printed one by at most half a unit of "
            "the last digit, and within rounding if the rounding of printed cells before it can "
            "explain the rest",
        )
        return page.finish(top, parts, None)


def _frames() -> dict[str, str]:
    return {DIFFERS: theme().claim, INHERITED: theme().gray, ROUNDED: theme().cycle[2]}


def _draw_legend(page: Page, top: float, worked: ExampleResult) -> float:
    """Draw what the frames mean, if anything is printed; return the lower edge."""
    matrices = [matrix for stage in worked.stages for matrix in stage.matrices()]
    shown = {state for one in matrices if one.states is not None for state in one.states.flat}
    names = {DIFFERS: "an error begins here"}
    legend = [
        (f"□ {names.get(state, state)}", color)
        for state, color in _frames().items()
        if state in shown
    ]
    if shown:
        legend.append((f"no frame: {EXACT}", theme().muted))
    left, below = page.left, top
    for text, color in legend:
        wide = page.ruler.width(text, SMALL_SIZE)
        if left + wide > page.right:
            left, top = page.left, below
        below = page.write(left, top + 0.02, [text], color=color)
        left += wide + _GAP
    return below


def _draw_row(page: Page, row: Sequence[Matrix | list[str]], top: float) -> float:
    """Draw the texts and the matrices of a stage beside each other; return the lower edge."""
    slots = 4 if page.width >= WIDE else 2
    width = (page.room + _GAP) / slots - _GAP
    for start in range(0, len(row), slots):
        items = row[start : start + slots]
        headings = [
            page.ruler.wrap(item.heading, width, SMALL_SIZE) if isinstance(item, Matrix) else []
            for item in items
        ]
        below = top + (max(map(len, headings)) + 1) * line_height(SMALL_SIZE) + 0.02
        edges = []
        for place, (item, heading) in enumerate(zip(items, headings, strict=True)):
            left = page.left + place * (width + _GAP)
            if isinstance(item, Matrix):
                is_shown = item.worst in (DIFFERS, ROUNDED)
                color = _frames()[item.worst] if is_shown else theme().muted
                page.write(left, top, heading, color=color)
                edges.append(_draw_matrix(page, item, left, below, width))
            else:
                edge = page.subtitle(left, top, literal(item[0], 120), width)
                for text in item[1:]:
                    edge = page.paragraph(left, edge + 0.02, literal(text, 400), width)
                edges.append(edge)
        top = max(edges) + _BELOW
    return top


def _draw_matrix(page: Page, matrix: Matrix, left: float, top: float, width: float) -> float:
    """Draw cells with numbers and labels; frame those that do not follow; return the lower edge."""
    m, n = matrix.values.shape
    cell = min(_CELL, (width - _LABEL) / len(matrix.columns))
    ax = page.axes(left + _LABEL, top, n * cell, m * _ROW)
    low, high = np.nanmin(matrix.values), np.nanmax(matrix.values)
    norm = Normalize(low, low + max(high - low, 1e-12) / _DARKEST)
    mesh = draw_cells(ax, matrix.values, theme().weights, norm)
    texts = [[*map(with_minus, row)] for row in matrix.texts]
    longest = max((text for row in matrix.texts for text in row), key=len)
    for size in (SMALL_SIZE, SMALLEST_SIZE):
        if page.ruler.width(longest, size) <= cell - 0.02:
            write_numbers(ax, mesh, matrix.values, texts, size)
            labels = [page.ruler.clip(literal(x, 8), cell, size) for x in matrix.columns[:n]]
            ax.set_xticks(np.arange(n) + 0.5, labels, fontsize=size, color=theme().muted)
            break
    labels = [page.ruler.clip(literal(x), _LABEL - 0.07, SMALL_SIZE) for x in matrix.rows]
    ax.set_yticks(np.arange(m) + 0.5, labels, fontsize=SMALL_SIZE)
    ax.xaxis.tick_top()
    ax.tick_params(length=0, pad=1.5)
    for (i, j), state in np.ndenumerate(matrix.states) if matrix.states is not None else ():
        if color := _frames().get(state):
            frame(ax, (j + 0.05, i + 0.09), (0.9, 0.82), color, _LINES[state])
    return top + m * _ROW
