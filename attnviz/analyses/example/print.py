"""What the command `example` says: the matrices of each stage beside each other, and what differs.

A cell that does not follow carries a ≠, so that it is seen without colours too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

from rich.align import Align
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnviz.analyses.example.result import ExampleResult, ReplayedStage
from attnviz.analyses.example.wording import (
    Shown,
    matrices,
    sentences,
    slips_sentence,
)
from attnviz.results.labels import literal

_NARROW = 100  # what a file or a pipe is given instead of the width of a terminal
_LABEL = 12  # cells of a row's or a column's label at most
_HEADING = 30  # cells that a heading may take, however narrow its matrix
_GAPS = ((2, 3), (2, 1), (1, 2))  # cells between columns and between matrices; fewer where needed
_WRONG, _UNTOLD = "bold red", "dim"
Vertical: TypeAlias = Literal["top", "bottom"]


def print_example(worked: ExampleResult) -> None:
    """Print every stage, and a summary."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_NARROW)
    console.print(Text(literal(worked.title, 120), "bold"))
    console.print(Text("\ngiven", "bold"))
    _print_beside(console, [_given(worked, pad) for pad, _ in _GAPS], "top")
    for number, stage in enumerate(worked.stages, start=1):
        console.print()
        _print_stage(console, number, stage)
    console.print()
    counts = worked.count()
    good = counts["from_inputs"] + counts["untold"] == counts["printed"] and not worked.slips
    console.print(Text(worked.summary(), "bold green" if good else "bold"))
    if worked.slips:
        console.print(Text(f"{slips_sentence(worked)}.", _WRONG))


def _print_stage(console: Console, number: int, stage: ReplayedStage) -> None:
    m, n = stage.from_inputs.shape
    of = "" if stage.head is None else f"head {stage.head}: "
    title = Text(f"{number}  {of}{stage.title}", "bold")
    console.print(title.append(f"   {stage.formula}   ({m}, {n})", "not bold dim"))
    each = [[_block(one, stage.columns, pad, n) for one in matrices(stage)] for pad, _ in _GAPS]
    _print_beside(console, each, "bottom", _side(stage.rows))
    for good, sentence in sentences(stage):
        mark = Text("= ", "green") if good else Text("≠ ", _WRONG)
        console.print(mark.append(literal(sentence, 2000), "not bold default"))
    for note in stage.notes:
        console.print(Text(literal(note, 2000), "dim"))


def _given(worked: ExampleResult, pad: int) -> list[Table]:
    """Return what all is computed from; features without tokens beside them are not numbered."""
    found = []
    for one in worked.given:
        n = len(one.columns)
        columns = one.columns if one.of_tokens else ("",) * n
        block = _block(Shown(one.key, one.values, one.texts), columns, pad, n)
        found.append(_row([_side(one.rows), block], "bottom", 0) if one.of_tokens else block)
    return found


def _side(labels: Sequence[str]) -> Table:
    """Return the labels of the rows."""
    side = Table.grid()
    for label in labels:
        side.add_row(Text(literal(label, _LABEL), no_wrap=True))
    return side


def _block(shown: Shown, labels: Sequence[str], pad: int, told: int) -> Table:
    """Return one matrix: its heading, the labels of its columns, and its numbers."""
    cells = Table(box=None, padding=(0, 0, 0, pad), header_style="dim")
    for label in labels[: shown.values.shape[1]]:
        cells.add_column(Text(literal(label, _LABEL)), justify="right", no_wrap=True)
    for i, row in enumerate(shown.texts):
        cells.add_row(*(_cell(shown, i, j, text, told) for j, text in enumerate(row)))
    block = Table.grid()
    wide = Console(width=10_000).measure(cells).maximum
    block.add_column(max_width=max(wide, _HEADING + pad), justify="right")
    block.add_row(Text(" " * pad + shown.heading, "italic"))
    block.add_row(Align.right(cells))
    return block


def _cell(shown: Shown, i: int, j: int, text: str, told: int) -> Text:
    if j >= told or shown.follows is None or shown.follows[i, j]:
        return Text(text, _UNTOLD if j >= told else "")
    return Text(f"≠{text}", _WRONG)


def _print_beside(
    console: Console, tries: Sequence[list[Table]], vertical: Vertical, *first: Table
) -> None:
    """Print blocks in as few lines as there is room for, each line after what comes first.

    tries : the blocks, each time narrower.
    """
    gaps = [gap for _, gap in _GAPS]
    lines = [_lines(console, *one, first) for one in zip(tries, gaps, strict=True)]
    for line, gap in min(lines, key=len):
        row = _row([*first, *line], vertical, gap)
        if Console(width=10_000).measure(row).maximum <= console.width:
            console.print(row)
        else:
            console.print(Text("too wide for this terminal; see the file, or --json", _UNTOLD))


def _lines(
    console: Console, blocks: Sequence[Table], gap: int, first: Sequence[Table]
) -> list[tuple[list[Table], int]]:
    lines: list[list[Table]] = [[]]
    for block in blocks:
        longer = _row([*first, *lines[-1], block], "top", gap)
        if lines[-1] and Console(width=10_000).measure(longer).maximum > console.width:
            lines.append([])
        lines[-1].append(block)
    return [(line, gap) for line in lines]


def _row(blocks: Sequence[Table], vertical: Vertical, gap: int) -> Table:
    row = Table.grid(padding=(0, gap, 0, 0))
    for _ in blocks:
        row.add_column(vertical=vertical)
    row.add_row(*blocks)
    return row
