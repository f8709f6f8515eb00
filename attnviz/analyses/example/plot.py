"""A worked example as tables: what is printed, and our numbers from the inputs and the print."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from attnviz.analyses.example.compute import example as replay
from attnviz.analyses.example.result import ExampleResult, GivenMatrix, ReplayedStage
from attnviz.analyses.example.wording import Shown, follow_counts, matrices, slips_sentence
from attnviz.figures.cells import draw_cells, frame, write_numbers
from attnviz.figures.layout import Page, Ruler, line_height
from attnviz.figures.style import (
    ACCENT,
    FAINT,
    FULL_WIDTH,
    INK,
    MARGIN,
    MM,
    MUTED,
    SMALL_SIZE,
    SMALLEST_SIZE,
    TEXT_SIZE,
    style,
    weight_colors,
)
from attnviz.results.words import literal

# Inches, unless said otherwise.
_APART, _BELOW = 0.34, 0.16  # between two stages, across and down
_CELL = 0.25  # width of a cell at least, where there is room
_GAP = 0.12  # between two matrices of a stage
_ROW = 0.165  # height of a row of a matrix
_PAD = 0.07  # that a number keeps free in its cell, and a label from its matrix
_HEADING = 0.78  # width of a matrix's heading at least
_LABEL = 0.9  # width of a row's label at most
_NOTE = 3.1  # width of a stage with notes at least
_INSET, _FRAMED = (0.05, 0.09), (0.9, 0.82)  # of a cell: where its frame begins, and its size
_DARKEST = 0.38  # of the colors, so that numbers can be read on all of them


def example(worked: ExampleResult | str, *, width: float = FULL_WIDTH) -> Figure:
    """Draw a worked example: the inputs, then what is printed of each stage beside our numbers.

    Cells that do not follow from the inputs, or from the printed stages before, are framed.

    Parameters
    ----------
    worked : ExampleResult or str
        From `example`, or the name of a bundled example.
    width : float
        Of the figure, in mm: 89 is one column of a journal, 183 two.

    Raises
    ------
    InputError
        No such example.
    """
    worked = replay(worked) if isinstance(worked, str) else worked
    blocks = [_given_block(matrix) for matrix in worked.given]
    blocks += [_stage_block(number, stage) for number, stage in enumerate(worked.stages, start=1)]
    labels = [label for block in blocks for label in (*block.rows, *block.columns, *block.notes)]
    with style([worked.title, *labels]):
        page, ruler = Page(width * MM), Ruler()
        across = page.width - 2 * MARGIN
        top = page.title(MARGIN, MARGIN, literal(worked.title, 120), across) + _BELOW / 2
        left, bottom = MARGIN, top
        for block in blocks:
            table = _Table(block, ruler, across)
            if left > MARGIN and left + table.width > MARGIN + across + 1e-9:
                left, top = MARGIN, bottom + _BELOW
            bottom = max(bottom, table.draw(page, left, top))
            left += table.width + _APART
        caption = ruler.wrap(_caption(worked), across, SMALL_SIZE)
        end = page.write(MARGIN, bottom + _BELOW, caption, color=MUTED)
        return page.finish(end + MARGIN)


def _caption(worked: ExampleResult) -> str:
    summary = worked.summary()
    framed = (
        ""
        if all(stage.printed is None for stage in worked.stages)
        else (
            "A framed cell does not follow: it differs from the printed one by more than half a "
            "unit of that matrix's last digit and all that the rounding of those before can do. "
        )
    )
    slips = f"{slips_sentence(worked)}. " if worked.slips else ""
    return (
        "Each stage is computed again from what is given and, where something is printed before "
        f"it, from the nearest printed stages. {framed}{summary[0].upper()}{summary[1:]}. {slips}"
        "Own code, float64; no model."
    )


@dataclass(frozen=True)
class _Block:
    """What is drawn under one title: matrices with the same rows, and counts and notes below.

    Columns from `known` on cannot be computed from what is given.
    """

    title: str
    formula: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    known: int
    matrices: tuple[Shown, ...]
    counts: tuple[tuple[bool, str], ...] = ()
    notes: tuple[str, ...] = ()


def _stage_block(number: int, stage: ReplayedStage) -> _Block:
    head = "" if stage.head is None else f"head {stage.head}, "
    m, n = stage.from_inputs.shape
    shown = matrices(stage)
    if stage.printed is None and stage.from_printed is not None:
        # An empty place, so that our numbers stand below our numbers.
        nothing = torch.full_like(stage.from_inputs, torch.nan)
        shown.insert(0, Shown("not printed", nothing, [[""] * n] * m))
    return _Block(
        f"{number} {head}{stage.title}",
        f"{stage.formula}   ({m}, {n})",
        stage.rows,
        stage.columns,
        n,
        tuple(shown),
        tuple(follow_counts(stage)),
        stage.notes,
    )


def _given_block(given: GivenMatrix) -> _Block:
    m, n = given.values.shape
    rows, columns = (given.rows, given.columns) if given.of_tokens else (("",) * m, ("",) * n)
    matrix = Shown("", given.values, given.texts)
    return _Block(f"{given.key}, given", f"({m}, {n})", rows, columns, n, (matrix,))


class _Table:
    """A block, measured before it is drawn."""

    def __init__(self, block: _Block, ruler: Ruler, across: float) -> None:
        self.block, self.ruler = block, ruler
        widest = ruler.widest([literal(label) for label in block.rows], SMALL_SIZE)
        self.label = min(_LABEL, widest) + _PAD
        numbers = [text for shown in block.matrices for row in shown.texts for text in row]
        # Digits have one width; to measure each number would take long.
        texts = [max(numbers, key=len), *(literal(label, 8) for label in block.columns)]
        natural = max(_CELL, ruler.widest(texts, SMALL_SIZE) + _PAD)
        columns = max(shown.values.shape[1] for shown in block.matrices)
        self.cell = min(natural, (across - self.label) / columns)
        self.points = SMALL_SIZE if self.cell >= natural else SMALLEST_SIZE
        self.has_numbers = self.cell >= natural * SMALLEST_SIZE / SMALL_SIZE
        self.lines: list[list[Shown]] = [[]]
        for shown in block.matrices:
            line = [*self.lines[-1], shown]
            if self.lines[-1] and self._width(line) > across - self.label + 1e-9:
                self.lines.append([shown])
            else:
                self.lines[-1] = line
        self.beside = ruler.width(block.title, TEXT_SIZE, "bold") + _PAD  # where the formula stands
        title = self.beside + ruler.width(block.formula, SMALL_SIZE)
        tables = self.label + max(map(self._width, self.lines))
        self.width = min(across, max(tables, title, _NOTE if block.notes else 0.0))
        self.on_one_line = title <= self.width + 1e-9

    def _slot(self, shown: Shown) -> float:
        return max(_HEADING if shown.heading else 0.0, shown.values.shape[1] * self.cell)

    def _width(self, line: Sequence[Shown]) -> float:
        return sum(map(self._slot, line)) + _GAP * (len(line) - 1)

    def draw(self, page: Page, left: float, top: float) -> float:
        """Draw the block with its upper left corner there, in inches; return where it ends."""
        block, wrap = self.block, self.ruler.wrap
        titles = wrap(block.title, self.width, TEXT_SIZE, "bold")
        end = page.write(left, top, titles, points=TEXT_SIZE, weight="bold")
        if self.on_one_line:
            page.write(left + self.beside, top + 0.012, [block.formula], color=MUTED)
        else:
            end = page.write(left, end, wrap(block.formula, self.width, SMALL_SIZE), color=MUTED)
        end += 0.02
        for line in self.lines:
            end = self._draw_line(page, line, left + self.label, end) + _PAD
        below = [(text, INK if good else ACCENT) for good, text in block.counts]
        below += [(f"{literal(note, 400)}.", MUTED) for note in block.notes]
        for text, color in below:
            end = page.write(left, end, wrap(text, self.width, SMALL_SIZE), color=color)
        return end

    def _draw_line(self, page: Page, line: Sequence[Shown], left: float, top: float) -> float:
        """Draw matrices beside each other, the rows labeled once; return where they end."""
        headings = [self.ruler.wrap(shown.heading, self._slot(shown), SMALL_SIZE) for shown in line]
        start = top + max(map(len, headings)) * line_height(SMALL_SIZE)
        below = start + (line_height(SMALL_SIZE) if self.has_numbers else 0.0) + 0.02
        for place, (shown, lines) in enumerate(zip(line, headings, strict=True)):
            m, n = shown.values.shape
            # All headings end on the line above the labels of the columns.
            page.write(left, start - len(lines) * line_height(SMALL_SIZE), lines, color=MUTED)
            ax = page.axes(left, below, n * self.cell, m * _ROW)
            self._draw_matrix(ax, shown)
            self._label(ax, n, rows=place == 0)
            left += self._slot(shown) + _GAP
        return below + len(self.block.rows) * _ROW

    def _draw_matrix(self, ax: Axes, shown: Shown) -> None:
        """Draw the cells of a matrix with its numbers; hatch what cannot be computed."""
        (m, n), known = shown.values.shape, self.block.known
        numbers = torch.cat([matrix.values.flatten() for matrix in self.block.matrices])
        low, high = (float(end) for end in numbers[~numbers.isnan()].aminmax())
        values = shown.values.clone()
        values[:, known:] = torch.nan
        colors = Normalize(low, low + max(high - low, 1e-12) / _DARKEST)
        mesh = draw_cells(ax, values, weight_colors(), colors)
        if not any(text for row in shown.texts for text in row):
            ax.spines[:].set(visible=True, color=FAINT, linewidth=0.5)
        for i, j in np.ndindex(m, max(0, n - known)):
            corner = (known + j + _INSET[0], i + _INSET[1])
            hatched = Rectangle(corner, *_FRAMED, fc="white", ec=FAINT, hatch="/////", linewidth=0)
            ax.add_patch(hatched)
        if self.has_numbers:
            texts = [[text.replace("-", "\N{MINUS SIGN}") for text in row] for row in shown.texts]
            write_numbers(ax, mesh, values, texts, self.points)
        if shown.follows is not None:
            for i, j in (~shown.follows).nonzero().tolist():
                frame(ax, (j + _INSET[0], i + _INSET[1]), _FRAMED)

    def _label(self, ax: Axes, columns: int, *, rows: bool) -> None:
        """Name the columns above a matrix, and its rows where it is the first."""
        ax.xaxis.tick_top()
        above = [literal(label, 8) for label in self.block.columns[:columns]]
        above = [self.ruler.clip(name, self.cell, self.points) for name in above]
        if self.has_numbers:
            ax.set_xticks(np.arange(columns) + 0.5, above, fontsize=self.points, color=MUTED)
        else:
            ax.set_xticks([])
        names = [literal(label) for label in (self.block.rows if rows else ())]
        names = [self.ruler.clip(name, self.label - _PAD, SMALL_SIZE) for name in names]
        ax.set_yticks(np.arange(len(names)) + 0.5, names, fontsize=SMALL_SIZE)
        ax.tick_params(length=0, pad=1.5)
