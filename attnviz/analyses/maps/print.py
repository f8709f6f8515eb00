"""Attention maps and rankings of heads in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from rich.style import Style
from rich.table import Table
from rich.text import Text

from attnviz.analyses.maps.heads import Found, HeadRanking, HeadScore
from attnviz.analyses.maps.result import AttentionMap
from attnviz.figures.style import weight_colours
from attnviz.results import AxisGeometry
from attnviz.results.labels import literal
from attnviz.terminal.console import console

if TYPE_CHECKING:
    pass


RAMP = " .:-=+*#%@"  # light to dark, where there are no colours


_LABEL = 16  # cells of a row's label at most


def print_map(drawn: AttentionMap) -> None:
    """Print a map as blocks of colour, or of a ramp of characters where there are no colours."""
    weights = drawn.weights.float().nan_to_num()
    top = max(drawn.top, 1e-12)
    wide = 2 if weights.shape[1] < 10 else 3
    rows = [literal(label, _LABEL) for label in drawn.rows]
    label = max(map(cell_len, rows)) + 3
    heads = ", ".join(map(str, drawn.heads))
    console.print(Text(f"layer {drawn.layer}, head {heads}, {drawn.provenance.model}", "bold"))
    if label + 1 + wide * weights.shape[1] > console.width:
        what = "words" if drawn.sides == (AxisGeometry(), AxisGeometry()) else "positions"
        what = "parts of the text" if drawn.sides[0].cell > 1 else what
        console.print(Text(f"{len(rows)} {what} are too many for this terminal; see the file"))
        return
    numbers = "".join(f"{number:>{wide}}" for number in range(len(drawn.columns)))
    console.print(Text(f"{'':{label + 1}}{numbers}", "dim"))
    colours = weight_colours()
    for number, (name, row) in enumerate(
        zip(rows, (weights / top).clamp(max=1).tolist(), strict=True)
    ):
        line = Text(f"{number:>2} {set_cell_size(name, label - 3)} ")
        for weight in row:
            if console.no_color or not console.is_terminal:
                line.append(RAMP[min(int(weight * len(RAMP)), len(RAMP) - 1)] * wide)
            else:
                red, green, blue, _ = colours(weight, bytes=True)
                line.append(" " * wide, Style(bgcolor=f"rgb({red},{green},{blue})"))
        console.print(line)
    console.print(Text(f"darkest: {top:.2f}; rows are queries, columns keys", "dim"))
    for note in drawn.notes:
        console.print(Text(note, "dim"))


def print_ranking(ranking: HeadRanking, *, layer: int | None = None, most: int = 6) -> None:
    """Print the best heads of a ranking, of all layers or of one."""
    scores = [score for score in ranking.scores if layer in (None, score.layer)]
    best = _heads(scores[:most], scores=True)
    console.print(Text(f"{ranking.meaning}: {best}"))


def print_found(found: Found, *, most: int = 10) -> None:
    """Print which heads weigh one word most for another, and above which words."""
    table = Table("head", "weight", "rank among the words", box=None, header_style="dim")
    for head in found.heads[:most]:
        table.add_row(f"{head.layer}.{head.head}", f"{head.score:.3f}", str(head.rank))
    console.print(Text(f"weight from “{found.query}” to “{found.key}”, largest first", "bold"))
    console.print(table)
    total = len(found.heads)
    console.print(Text(_of(f"above every word but “{found.query}” itself", found.first, total)))
    if found.others:
        words = " and ".join(f"“{word}”" for word in found.others)
        console.print(Text(_of(f"above {words}", found.above_function_words, total)))


def _of(what: str, heads: Sequence[HeadScore], total: int) -> str:
    listed = f": {_heads(heads)}" if heads else ""
    return f"{what} in {len(heads)} of {total} heads{listed}"


def _heads(heads: Sequence[HeadScore], *, scores: bool = False) -> str:
    return ", ".join(
        f"{head.layer}.{head.head}" + (f" ({head.score:.2f})" if scores else "") for head in heads
    )
