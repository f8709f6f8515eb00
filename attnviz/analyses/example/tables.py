"""Matrices as tables on a page: numbers in shaded cells, those that do not follow framed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.patches import Rectangle

from attnviz.analyses.example.result import GivenMatrix, ReplayedStage
from attnviz.analyses.example.wording import Shown, follow_counts, matrices
from attnviz.figures.cells import draw_cells, frame, write_numbers
from attnviz.figures.layout import (
    SMALLEST,
    Page,
    Ruler,
    line_height,
)
from attnviz.figures.style import (
    ACCENT,
    FAINT,
    INK,
    MUTED,
    SMALL_SIZE,
    TEXT_SIZE,
    weight_colours,
)
from attnviz.results.words import literal

_CELL = 0.25  # inches that a cell is wide at least, where there is room
_GAP = 0.12  # inches between two matrices of a stage
_ROW = 0.165  # inches that a row of a matrix is high
_PAD = 0.07  # inches that a number keeps free in its cell, and a label from its matrix
_NARROWEST = 0.78  # inches that the heading of a matrix has, however few its columns
_LONGEST = 0.9  # inches to which the label of a row is clipped
_NOTE = 3.1  # inches that a note has to be read in, however narrow its stage
_INSET, _FRAMED = (0.05, 0.09), (0.9, 0.82)  # of a cell: where its frame begins, and its size
_DARKEST = 0.38  # of the colours: numbers are read on all of them


@dataclass(frozen=True)
class Block:
    """What is drawn under one title: matrices with the same rows, and what is said below.

    told : how many columns can be told. said : (whether it is good, a line).
    """

    title: str
    formula: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    told: int
    matrices: tuple[Shown, ...]
    said: tuple[tuple[bool, str], ...] = ()
    notes: tuple[str, ...] = ()


def stage_block(number: int, stage: ReplayedStage) -> Block:
    """Return what is drawn of one stage."""
    of = "" if stage.head is None else f"head {stage.head}, "
    m, n = stage.from_inputs.shape
    shown = matrices(stage)
    if stage.printed is None and stage.from_printed is not None:
        # Its place stays free, so that what is computed stands below what is computed.
        nothing = torch.full_like(stage.from_inputs, torch.nan)
        shown.insert(0, Shown("not printed", nothing, [[""] * n] * m))
    return Block(
        f"{number} {of}{stage.title}",
        f"{stage.formula}   ({m}, {n})",
        stage.rows,
        stage.columns,
        n,
        tuple(shown),
        tuple(follow_counts(stage)),
        stage.notes,
    )


def given_block(given: GivenMatrix) -> Block:
    """Return what is drawn of a matrix that is given."""
    m, n = given.values.shape
    matrix = Shown("", given.values, given.texts)
    rows = given.rows if given.of_tokens else ("",) * m
    columns = given.columns if given.of_tokens else ("",) * n
    return Block(f"{given.key}, given", f"({m}, {n})", rows, columns, n, (matrix,))


class Table:
    """A block, measured before it is drawn."""

    def __init__(self, block: Block, ruler: Ruler, room: float) -> None:
        self.block, self.ruler = block, ruler
        widest = ruler.widest([literal(label) for label in block.rows], SMALL_SIZE)
        self.label = min(_LONGEST, widest) + _PAD
        texts = [text for one in block.matrices for row in one.texts for text in row]
        # Digits are of one width; to measure each number would take long.
        texts = [max(texts, key=len), *(literal(label, 8) for label in block.columns)]
        natural = max(_CELL, ruler.widest(texts, SMALL_SIZE) + _PAD)
        most = max(one.values.shape[1] for one in block.matrices)
        self.cell = min(natural, (room - self.label) / most)
        self.points = SMALL_SIZE if self.cell >= natural else SMALLEST
        self.written = self.cell >= natural * SMALLEST / SMALL_SIZE
        self.groups = self._groups(room - self.label)
        across = max(sum(map(self._slot, each)) + _GAP * (len(each) - 1) for each in self.groups)
        self.beside = ruler.width(block.title, TEXT_SIZE, "bold") + _PAD  # where the formula stands
        title = self.beside + ruler.width(block.formula, SMALL_SIZE)
        self.width = min(room, max(self.label + across, title, _NOTE if block.notes else 0.0))
        self.on_one_line = title <= self.width + 1e-9

    def _slot(self, matrix: Shown) -> float:
        return max(_NARROWEST if matrix.heading else 0.0, matrix.values.shape[1] * self.cell)

    def _groups(self, room: float) -> list[list[Shown]]:
        """Put as many matrices beside each other as there is room for."""
        groups: list[list[Shown]] = [[]]
        for matrix in self.block.matrices:
            taken = sum(self._slot(one) + _GAP for one in groups[-1])
            if groups[-1] and taken + self._slot(matrix) > room + 1e-9:
                groups.append([])
            groups[-1].append(matrix)
        return groups

    def draw(self, page: Page, left: float, top: float) -> float:
        """Draw it with its upper left corner there, in inches; return where it ends."""
        block, ruler = self.block, self.ruler
        titles = ruler.wrap(block.title, self.width, TEXT_SIZE, "bold")
        end = page.write(left, top, titles, points=TEXT_SIZE, weight="bold")
        if self.on_one_line:
            page.write(left + self.beside, top + 0.012, [block.formula], color=MUTED)
        else:
            lines = ruler.wrap(block.formula, self.width, SMALL_SIZE)
            end = page.write(left, end, lines, color=MUTED)
        end += 0.02
        for group in self.groups:
            end = self._draw_group(page, group, left, end) + _PAD
        for good, line in block.said:
            lines = ruler.wrap(line, self.width, SMALL_SIZE)
            end = page.write(left, end, lines, color=INK if good else ACCENT)
        for note in block.notes:
            lines = ruler.wrap(f"{literal(note, 400)}.", self.width, SMALL_SIZE)
            end = page.write(left, end, lines, color=MUTED)
        return end

    def _draw_group(self, page: Page, group: Sequence[Shown], left: float, top: float) -> float:
        """Draw matrices beside each other, the rows labelled once; return where they end."""
        wrapped = [self.ruler.wrap(one.heading, self._slot(one), SMALL_SIZE) for one in group]
        start = top + max(map(len, wrapped)) * line_height(SMALL_SIZE)
        above = line_height(SMALL_SIZE) + 0.02 if self.written else 0.02
        left += self.label
        numbers = torch.cat([one.values.flatten() for one in self.block.matrices])
        numbers = numbers[~numbers.isnan()]
        for place, (matrix, lines) in enumerate(zip(group, wrapped, strict=True)):
            m, n = matrix.values.shape
            # All headings end on the line above the labels of the columns.
            page.write(left, start - len(lines) * line_height(SMALL_SIZE), lines, color=MUTED)
            ax = page.axes(left, start + above, n * self.cell, m * _ROW)
            self._draw(ax, matrix, float(numbers.min()), float(numbers.max()))
            self._label(ax, n, rows=place == 0)
            left += self._slot(matrix) + _GAP
        return start + above + len(self.block.rows) * _ROW

    def _draw(self, ax: Axes, matrix: Shown, low: float, high: float) -> None:
        """Draw the cells of a matrix with its numbers; hatch what cannot be told."""
        m, n = matrix.values.shape
        colours = Normalize(low, low + max(high - low, 1e-12) / _DARKEST)
        values = matrix.values.clone()
        values[:, self.block.told :] = torch.nan
        mesh = draw_cells(ax, values, weight_colours(), colours)
        if not any(text for row in matrix.texts for text in row):
            ax.spines[:].set(visible=True, color=FAINT, linewidth=0.5)
        for i, j in np.ndindex(m, max(0, n - self.block.told)):
            corner = (self.block.told + j + _INSET[0], i + _INSET[1])
            ax.add_patch(
                Rectangle(corner, *_FRAMED, fc="white", ec=FAINT, hatch="/////", linewidth=0)
            )
        if self.written:
            texts = [[text.replace("-", "\N{MINUS SIGN}") for text in row] for row in matrix.texts]
            write_numbers(ax, mesh, values, texts, self.points)
        if matrix.follows is not None:
            for i, j in (~matrix.follows).nonzero().tolist():
                frame(ax, (j + _INSET[0], i + _INSET[1]), _FRAMED)

    def _label(self, ax: Axes, columns: int, *, rows: bool) -> None:
        """Name the columns above a matrix, and its rows where it is the first."""
        ax.xaxis.tick_top()
        above = [literal(label, 8) for label in self.block.columns[:columns]]
        above = [self.ruler.clip(name, self.cell, self.points) for name in above]
        if self.written:
            ax.set_xticks(np.arange(columns) + 0.5, above, fontsize=self.points, color=MUTED)
        else:
            ax.set_xticks([])
        names = [literal(label) for label in (self.block.rows if rows else ())]
        names = [self.ruler.clip(name, self.label - _PAD, SMALL_SIZE) for name in names]
        ax.set_yticks(np.arange(len(names)) + 0.5, names, fontsize=SMALL_SIZE)
        ax.tick_params(length=0, pad=1.5)
