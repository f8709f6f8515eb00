"""A replayed example as text: the matrices of each stage side by side, and what differs.

A cell that does not follow carries a ≠, so that it shows without colors too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

from rich.align import Align
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from attnviz.analyses.example.result import ExampleResult, ReplayedStage
from attnviz.analyses.example.wording import (
    Shown,
    matrices,
    sentences,
    slips_sentence,
)
from attnviz.results.words import literal

_NARROW = 100  # what a file or a pipe is given instead of the width of a terminal
_LABEL = 12  # cells of a row's or a column's label at most
_HEADING = 30  # cells that a heading may take, however narrow its matrix
_GAPS = ((2, 3), (2, 1), (1, 2))  # cells between columns and between matrices; fewer where needed
_WRONG, _UNTOLD = "bold red", "dim"
Vertical: TypeAlias = Literal["top", "bottom"]


def as_text(worked: ExampleResult, console: Console, options: ConsoleOptions) -> RenderResult:
    """Yield what a terminal shows: every stage, and a summary."""
    width = options.max_width if console.is_terminal else _NARROW
    options = options.update(width=width, no_wrap=None, overflow=None)
    for renderable in _lines(worked, width):
        yield from console.render(renderable, options)


def _lines(worked: ExampleResult, width: int) -> Iterator[Text | Table]:
    yield Text(literal(worked.title, 120), "bold")
    yield Text("\ngiven", "bold")
    yield from _side_by_side([_given(worked, pad) for pad, _ in _GAPS], "top", width)
    for number, stage in enumerate(worked.stages, start=1):
        yield Text()
        yield from _stage_lines(number, stage, width)
    yield Text()
    counts = worked.count()
    good = counts["from_inputs"] + counts["untold"] == counts["printed"] and not worked.slips
    yield Text(worked.summary(), "bold green" if good else "bold")
    if worked.slips:
        yield Text(f"{slips_sentence(worked)}.", _WRONG)


def _stage_lines(number: int, stage: ReplayedStage, width: int) -> Iterator[Text | Table]:
    m, n = stage.from_inputs.shape
    of = "" if stage.head is None else f"head {stage.head}: "
    title = Text(f"{number}  {of}{stage.title}", "bold")
    yield title.append(f"   {stage.formula}   ({m}, {n})", "not bold dim")
    tries = [
        [_block(matrix, stage.columns, pad, n) for matrix in matrices(stage)] for pad, _ in _GAPS
    ]
    yield from _side_by_side(tries, "bottom", width, _row_labels(stage.rows))
    for good, sentence in sentences(stage):
        mark = Text("= ", "green") if good else Text("≠ ", _WRONG)
        yield mark.append(literal(sentence, 2000), "not bold default")
    for note in stage.notes:
        yield Text(literal(note, 2000), "dim")


def _given(worked: ExampleResult, pad: int) -> list[Table]:
    """Return what all is computed from; features without tokens beside them are not numbered."""
    blocks = []
    for matrix in worked.given:
        n = len(matrix.columns)
        columns = matrix.columns if matrix.of_tokens else ("",) * n
        block = _block(Shown(matrix.key, matrix.values, matrix.texts), columns, pad, n)
        if matrix.of_tokens:
            block = _row([_row_labels(matrix.rows), block], "bottom", 0)
        blocks.append(block)
    return blocks


def _row_labels(labels: Sequence[str]) -> Table:
    table = Table.grid()
    for label in labels:
        table.add_row(Text(literal(label, _LABEL), no_wrap=True))
    return table


def _block(shown: Shown, labels: Sequence[str], pad: int, known: int) -> Table:
    """Return one matrix: its heading, the labels of its columns, and its numbers.

    known : the number of columns that can be computed.
    """
    cells = Table(box=None, padding=(0, 0, 0, pad), header_style="dim")
    for label in labels[: shown.values.shape[1]]:
        cells.add_column(Text(literal(label, _LABEL)), justify="right", no_wrap=True)
    for i, row in enumerate(shown.texts):
        cells.add_row(*(_cell(shown, i, j, text, known) for j, text in enumerate(row)))
    block = Table.grid()
    block.add_column(max_width=max(_width(cells), _HEADING + pad), justify="right")
    block.add_row(Text(" " * pad + shown.heading, "italic"))
    block.add_row(Align.right(cells))
    return block


def _cell(shown: Shown, i: int, j: int, text: str, known: int) -> Text:
    if j >= known or shown.follows is None or shown.follows[i, j]:
        return Text(text, _UNTOLD if j >= known else "")
    return Text(f"≠{text}", _WRONG)


def _side_by_side(
    tries: Sequence[list[Table]], vertical: Vertical, width: int, *first: Table
) -> Iterator[Text | Table]:
    """Yield blocks in as few lines as there is room for, each line after what comes first.

    tries : the blocks, each time narrower.
    """
    gaps = [gap for _, gap in _GAPS]
    broken = [_broken(width, blocks, gap, first) for blocks, gap in zip(tries, gaps, strict=True)]
    for line, gap in min(broken, key=len):
        row = _row([*first, *line], vertical, gap)
        if _width(row) <= width:
            yield row
        else:
            yield Text("too wide for this terminal; see the file, or --json", _UNTOLD)


def _broken(
    width: int, blocks: Sequence[Table], gap: int, first: Sequence[Table]
) -> list[tuple[list[Table], int]]:
    """Return the blocks broken into lines, and the gap between them."""
    lines: list[list[Table]] = [[]]
    for block in blocks:
        longer = _row([*first, *lines[-1], block], "top", gap)
        if lines[-1] and _width(longer) > width:
            lines.append([])
        lines[-1].append(block)
    return [(line, gap) for line in lines]


def _width(table: Table) -> int:
    """Return how wide a table is where there is room for all of it."""
    return Console(width=10_000).measure(table).maximum


def _row(blocks: Sequence[Table], vertical: Vertical, gap: int) -> Table:
    row = Table.grid(padding=(0, gap, 0, 0))
    for _ in blocks:
        row.add_column(vertical=vertical)
    row.add_row(*blocks)
    return row
