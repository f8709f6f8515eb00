"""The commands `survey` and `compare`, and what they say: what every head does over a corpus."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

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
    report.print_json(to_data(found)) if json else report.console.print(found)
    return report.finish(found.agreement, figure.parent, json=json)
