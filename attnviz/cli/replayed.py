"""What the command `example` says: the matrices of each stage beside each other, and what differs.

A cell that does not follow carries a ≠, so that it is seen without colours too.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text
from torch import Tensor

from attnviz.examples.wording import headings, sentences, shown_decimals, slips_sentence
from attnviz.plot.style import literal
from attnviz.records import GivenMatrix, ReplayedStage, WorkedExample
from attnviz.storage import to_data, to_json

_NARROW = 100  # what a file or a pipe is given instead of the width of a terminal
_LABEL = 12  # cells of a row's or a column's label at most
_PADS = (2, 1)  # cells before each column, and where that is too wide
_GAPS = (3, 1)  # cells between two matrices, and where that is too wide
_WRONG, _UNTOLD = "bold red", "dim"


def print_data(worked: WorkedExample) -> None:
    """Print everything as one JSON object."""
    sys.stdout.write(to_json(to_data(worked)) + "\n")


def print_written(path: Path | None, *, json: bool) -> None:
    """Say where the file is, on standard error where standard output is for programs."""
    if path is not None:
        _console(stderr=json).print(Text(f"wrote {path}"))


def print_example(worked: WorkedExample) -> None:
    """Print every stage, and a summary."""
    console = _console()
    console.print(Text(literal(worked.title, 120), "bold"))
    console.print()
    _print_given(console, worked.given)
    for number, stage in enumerate(worked.stages, start=1):
        console.print()
        _print_stage(console, number, stage)
    console.print()
    counts = worked.count()
    good = counts["from_inputs"] + counts["untold"] == counts["printed"] and not worked.slips
    console.print(Text(worked.summary(), "bold green" if good else "bold"))
    if worked.slips:
        console.print(Text(f"{slips_sentence(worked)}.", _WRONG))


def _console(*, stderr: bool = False) -> Console:
    console = Console(highlight=False, stderr=stderr)
    if not console.is_terminal:
        console = Console(highlight=False, stderr=stderr, width=_NARROW)
    return console


def _print_stage(console: Console, number: int, stage: ReplayedStage) -> None:
    m, n = stage.from_inputs.shape
    of = "" if stage.head is None else f"head {stage.head}: "
    title = Text(f"{number}  {of}{stage.title}", "bold")
    console.print(title.append(f"   {stage.formula}   ({m}, {n})", "not bold dim"))
    labels = [literal(label, _LABEL) for label in stage.rows]
    side = max(map(cell_len, labels)) + 2
    names = [Text(set_cell_size("", side))] * 2
    names += [Text(set_cell_size(f"  {label}", side)) for label in labels]
    widths = [[_block(stage, *heading, pad) for heading in headings(stage)] for pad in _PADS]
    for group, gap in _side_by_side(widths, console.width - side):
        _print_lines(console, [names, *group], gap)
    for good, sentence in sentences(stage):
        mark = Text("= ", "green") if good else Text("≠ ", _WRONG)
        console.print(mark.append(literal(sentence, 2000), "not bold default"))
    for note in stage.notes:
        console.print(Text(literal(note, 2000), "dim"))


def _print_given(console: Console, given: Sequence[GivenMatrix]) -> None:
    """Print what all is computed from, each matrix with the labels of its rows."""
    console.print(Text("given", "bold"))
    widths = [[_given(one, pad) for one in given] for pad in _PADS]
    for group, gap in _side_by_side(widths, console.width):
        tallest = max(map(len, group))
        padded = [
            block + [Text(" " * block[0].cell_len)] * (tallest - len(block)) for block in group
        ]
        _print_lines(console, [[Text("")] * tallest, *padded], gap)


def _given(one: GivenMatrix, pad: int) -> list[Text]:
    """Return the lines of a given matrix; features without tokens beside them are not numbered."""
    labels = [literal(label, _LABEL) if one.of_tokens else "" for label in one.rows]
    side = max(map(cell_len, labels))
    numbers = [
        [Text(set_cell_size(label, side)), *(Text(f"{x:.{one.decimals}f}") for x in row)]
        for label, row in zip(labels, one.values.tolist(), strict=True)
    ]
    above = [literal(label, _LABEL) if one.of_tokens else "" for label in one.columns]
    return _lines(f"  {one.key}", ["", *above], numbers, pad)


def _print_lines(console: Console, blocks: Sequence[list[Text]], gap: int) -> None:
    """Print the first block, and the others beside it with a gap between them."""
    for first, *others in zip(*blocks, strict=True):
        line = first + Text(" " * gap).join(others)
        line.rstrip()
        console.print(line, no_wrap=True, overflow="crop")


def _block(stage: ReplayedStage, heading: str, which: str, pad: int) -> list[Text]:
    """Return the lines of one matrix: its heading, the labels of its columns, and its rows."""
    matrix: Tensor = getattr(stage, which)
    follows: Tensor | None = getattr(stage, f"{which}_follows", None)
    digits = (stage.decimals or 0) if which == "printed" else shown_decimals(stage)
    told = stage.from_inputs.shape[1]
    cells = [
        [
            Text(f"{value:.{digits}f}", _UNTOLD if j >= told else "")
            if follows is None or bool(follows[i, j])
            else Text(f"≠{value:.{digits}f}", _WRONG)
            for j, value in enumerate(row)
        ]
        for i, row in enumerate(matrix.tolist())
    ]
    labels = [literal(label, _LABEL) for label in stage.columns[: matrix.shape[1]]]
    return _lines(heading, labels, cells, pad)


def _lines(
    heading: str, labels: Sequence[str], cells: Sequence[Sequence[Text]], pad: int
) -> list[Text]:
    widths = [
        max(cell_len(label), *(cell.cell_len for cell in column)) + pad
        for label, column in zip(labels, zip(*cells, strict=True), strict=True)
    ]
    wide = max(sum(widths), cell_len(heading) + pad)
    lines = [_right([Text(heading, "italic")], [wide], wide)]
    lines.append(_right([Text(label, "dim") for label in labels], widths, wide))
    return lines + [_right(row, widths, wide) for row in cells]


def _right(cells: Sequence[Text], widths: Sequence[int], wide: int) -> Text:
    """Put cells against the right edges of their columns."""
    line = Text(" " * (wide - sum(widths)))
    for cell, width in zip(cells, widths, strict=True):
        line.append(" " * (width - cell.cell_len)).append_text(cell)
    return line


def _side_by_side(
    widths: Sequence[list[list[Text]]], room: int
) -> list[tuple[list[list[Text]], int]]:
    """Group blocks into as few rows as there is room for, as wide as that allows.

    widths : the same blocks, each time narrower.
    """
    found = [(_grouped(blocks, room, gap), gap) for blocks in widths for gap in _GAPS]
    groups, gap = min(found, key=lambda each: len(each[0]))
    return [(group, gap) for group in groups]


def _grouped(blocks: Sequence[list[Text]], room: int, gap: int) -> list[list[list[Text]]]:
    groups: list[list[list[Text]]] = [[]]
    for block in blocks:
        taken = sum(each[0].cell_len + gap for each in groups[-1])
        if groups[-1] and taken + block[0].cell_len > room:
            groups.append([])
        groups[-1].append(block)
    return groups
