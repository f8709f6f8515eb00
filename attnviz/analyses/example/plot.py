"""Draw a worked example as tables: what is printed, and our numbers from both sources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from matplotlib.colors import Normalize
from matplotlib.figure import Figure, SubFigure

from attnviz.analyses.example.compute import example as replay
from attnviz.analyses.example.result import STATES, ExampleResult, Matrix, ReplayedStage
from attnviz.figures import figure
from attnviz.figures.cells import draw_cells, frame, write_numbers
from attnviz.figures.layout import CaptionLength, Page, Place, line_height, new_page
from attnviz.figures.style import FULL_WIDTH, SMALL_SIZE, SMALLEST_SIZE, WIDE, theme
from attnviz.results.text import literal, with_minus

DIFFERS, INHERITED, ROUNDED, _ = STATES
# Inches, unless said otherwise.
_BELOW, _GAP = 0.1, 0.1  # below a stage, and right of its text
_CELL, _LEAST, _ROW = 0.38, 0.3, 0.16  # a cell's width at most and at least, and its height
_LABEL, _APART = 0.5, 0.3  # labels of rows, and between matrices
_TEXT = 1.5  # width of the text beside the matrices of a stage
_DARKEST = 0.38  # of the colors, so that all numbers are legible
_Slots: TypeAlias = tuple[int, float, float]


@figure
def example(
    worked: ExampleResult | str,
    *,
    width: float = FULL_WIDTH,
    caption: CaptionLength = "short",
    figure: Figure | SubFigure | None = None,
) -> Figure:
    """Draw a worked example: the inputs, then each printed stage beside the computed numbers.

    A frame marks each printed cell in which an error begins, each that inherits one from a printed
    stage before, and each that follows only within rounding.

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
        states = np.concatenate([stage.states.ravel() for stage in worked.stages])
        shown = [one for state, one in _frames().items() if state in states]
        key = [("□", color, name) for name, color, _ in shown]
        top = page.legend(page.left, top + 0.02, page.right, key) + _BELOW
        stages = [(stage, stage.matrices()) for stage in worked.stages]
        given = [one.matrix(f"{one.key}, given") for one in worked.given]
        if len(stages) == 1 and all(one.rows == stages[0][0].rows for one in given):
            stages[0][1][:0], given = given, []
        left = page.left + _TEXT * (page.width >= WIDE) + _LABEL
        slots = _slots([of for _, of in stages], page.right - left)
        top = _draw_given(page, given, slots[1], top)
        for number, (stage, of) in enumerate(stages, start=1):
            title = f"{number} {stage.title}" if len(stages) > 1 else stage.title
            top = _draw_stage(page, title, stage, of, (left, top), slots)
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


def _frames() -> dict[str, tuple[str, str, float]]:
    """Return what a frame means by state, its color, and its width in points."""
    return {
        DIFFERS: ("wrong: an error begins here", theme().claim, 1.3),
        INHERITED: ("inherits an error", theme().gray, 0.5),
        ROUNDED: (ROUNDED, theme().cycle[2], 0.8),
    }


def _slots(rows: Sequence[Sequence[Matrix]], room: float) -> _Slots:
    """Return how many matrices stand beside each other, the width of a cell, and of a place."""
    columns = max(len(one.columns) for row in rows for one in row)
    for count in range(max(map(len, rows)), 0, -1):
        cell = min(_CELL, ((room + _APART) / count - _APART) / columns)
        if cell >= _LEAST:
            break
    return count, cell, columns * cell + _APART


def _draw_given(page: Page, row: Sequence[Matrix], cell: float, top: float) -> float:
    """Draw matrices side by side, in as many lines as needed; return the lower edge."""
    left, below = page.left, top
    for matrix in row:
        size = min(cell, (page.room - _LABEL) / len(matrix.columns))
        across = _LABEL + size * len(matrix.columns)
        if left > page.left and left + across > page.right:
            left, top = page.left, below
        heading = page.write(left + _LABEL, top, [matrix.source])
        end = _draw_matrix(page, matrix, (left + _LABEL, heading), size)
        left, below = left + across + _APART, max(below, end + _BELOW)
    return below


def _draw_stage(
    page: Page, title: str, stage: ReplayedStage, row: list[Matrix], place: Place, slots: _Slots
) -> float:
    """Draw the text of a stage and its matrices, one place for each source; return the end."""
    (left, top), (count, cell, apart) = place, slots
    room = _TEXT - _GAP if page.width >= WIDE else page.room
    edge = page.subtitle(page.left, top, literal(title, 120), room)
    for text in (stage.formula, *stage.notes):
        edge = page.paragraph(page.left, edge + 0.02, literal(text, 400), room)
    line, below = (top, edge) if page.width >= WIDE else (edge + 0.04, edge)
    first = max(0, count - len(row)) if stage.printed is None else 0
    for n, matrix in enumerate(row, start=first):
        line = below + _BELOW if n >= count else line
        x = left + min(n, count - 1) * apart
        name, said = matrix.heading
        is_wrong = name == "printed" and DIFFERS in stage.states
        color = theme().claim if is_wrong else theme().muted
        top = page.write(x, line, [name])
        top = page.write(x, top, [page.ruler.clip(said, apart, SMALL_SIZE)], color=color)
        labels = n == first or n >= count
        below = max(below, _draw_matrix(page, matrix, (x, top), cell, labels=labels))
    return below + _BELOW


def _draw_matrix(
    page: Page, matrix: Matrix, place: Place, cell: float, *, labels: bool = True
) -> float:
    """Draw cells with numbers; frame those with a state; return the lower edge."""
    m, n = matrix.values.shape
    left, top = place[0], place[1] + line_height(SMALL_SIZE) + 0.02
    ax = page.axes(left, top, n * cell, m * _ROW)
    low, high = np.nanmin(matrix.values), np.nanmax(matrix.values)
    norm = Normalize(low, low + max(high - low, 1e-12) / _DARKEST)
    mesh = draw_cells(ax, matrix.values, theme().weights, norm)
    texts = [[*map(with_minus, row)] for row in matrix.texts]
    longest = max((text for row in matrix.texts for text in row), key=len)
    sizes = SMALL_SIZE, SMALLEST_SIZE
    if fits := [size for size in sizes if page.ruler.width(longest, size) <= cell - 0.02]:
        write_numbers(ax, mesh, matrix.values, texts, fits[0])
        names = [literal(label, 12) for label in matrix.columns[:n]]
        size = next((size for size in sizes if page.ruler.widest(names, size) <= cell), sizes[-1])
        names = [page.ruler.clip(name, cell, size) for name in names]
        ax.set_xticks(np.arange(n) + 0.5, names, fontsize=size, color=theme().muted)
    rows = [page.ruler.clip(literal(x), _LABEL - 0.07, SMALL_SIZE) for x in matrix.rows]
    ax.set_yticks(np.arange(m) + 0.5, rows if labels else [""] * m, fontsize=SMALL_SIZE)
    ax.xaxis.tick_top()
    ax.tick_params(length=0, pad=1.5)
    for (i, j), state in np.ndenumerate(matrix.states) if matrix.states is not None else ():
        if state in _frames():
            frame(ax, (j + 0.05, i + 0.09), (0.9, 0.82), *_frames()[state][1:])
    return top + m * _ROW
