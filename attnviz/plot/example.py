"""A worked example as tables: what is printed, and ours from the inputs and from what is printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from attnviz.examples import make_example
from attnviz.examples.wording import follow_counts, headings, shown_decimals
from attnviz.plot.layout import SMALLEST, Page, Ruler, line_height
from attnviz.plot.style import (
    ACCENT,
    FAINT,
    FULL_WIDTH,
    INK,
    MM,
    MUTED,
    SMALL_SIZE,
    TEXT_SIZE,
    TITLE_SIZE,
    literal,
    style,
    weight_colours,
)
from attnviz.records import ReplayedStage, WorkedExample

_MARGIN, _GAP = 0.06, 0.12  # inches; the gap between two matrices of a stage
_APART, _BELOW = 0.34, 0.16  # inches between two stages, across and down
_ROW = 0.165  # inches that a row of a matrix is high
_PAD = 0.07  # inches that a number keeps free in its cell
_NARROWEST = 0.62  # inches that the heading of a matrix has, however few its columns
_LABEL = 0.9  # inches to which the label of a row is clipped
_DARKEST = 0.38  # of the colours: numbers are read on all of them


def example(worked: WorkedExample | str, *, width: float = FULL_WIDTH) -> Figure:
    """Draw a worked example: for each stage the printed matrix, and ours computed twice.

    Cells that do not follow from the inputs, or from the printed stages before, are framed.

    Parameters
    ----------
    worked : from `make_example`; or the name of an example that comes along.
    width : of the figure, in mm: 89 is one column of a journal, 183 two.

    Raises
    ------
    InputError : no such example.
    """
    worked = make_example(worked) if isinstance(worked, str) else worked
    labels = [label for stage in worked.stages for label in (*stage.rows, *stage.columns)]
    notes = [note for stage in worked.stages for note in stage.notes]
    with style([worked.title, worked.name, *labels, *notes]):
        page, ruler = Page(width * MM), Ruler()
        inner = page.width - 2 * _MARGIN
        lines = ruler.wrap(literal(worked.title, 120), inner, TITLE_SIZE, "bold")
        top = page.write(_MARGIN, _MARGIN, lines, points=TITLE_SIZE, weight="bold") + _GAP / 2
        blocks = [_Block(number, s, ruler, inner) for number, s in enumerate(worked.stages, 1)]
        for row in _flow(blocks, inner):
            left, bottom = _MARGIN, top
            for block in row:
                bottom = max(bottom, block.draw(page, left, top))
                left += block.width + _APART
            top = bottom + _BELOW
        caption = ruler.wrap(_caption(worked), inner, SMALL_SIZE)
        end = page.write(_MARGIN, top, caption, color=MUTED)
        return page.finish(end + _MARGIN)


@dataclass(frozen=True)
class _Matrix:
    """One matrix of a stage: its heading, numbers, which of them follow, and its decimals."""

    heading: str
    numbers: Tensor
    follows: Tensor | None
    digits: int
    told: int

    @property
    def texts(self) -> list[list[str]]:
        return [[f"{number:.{self.digits}f}" for number in row] for row in self.numbers.tolist()]


class _Block:
    """One stage, measured before it is drawn."""

    def __init__(self, number: int, stage: ReplayedStage, ruler: Ruler, room: float) -> None:
        self.stage, self.ruler = stage, ruler
        of = "" if stage.head is None else f"head {stage.head}, "
        self.title = f"{number}  {of}{stage.title}"
        self.matrices = [_matrix(stage, *heading) for heading in headings(stage)]
        self.label = min(_LABEL, ruler.widest(list(map(literal, stage.rows)), SMALL_SIZE)) + _PAD
        texts = [text for one in self.matrices for row in one.texts for text in row]
        texts += [literal(label, 8) for label in stage.columns]
        widest = max(one.numbers.shape[1] for one in self.matrices)
        natural = ruler.widest(texts, SMALL_SIZE) + _PAD
        self.cell = min(natural, (room - self.label) / widest)
        self.written = self.cell >= natural * SMALLEST / SMALL_SIZE
        self.points = SMALL_SIZE if self.cell >= natural else SMALLEST
        self.groups = self._groups(room - self.label)
        across = max(sum(map(self._slot, group)) + _GAP * (len(group) - 1) for group in self.groups)
        needed = ruler.width(self.title, TEXT_SIZE, "bold") + ruler.width(
            self._formula(), SMALL_SIZE
        ) + _PAD  # fmt: skip
        self.width = min(room, max(self.label + across, needed))

    def _formula(self) -> str:
        m, n = self.stage.from_inputs.shape
        return f"{self.stage.formula}   ({m}, {n})"

    def _slot(self, matrix: _Matrix) -> float:
        return max(_NARROWEST, matrix.numbers.shape[1] * self.cell)

    def _groups(self, room: float) -> list[list[_Matrix]]:
        """Put as many matrices beside each other as there is room for."""
        groups: list[list[_Matrix]] = [[]]
        for matrix in self.matrices:
            taken = sum(self._slot(one) + _GAP for one in groups[-1])
            if groups[-1] and taken + self._slot(matrix) > room + 1e-9:
                groups.append([])
            groups[-1].append(matrix)
        return groups

    def draw(self, page: Page, left: float, top: float) -> float:
        """Draw the stage; return where it ends."""
        page.write(left, top, [self.title], points=TEXT_SIZE, weight="bold")
        wide = self.ruler.width(self.title, TEXT_SIZE, "bold")
        beside = wide + _PAD + self.ruler.width(self._formula(), SMALL_SIZE) <= self.width + 1e-9
        if beside:
            page.write(left + wide + _PAD, top + 0.012, [self._formula()], color=MUTED)
            top += line_height(TEXT_SIZE) + 0.02
        else:
            lines = self.ruler.wrap(self._formula(), self.width, SMALL_SIZE)
            top = page.write(left, top + line_height(TEXT_SIZE), lines, color=MUTED) + 0.02
        for group in self.groups:
            top = self._draw_group(page, group, left, top) + _PAD
        for good, line in follow_counts(self.stage):
            lines = self.ruler.wrap(line, self.width, SMALL_SIZE)
            top = page.write(left, top, lines, color=INK if good else ACCENT)
        for note in self.stage.notes:
            lines = self.ruler.wrap(literal(note, 400), self.width, SMALL_SIZE)
            top = page.write(left, top, lines, color=MUTED)
        return top

    def _draw_group(self, page: Page, group: Sequence[_Matrix], left: float, top: float) -> float:
        """Draw matrices beside each other, the rows labelled once; return where they end."""
        wrapped = [self.ruler.wrap(one.heading, self._slot(one), SMALL_SIZE) for one in group]
        tallest = max(map(len, wrapped))
        above = line_height(SMALL_SIZE) if self.written else 0.0
        start = top + tallest * line_height(SMALL_SIZE) + above + 0.03
        left += self.label
        numbers = [one.numbers for one in self.matrices]
        low = min(float(one.min()) for one in numbers)
        high = max(float(one.max()) for one in numbers)
        for place, (matrix, lines) in enumerate(zip(group, wrapped, strict=True)):
            m, n = matrix.numbers.shape
            page.write(
                left, top + (tallest - len(lines)) * line_height(SMALL_SIZE), lines, color=MUTED
            )
            ax = page.axes(left, start, n * self.cell, m * _ROW)
            self._draw_matrix(ax, matrix, (low, high))
            self._label(ax, n, rows=place == 0)
            left += self._slot(matrix) + _GAP
        return start + len(self.stage.rows) * _ROW

    def _draw_matrix(self, ax: Axes, matrix: _Matrix, limits: tuple[float, float]) -> None:
        low, high = limits
        numbers = matrix.numbers.numpy()
        darkest = low + max(high - low, 1e-12) / _DARKEST
        ax.pcolormesh(
            numbers,
            cmap=weight_colours(),
            vmin=low,
            vmax=darkest,
            edgecolors="white",
            linewidth=0.6,
        )
        ax.invert_yaxis()
        ax.spines[:].set_visible(False)
        for (i, j), text in np.ndenumerate(np.array(matrix.texts)):
            untold = j >= matrix.told
            if untold:
                _box(ax, i, j, facecolor="white", edgecolor=FAINT, hatch="/////", linewidth=0)
            if self.written:
                ax.text(
                    j + 0.5, i + 0.53, text, ha="center", va="center", fontsize=self.points,
                    color=MUTED if untold else INK,
                )  # fmt: skip
            if matrix.follows is not None and not matrix.follows[i, j]:
                _box(ax, i, j, fill=False, edgecolor=ACCENT, linewidth=0.9, zorder=3)

    def _label(self, ax: Axes, columns: int, *, rows: bool) -> None:
        names = [literal(label, 8) for label in self.stage.columns[:columns]]
        names = [self.ruler.clip(name, self.cell, self.points) for name in names]
        ax.xaxis.tick_top()
        ax.set_xticks(
            np.arange(columns) + 0.5 if self.written else [],
            names if self.written else [],
            fontsize=self.points,
            color=MUTED,
        )
        labels = [
            self.ruler.clip(literal(name), self.label - _PAD, SMALL_SIZE)
            for name in (self.stage.rows if rows else ())
        ]
        ax.set_yticks(np.arange(len(labels)) + 0.5, labels, fontsize=SMALL_SIZE)
        ax.tick_params(length=0, pad=1.5)


def _matrix(stage: ReplayedStage, heading: str, which: str) -> _Matrix:
    printed = which == "printed"
    return _Matrix(
        heading,
        getattr(stage, which),
        getattr(stage, f"{which}_follows", None),
        (stage.decimals or 0) if printed else shown_decimals(stage),
        stage.from_inputs.shape[1],
    )


def _box(ax: Axes, i: int, j: int, **how: object) -> None:
    ax.add_patch(Rectangle((j + 0.05, i + 0.09), 0.9, 0.82, **how))  # type: ignore[arg-type]


def _flow(blocks: Sequence[_Block], room: float) -> list[list[_Block]]:
    """Put as many stages beside each other, in order, as there is room for."""
    rows: list[list[_Block]] = [[]]
    for block in blocks:
        taken = sum(each.width + _APART for each in rows[-1])
        if rows[-1] and taken + block.width > room + 1e-9:
            rows.append([])
        rows[-1].append(block)
    return rows


def _caption(worked: WorkedExample) -> str:
    parts = [
        "Each stage as it is printed, and computed again: from the inputs alone, and from the "
        "printed stages before it."
    ]
    if worked.count()["printed"]:
        parts.append(
            "A framed cell does not follow: it is further from the printed one than half a unit "
            "of the last printed digit and what the rounding of the printed cells before can do."
        )
    summary = worked.summary()
    parts.append(f"{summary[0].upper()}{summary[1:]}.")
    if worked.slips:
        parts.append(f"The book goes wrong by itself at: {', '.join(worked.slips)}.")
    return " ".join([*parts, "Own code, float64; no model."])
