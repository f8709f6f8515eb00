"""The command `survey` and what it prints."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnviz.terminal.options import (
    Column,
    ConsoleOptions,
    Force,
    RunOptions,
    Seed,
    SkipBad,
    Width,
    option_groups,
)

if TYPE_CHECKING:
    from attnviz.analyses.survey.result import SurveyResult

_SHOWN = 2  # heads of each statistic


class Engine(StrEnum):
    """Where the texts are measured."""

    local = "local"
    ray = "ray"


@option_groups(without=["mode"])
def survey(
    *,
    corpus: Annotated[
        str,
        typer.Argument(
            help="File of texts: .txt (one per line), .jsonl, .csv, .tsv or .parquet; or - for "
            "standard input.",
            show_default=False,
        ),
    ],
    output: Annotated[  # not a Path, which would turn an empty name into the current folder
        str,
        typer.Option(
            "--output", "-o", help="Folder for the tables and the figure.", metavar="<path>"
        ),
    ] = "survey",
    column: Column = "text",
    skip_bad: SkipBad = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the survey in the folder.")
    ] = False,
    force: Force = False,
    engine: Annotated[
        Engine, typer.Option(help="Run on this machine, or on all machines of a Ray cluster.")
    ] = Engine.local,
    address: Annotated[
        str | None,
        typer.Option(help="Address of the Ray cluster. Without it, Ray starts on this machine."),
    ] = None,
    seed: Seed = 0,
    width: Width = 183.0,
    run: RunOptions,
    console: ConsoleOptions,
) -> int:
    """Measure what every head does over a corpus, with confidence intervals and chance levels.

    The folder gets the long table in parts (sentence, layer, head, statistic, value, and the same
    for shuffled keys and shuffled tokens), a summary of every head, and a figure.
    """
    from attnviz.analyses.survey.compute import survey as measure
    from attnviz.io.files import check_output
    from attnviz.terminal.console import print_json, print_verdict, progress_bar

    figure = Path(output, "census.png")
    if Path(output).is_dir():
        check_output(figure, force=force)
    with progress_bar():
        result = measure(
            corpus,
            model=run.load(),
            out=output,
            column=column,
            truncate=run.truncate,
            skip_bad=skip_bad,
            resume=resume,
            force=force,
            engine=engine.value,
            address=address,
            seed=seed,
        )
    from attnviz.analyses.survey.plot import survey as draw
    from attnviz.figures.save import save
    from attnviz.io.export import to_data

    save(draw(result, width=width), figure, force=force)
    print_json(to_data(result)) if console.json else print_census(result)
    return print_verdict(result.agreement, figure.parent, json=console.json)


def print_census(result: SurveyResult) -> None:
    """Print which heads have a role, and of each statistic the heads that have most of it."""
    from rich.table import Table
    from rich.text import Text

    from attnviz.results.labels import literal
    from attnviz.terminal.console import console

    model = literal(result.provenance.model)
    said = f"{len(result.heads)} heads of {model} on {result.texts:,} texts"
    console.print(Text(said, "bold"))
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for name in ("statistic", "mean", "shuffled keys", "shuffled tokens", "most (layer.head)"):
        table.add_column(
            name, justify="left" if name.startswith(("statistic", "most")) else "right"
        )
    for at, name in enumerate(result.statistics):
        best = result.mean[:, at].nan_to_num(-1.0).topk(min(_SHOWN, len(result.heads))).indices
        told = [n for n in best.tolist() if result.count[n, at]]
        most = ", ".join(f"{result.heads[n]} ({result.mean[n, at]:.2f})" for n in told) or "–"
        means = (
            float(each[:, at].nanmean()) for each in (result.mean, result.even, result.shuffled)
        )
        cells = ("–" if value != value else f"{value:.3f}" for value in means)
        table.add_row(name, *cells, most)
    console.print(table)
    sizes = ", ".join(map(str, result.cluster_sizes))
    console.print(Text("heads that read alike: ", "bold").append(sizes, "not bold"))
    by_role: dict[str, list[str]] = {}
    for head, role in zip(result.heads, result.roles, strict=True):
        if role:
            by_role.setdefault(role, []).append(str(head))
    for role, heads in by_role.items():
        console.print(Text(f"{role}: ", "bold").append(", ".join(heads), "not bold"))
    for note in result.notes:
        console.print(Text(note, "dim"))
