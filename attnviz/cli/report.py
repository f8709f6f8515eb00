"""What a command says: results on standard output, for people through rich, or as JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

from attnviz.cli.typed import save
from attnviz.metrics import Found, HeadRanking, HeadScore
from attnviz.naming import literal
from attnviz.plot.style import weight_colours
from attnviz.records import AgreementReport, AttentionMap, AttentionResult, Side, WorkedExample
from attnviz.stages import STAGES
from attnviz.storage import Drawn, to_data, to_json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RAMP = " .:-=+*#%@"  # light to dark, where there are no colours
_LABEL = 16  # cells of a row's label at most


class Terminal(Console):
    """A console that no character steers which came with a text, a model or a kept result."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Render, with control characters made visible."""
        for text, style, control in super().render(renderable, options):
            lines = text.split("\n")
            shown = text if control else "\n".join(literal(line, len(line)) for line in lines)
            yield Segment(shown, style, control)


console = Terminal(highlight=False, soft_wrap=True)


def conclude(
    drawn: Drawn,
    path: Path | None,
    figure: Callable[[], Figure],
    tell: Callable[[], None],
    *,
    json: bool,
    force: bool,
) -> int:
    """Write the file, say what is in it, as JSON or by `tell`, and return the exit code."""
    save(path, drawn, figure, force=force)
    print_json(to_data(drawn)) if json else tell()
    if isinstance(drawn, WorkedExample):  # no model, nothing to agree with
        print_written(path, json=json)
        return 0
    return finish(drawn.agreement, path, json=json)


def finish(agreement: AgreementReport, path: Path | None, *, json: bool) -> int:
    """Print the verdict and where the file is; return the exit code."""
    good = agreement.verdict == "verified"
    if not (json and good):
        _aside(json).print(Text(agreement.summary(), style="green" if good else "bold red"))
    print_written(path, json=json)
    return 0 if good else 5


def print_written(path: Path | None, *, json: bool) -> None:
    """Say where the file is."""
    if path is not None:
        _aside(json).print(Text(f"wrote {path}"))


def _aside(json: bool) -> Console:
    """Return standard error where standard output is for programs."""
    return Terminal(stderr=True, highlight=False, soft_wrap=True) if json else console


def print_json(data: dict[str, Any]) -> None:
    """Print data as one JSON object."""
    sys.stdout.write(to_json(data) + "\n")


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
        what = "words" if drawn.sides == (Side(), Side()) else "positions"
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


def print_stages(result: AttentionResult) -> None:
    """Print for each stage the largest difference over all layers and heads."""
    agreement = result.agreement
    table = Table("stage", "compared", "largest difference", "of what passes", "", box=None)
    others = {check.stage: None for check in agreement.checks if check.stage not in STAGES}
    for stage in (*STAGES, *others):
        checks = [check for check in agreement.checks if check.stage == stage]
        if not checks:
            table.add_row(stage, "0", "not compared", "", "")
            continue
        worst = max(check.strain for check in checks)
        failed = [check for check in checks if not check.passed]
        table.add_row(
            stage,
            f"{sum(check.compared for check in checks):,}",
            f"{agreement.largest_difference(stage):.1e}",
            f"{worst:.0%}",
            Text("differs", "bold red") if failed else Text("agrees", "green"),
        )
    console.print(Text(f"{result.provenance.model}, {agreement.dtype}, {agreement.device}", "bold"))
    console.print(table)
    reasons = {reason for _, _, reason in agreement.not_compared}
    for reason in sorted(reasons):
        console.print(Text(f"not compared: {reason}"))
    layers = len(result.streamed or result.records)
    caught = layers - len(agreement.unproven)
    console.print(
        Text(f"a scale 1 % off, planted on purpose: caught in {caught} of {layers} layers")
    )


def _of(what: str, heads: Sequence[HeadScore], total: int) -> str:
    listed = f": {_heads(heads)}" if heads else ""
    return f"{what} in {len(heads)} of {total} heads{listed}"


def _heads(heads: Sequence[HeadScore], *, scores: bool = False) -> str:
    return ", ".join(
        f"{head.layer}.{head.head}" + (f" ({head.score:.2f})" if scores else "") for head in heads
    )
