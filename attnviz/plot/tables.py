"""Matrices as tables on a page: numbers in shaded cells, those that do not follow framed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from torch import Tensor

from attnviz.examples.wording import follow_counts, headings, shown_decimals
from attnviz.plot.layout import SMALLEST, Page, Ruler, line_height
from attnviz.plot.style import (
    ACCENT,
    FAINT,
    INK,
    MUTED,
    SMALL_SIZE,
    TEXT_SIZE,
    literal,
    weight_colours,
)
from attnviz.records import GivenMatrix, ReplayedStage

_CELL = 0.25  # inches that a cell is wide at least, where there is room
_GAP = 0.12  # inches between two matrices of a stage
_ROW = 0.165  # inches that a row of a matrix is high
_PAD = 0.07  # inches that a number keeps free in its cell, and a label from its matrix
_NARROWEST = 0.78  # inches that the heading of a matrix has, however few its columns
_LONGEST = 0.9  # inches to which the label of a row is clipped
_NOTE = 3.2  # inches that a note has to be read in, however narrow its stage
_DARKEST = 0.38  # of the colours: numbers are read on all of them


@dataclass(frozen=True)
class Matrix:
    """One matrix of a block; nothing but NaN where its place is to stay empty.

    follows : which of its numbers do, None where that is not asked. told : how many of its columns
    can be told.
    """

    heading: str
    numbers: Tensor
    digits: int
    follows: Tensor | None = None
    told: int | None = None

    @property
    def texts(self) -> list[list[str]]:
        """The numbers as they are written."""
        return [[self._text(number) for number in row] for row in self.numbers.tolist()]

    @property
    def empty(self) -> bool:
        """Whether there is nothing to write into it."""
        return bool(self.numbers.isnan().all())

    def _text(self, number: float) -> str:
        return "" if self.empty else f"{number:.{self.digits}f}".replace("-", "−")


@dataclass(frozen=True)
class Block:
    """What is drawn under one title: matrices with the same rows, and what is said below.

    said : (whether it is good, a line).
    """

    title: str
    formula: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    matrices: tuple[Matrix, ...]
    said: tuple[tuple[bool, str], ...] = ()
    notes: tuple[str, ...] = ()


def stage_block(number: int, stage: ReplayedStage) -> Block:
    """Return what is drawn of one stage."""
    of = "" if stage.head is None else f"head {stage.head}, "
    m, n = stage.from_inputs.shape
    matrices = [
        Matrix(
            heading,
            getattr(stage, which),
            (stage.decimals or 0) if which == "printed" else shown_decimals(stage),
            getattr(stage, f"{which}_follows", None),
            n,
        )
        for heading, which in headings(stage)
    ]
    if stage.printed is None and stage.from_printed is not None:
        # Its place stays free, so that what is computed stands below what is computed.
        matrices.insert(0, Matrix("not printed", torch.full_like(stage.from_inputs, torch.nan), 0))
    return Block(
        f"{number} {of}{stage.title}",
        f"{stage.formula}   ({m}, {n})",
        stage.rows,
        stage.columns,
        tuple(matrices),
        tuple(follow_counts(stage)),
        stage.notes,
    )


def given_block(given: GivenMatrix) -> Block:
    """Return what is drawn of a matrix that is given."""
    m, n = given.values.shape
    matrix = Matrix("", given.values, given.decimals)
    rows = given.rows if given.of_tokens else ("",) * m
    columns = given.columns if given.of_tokens else ("",) * n
    return Block(f"{given.key}, given", f"({m}, {n})", rows, columns, (matrix,))


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
        most = max(one.numbers.shape[1] for one in block.matrices)
        self.cell = min(natural, (room - self.label) / most)
        self.points = SMALL_SIZE if self.cell >= natural else SMALLEST
        self.written = self.cell >= natural * SMALLEST / SMALL_SIZE
        self.groups = self._groups(room - self.label)
        across = max(sum(map(self._slot, each)) + _GAP * (len(each) - 1) for each in self.groups)
        self.beside = ruler.width(block.title, TEXT_SIZE, "bold") + _PAD  # where the formula stands
        title = self.beside + ruler.width(block.formula, SMALL_SIZE)
        self.width = min(room, max(self.label + across, title, _NOTE if block.notes else 0.0))
        self.on_one_line = title <= self.width + 1e-9

    def _slot(self, matrix: Matrix) -> float:
        return max(_NARROWEST if matrix.heading else 0.0, matrix.numbers.shape[1] * self.cell)

    def _groups(self, room: float) -> list[list[Matrix]]:
        """Put as many matrices beside each other as there is room for."""
        groups: list[list[Matrix]] = [[]]
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

    def _draw_group(self, page: Page, group: Sequence[Matrix], left: float, top: float) -> float:
        """Draw matrices beside each other, the rows labelled once; return where they end."""
        wrapped = [self.ruler.wrap(one.heading, self._slot(one), SMALL_SIZE) for one in group]
        start = top + max(map(len, wrapped)) * line_height(SMALL_SIZE)
        above = line_height(SMALL_SIZE) + 0.02 if self.written else 0.02
        left += self.label
        numbers = torch.cat([one.numbers.flatten() for one in self.block.matrices])
        numbers = numbers[~numbers.isnan()]
        for place, (matrix, lines) in enumerate(zip(group, wrapped, strict=True)):
            m, n = matrix.numbers.shape
            # All headings end on the line above the labels of the columns.
            page.write(left, start - len(lines) * line_height(SMALL_SIZE), lines, color=MUTED)
            ax = page.axes(left, start + above, n * self.cell, m * _ROW)
            self._shade(ax, matrix, float(numbers.min()), float(numbers.max()))
            self._label(ax, n, rows=place == 0)
            left += self._slot(matrix) + _GAP
        return start + above + len(self.block.rows) * _ROW

    def _shade(self, ax: Axes, matrix: Matrix, low: float, high: float) -> None:
        """Draw the cells of a matrix with its numbers."""
        m, n = matrix.numbers.shape
        if matrix.empty:
            ax.add_patch(Rectangle((0, 0), n, m, fill=False, edgecolor=FAINT, linewidth=0.5))
            ax.set(xlim=(0, n), ylim=(m, 0))
            ax.spines[:].set_visible(False)
            return
        ax.pcolormesh(
            matrix.numbers.numpy(),
            cmap=weight_colours(),
            vmin=low,
            vmax=low + max(high - low, 1e-12) / _DARKEST,
            edgecolors="white",
            linewidth=0.6,
        )
        ax.invert_yaxis()
        ax.spines[:].set_visible(False)
        for (i, j), text in np.ndenumerate(np.array(matrix.texts)):
            untold = matrix.told is not None and j >= matrix.told
            if untold:
                _box(ax, i, j, facecolor="white", edgecolor=FAINT, hatch="/////", linewidth=0)
            if self.written:
                ax.text(
                    j + 0.5, i + 0.53, str(text), ha="center", va="center",
                    fontsize=self.points, color=MUTED if untold else INK,
                )  # fmt: skip
            if matrix.follows is not None and not matrix.follows[i, j]:
                _box(ax, i, j, fill=False, edgecolor=ACCENT, linewidth=0.9, zorder=3)

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


def _box(ax: Axes, i: int, j: int, **how: Any) -> None:
    ax.add_patch(Rectangle((j + 0.05, i + 0.09), 0.9, 0.82, **how))
