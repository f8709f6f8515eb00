"""The command `survey` and what it says: what every head does over a corpus."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnviz.cli.options import Debug, Device, DeviceName, Dtype, ModelName, Truncate, Width

if TYPE_CHECKING:
    from attnviz.records import Census

_SHOWN = 3  # heads of each statistic


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
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="Folder for the tables and the figure."),
    ] = Path("survey"),
    column: Annotated[str, typer.Option(help="The column, or key, that holds the text.")] = "text",
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out what cannot be read, and say how many.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the survey in the folder.")
    ] = False,
    engine: Annotated[
        Where, typer.Option(help="This machine alone, or all machines of a Ray cluster.")
    ] = Where.local,
    address: Annotated[
        str | None,
        typer.Option(help="Of the Ray cluster; by default one is started on this machine."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of shuffles and resamples.", min=0)] = 0,
    width: Width = 183.0,
    model: ModelName = None,
    device: DeviceName = Device.auto,
    dtype: Dtype = None,
    truncate: Truncate = False,
    debug: Debug = False,
) -> int:
    """Measure what every head does over a corpus, with intervals, beside what chance would give.

    The folder gets the long table in parts (sentence, layer, head, statistic, value, and the same
    for shuffled keys and shuffled tokens), a summary of every head, and a figure.
    """
    from attnviz.cli import report
    from attnviz.cli.progress import watched
    from attnviz.corpus import survey as measure
    from attnviz.models import load

    with watched():
        found = measure(
            corpus,
            model=load(model, device=device.value, dtype=dtype),
            out=output,
            column=column,
            truncate=truncate,
            skip_bad=skip_bad,
            resume=resume,
            engine=engine.value,
            address=address,
            seed=seed,
        )
    from attnviz.plot import census, save_figure

    save_figure(census(found, width=width), output / "census.png")
    print_census(found)
    return report.finish(found.agreement, output, json=False)


def print_census(result: Census) -> None:
    """Print which heads have a role, and of each statistic the heads that have most of it."""
    from rich.table import Table
    from rich.text import Text

    from attnviz.captions import literal
    from attnviz.cli.report import console

    model = literal(result.provenance.model)
    said = f"{len(result.heads)} heads of {model} on {result.texts:,} texts"
    console.print(Text(said, "bold"))
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for name in ("statistic", "mean of all heads", "shuffled keys", "shuffled tokens", "most"):
        table.add_column(name, justify="left" if name in ("statistic", "most") else "right")
    for at, name in enumerate(result.statistics):
        best = result.mean[:, at].nan_to_num(-1.0).topk(min(_SHOWN, len(result.heads))).indices
        most = ", ".join(f"{result.heads[n]} ({result.mean[n, at]:.2f})" for n in best.tolist())
        means = (
            float(each[:, at].nanmean()) for each in (result.mean, result.even, result.shuffled)
        )
        cells = ("–" if value != value else f"{value:.3f}" for value in means)
        table.add_row(name, *cells, most)
    console.print(table)
    by_role: dict[str, list[str]] = {}
    for head, role in zip(result.heads, result.roles, strict=True):
        if role:
            by_role.setdefault(role, []).append(str(head))
    for role, heads in by_role.items():
        console.print(Text(f"{role}: ", "bold").append(", ".join(heads), "not bold"))
    for note in result.notes:
        console.print(Text(note, "dim"))
