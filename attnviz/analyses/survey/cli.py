"""The commands `survey` and `compare`, and what they say: what every head does over a corpus."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnviz.terminal import parse as typed
from attnviz.terminal.options import (
    ColumnName,
    Debug,
    Device,
    DeviceMap,
    DeviceName,
    Dtype,
    Force,
    Json,
    ModelName,
    OffloadFolder,
    Seed,
    SkipBad,
    Truncate,
    Width,
)

if TYPE_CHECKING:
    from attnviz.analyses.survey.result import SurveyResult

_SHOWN = 2  # heads of each statistic, or statistics of each head
_LISTED = 10  # heads


class Where(StrEnum):
    """Where the parts of a survey are measured."""

    local = "local"
    ray = "ray"


def survey(
    corpus: Annotated[
        str,
        typer.Argument(
            help="A file of texts: .txt (one in each line), .jsonl, .csv, .tsv or .parquet; or - "
            "for standard input.",
            show_default=False,
        ),
    ],
    output: Annotated[  # of a Path, no name would be the folder that one is in
        str,
        typer.Option(
            "--output", "-o", help="Folder for the tables and the figure.", metavar="<path>"
        ),
    ] = "survey",
    column: ColumnName = "text",
    skip_bad: SkipBad = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the survey in the folder.")
    ] = False,
    force: Force = False,
    engine: Annotated[
        Where, typer.Option(help="This machine alone, or all machines of a Ray cluster.")
    ] = Where.local,
    address: Annotated[
        str | None,
        typer.Option(help="Of the Ray cluster; by default one is started on this machine."),
    ] = None,
    seed: Seed = 0,
    width: Width = 183.0,
    model: ModelName = None,
    device: DeviceName = Device.auto,
    device_map: DeviceMap = None,
    offload_folder: OffloadFolder = None,
    dtype: Dtype = None,
    truncate: Truncate = False,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Measure what every head does over a corpus, with intervals, beside what chance would give.

    The folder gets the long table in parts (sentence, layer, head, statistic, value, and the same
    for shuffled keys and shuffled tokens), a summary of every head, and a figure.
    """
    from attnviz.analyses.survey.compute import survey as measure
    from attnviz.io.files import check_output
    from attnviz.pipeline.attend import load
    from attnviz.terminal import console as report
    from attnviz.terminal.progress import watched

    where = typed.place(device, dtype, device_map, offload_folder)
    figure = Path(output, "census.png")
    if Path(output).is_dir():
        check_output(figure, force=force)
    with watched():
        found = measure(
            corpus,
            model=load(model, **where),
            out=output,
            column=column,
            truncate=truncate,
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

    save(draw(found, width=width), figure, force=force)
    report.print_json(to_data(found)) if json else print_census(found)
    return report.finish(found.agreement, figure.parent, json=json)


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
