"""The command `survey`."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from attnviz.errors import InputError
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


class Engine(StrEnum):
    """Where the texts are measured."""

    local = "local"
    ray = "ray"


@option_groups(without=["mode"])
def survey(
    *,
    corpus: Annotated[
        str | None,
        typer.Argument(
            help="File of texts: .txt (one per line), .jsonl, .csv, .tsv or .parquet; or - for "
            "standard input.",
            show_default=False,
        ),
    ] = None,
    probe: Annotated[
        str | None,
        typer.Option(
            help="In place of a corpus: induction, previous, duplicate, sink, retrieval, ioi or "
            "inhibition, or several with commas. Their roles are confirmed by ablation.",
        ),
    ] = None,
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
    stack: Annotated[
        str | None,
        typer.Option(
            help="linear: measure the linear attention of a model that has softmax attention, too.",
            show_default=False,
        ),
    ] = None,
    width: Width = 183.0,
    run: RunOptions,
    console: ConsoleOptions,
) -> int:
    """Measure what every head does over a corpus, with confidence intervals and chance levels.

    The folder gets the long table in parts (sentence, layer, head, statistic, value, and the same
    for shuffled keys and shuffled tokens), a summary of every head, and a figure.
    """
    from attnviz.analyses.survey.compute import check_options
    from attnviz.analyses.survey.compute import survey as measure
    from attnviz.analyses.survey.corpus import check_corpus_name
    from attnviz.analyses.survey.probes import find_probes
    from attnviz.io.files import check_output
    from attnviz.terminal.console import progress_bar, report

    output = os.path.expanduser(output)  # noqa: PTH111  leaves ~nobody as it is
    check_options(output, engine.value, address)
    figure = Path(output, "survey.png")
    if Path(output).is_dir():
        check_output(figure, force=force)
    if corpus is not None:
        check_corpus_name(corpus)
    if (corpus is None) == (probe is None):
        raise InputError("Give either a corpus or --probe.")
    if probe is not None:
        find_probes(probe)
    model = run.load()
    with progress_bar("measuring the texts"):
        result = measure(
            corpus,
            probe=probe,
            model=model,
            out=output,
            column=column,
            truncate=run.truncate,
            skip_bad=skip_bad,
            resume=resume,
            force=force,
            engine=engine.value,
            address=address,
            seed=seed,
            stack=stack,
        )
    return report(
        result,
        draw=lambda: result.plot(width=width),
        path=figure,
        force=force,
        json=console.json,
        written=figure.parent,
    )


COMMANDS = (survey,)
