"""The command `compare` and what it prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from attnviz.terminal.options import (
    Column,
    ConsoleOptions,
    FigureOptions,
    RunOptions,
    Seed,
    SkipBad,
    option_groups,
)

if TYPE_CHECKING:
    from attnviz.analyses.compare.result import CompareResult

_SHOWN = 2  # statistics of each head
_LISTED = 10  # heads


@option_groups(without=["model", "mode"])
def compare(
    *,
    first: Annotated[str, typer.Argument(help="Hub name or folder, as for --model.")],
    second: Annotated[str, typer.Argument(help="Another checkpoint of the same architecture.")],
    corpus: Annotated[str, typer.Argument(help="File of texts, as for survey; or -.")],
    figure: FigureOptions = FigureOptions("comparison.png"),
    column: Column = "text",
    skip_bad: SkipBad = False,
    seed: Seed = 0,
    run: RunOptions,
    console: ConsoleOptions,
) -> int:
    """Compare two checkpoints head by head over a corpus: which heads changed, with intervals."""
    path = figure.path(json=console.json)

    from attnviz.analyses.compare.compute import compare as measure
    from attnviz.analyses.compare.plot import compare as draw
    from attnviz.terminal.console import progress_bar, report

    with progress_bar():
        result = measure(
            corpus,
            models=(run.load(first), run.load(second)),
            column=column,
            truncate=run.truncate,
            skip_bad=skip_bad,
            seed=seed,
        )
    return report(
        result,
        lambda: draw(result, width=figure.width),
        lambda: print_comparison(result),
        path=path,
        force=figure.force,
        json=console.json,
    )


def print_comparison(result: CompareResult) -> None:
    """Print the heads that are furthest apart, and what each surely does more or less."""
    from rich.table import Table
    from rich.text import Text

    from attnviz.results.labels import literal
    from attnviz.terminal.console import console

    first, second = (literal(name) for name in result.names)
    said = f"{len(result.heads)} heads of {second} beside those of {first}, {result.texts:,} texts"
    console.print(Text(said, "bold"))
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for name in ("head", "apart", "95 %", "changed most, surely"):
        table.add_column(name, justify="left" if name == "changed most, surely" else "right")
    for n in result.apart.argsort(descending=True).tolist()[:_LISTED]:
        sure = [at for at in range(len(result.statistics)) if result.p_value[n, at] < 0.01]
        # They have different units: how much it is beside what texts make uncertain of it.
        wide = (result.high - result.low)[n].clamp(min=1e-12)
        sizes = {at: abs(float(result.change[n, at] / wide[at])) for at in sure}
        most = sorted(sizes, key=sizes.__getitem__, reverse=True)[:_SHOWN]
        told = [f"{result.statistics[at]} {result.change[n, at]:+.2g}" for at in most]
        table.add_row(
            str(result.heads[n]),
            f"{result.apart[n]:.2g}",
            f"{result.apart_low[n]:.2g} to {result.apart_high[n]:.2g}",
            ", ".join(told) or "–",
        )
    console.print(table)
    for note in result.notes:
        console.print(Text(note, "dim"))
