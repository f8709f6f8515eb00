"""Draw a worked example as tables: what is printed, and our numbers from both sources."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import Normalize
from matplotlib.figure import Figure, SubFigure
from numpy.typing import NDArray

from attnviz.analyses.example.compute import example as replay
from attnviz.analyses.example.result import PRINTED, STATES, ExampleResult, GivenMatrix, verdict
from attnviz.figures import figure
from attnviz.figures.cells import draw_cells, frame, write_numbers
from attnviz.figures.layout import CaptionLength, Page, line_height, new_page
from attnviz.figures.style import FULL_WIDTH, SMALL_SIZE, theme
from attnviz.results.text import literal, with_minus

# Inches, unless said otherwise.
_BELOW, _APART = 0.1, 0.25  # below matrices, and between them
_CELL, _ROW, _LABEL = 0.38, 0.16, 0.5  # a cell's width at least, its height, and labels of rows
_DARKEST = 0.38  # of the colors, so that all numbers are legible


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
        counts = worked.count()
        key = [("□", color, STATES[one][1]) for one, (color, _) in _frames().items() if counts[one]]
        top = page.legend(page.left, top + 0.02, page.right, key) + _BELOW
        top = page.subtitle(page.left, top, "Given", page.room)
        top = _draw_row(page, worked.given, top)
        for number, stage in enumerate(worked.stages, start=1):
            title = literal(f"{number} {stage.title}", 120)
            top = page.subtitle(page.left, top, title, page.room)
            for line in (stage.formula, verdict(stage.count()), *stage.notes):
                top = page.paragraph(page.left, top, literal(line, 400), page.room)
            top = _draw_row(page, stage.matrices(), top + 0.04, stage.states)
        parts = (
            worked.summary(),
            "own code in float64, no model",
            "each stage is computed from what is given and, if something is printed before it, "
            "from the nearest printed stages",
            "a cell follows exactly if it differs from the printed one by at most half a unit of "
            "the last digit, and within rounding if the rounding of printed cells before it can "
            "explain the rest",
        )
        return page.finish(top, parts, None)


def _frames() -> dict[str, tuple[str, float]]:
    """Return the color of a frame by state, and its width in points."""
    looks = (theme().claim, 1.3), (theme().gray, 0.5), (theme().cycle[2], 0.8)
    return dict(zip(STATES, looks, strict=False))


def _draw_row(
    page: Page, matrices: Sequence[GivenMatrix], top: float, states: NDArray[np.str_] | None = None
) -> float:
    """Draw matrices side by side, in as many lines as needed; return the lower edge.

    states : of the printed cells. What is compared with them stands at thirds of the page.
    """
    apart = 0.0 if states is None else page.room / 3
    left, below = page.left, top
    for matrix in matrices:
        m, n = matrix.values.shape
        texts = [[*map(with_minus, row)] for row in matrix.texts]
        widest = max(page.ruler.widest(row, SMALL_SIZE) for row in texts) + 0.04
        cell = min(max(_CELL, widest), (page.room - _LABEL) / n)
        across = _LABEL + max(n * cell, page.ruler.width(matrix.key, SMALL_SIZE))
        if left > page.left and left + across > page.right:
            left, top = page.left, below
        key = page.ruler.clip(matrix.key, page.right - left - _LABEL, SMALL_SIZE)
        edge = page.write(left + _LABEL, top, [key]) + line_height(SMALL_SIZE) + 0.02
        ax = page.axes(left + _LABEL, edge, n * cell, m * _ROW)
        low, high = np.nanmin(matrix.values), np.nanmax(matrix.values)
        norm = Normalize(low, low + max(high - low, 1e-12) / _DARKEST)
        mesh = draw_cells(ax, matrix.values, theme().weights, norm)
        if widest <= cell:
            write_numbers(ax, mesh, matrix.values, texts, SMALL_SIZE)
            names = [page.ruler.clip(literal(x), cell, SMALL_SIZE) for x in matrix.columns]
            ax.set_xticks(np.arange(n) + 0.5, names, fontsize=SMALL_SIZE, color=theme().muted)
        names = [page.ruler.clip(literal(x), _LABEL - 0.07, SMALL_SIZE) for x in matrix.rows]
        ax.set_yticks(np.arange(m) + 0.5, names, fontsize=SMALL_SIZE)
        ax.xaxis.tick_top()
        ax.tick_params(length=0, pad=1.5)
        for (i, j), state in np.ndenumerate(states if matrix.key == PRINTED else ()):
            if state in _frames():
                frame(ax, (j + 0.05, i + 0.09), (0.9, 0.82), *_frames()[state])
        left += max(across + _APART, apart)
        below = max(below, edge + m * _ROW + _BELOW)
    return below
