"""The command `compare`."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from attnviz.errors import InputError
from attnviz.terminal.options import (
    Column,
    ConsoleOptions,
    FigureOptions,
    RunOptions,
    Seed,
    SkipBad,
    option_groups,
)


@option_groups(without=["model", "mode"])
def compare(
    *,
    models: Annotated[
        list[str],
        typer.Argument(
            help="Two or more checkpoints of one architecture, in order: hub names or folders, as "
            "for --model.",
        ),
    ],
    corpus: Annotated[str, typer.Argument(help="File of texts, as for survey; or -.")],
    figure: FigureOptions = FigureOptions("comparison.png"),
    column: Column = "text",
    skip_bad: SkipBad = False,
    seed: Seed = 0,
    run: RunOptions,
    console: ConsoleOptions,
) -> int:
    """Compare checkpoints head by head over a corpus: which heads changed, with intervals."""
    path = figure.path(json=console.json)

    from attnviz.analyses.compare.compute import compare as measure
    from attnviz.analyses.survey.corpus import check_corpus_name
    from attnviz.models.checkpoint import expect_heads
    from attnviz.terminal.console import progress_bar, report

    check_corpus_name(corpus)
    if len(models) < 2:
        raise InputError(
            "There is nothing to compare. Name two models or more, then the corpus: attnviz "
            "compare MODEL MODEL corpus.txt."
        )
    for name in models:
        expect_heads(name)  # a wrong name is an error before the others are read
    with progress_bar("comparing the models"):
        result = measure(
            corpus,
            models=[partial(run.load, name) for name in models],
            column=column,
            truncate=run.truncate,
            skip_bad=skip_bad,
            seed=seed,
        )
    return report(
        result,
        draw=lambda: result.plot(**figure.appearance),
        path=path,
        force=figure.force,
        json=console.json,
    )


COMMANDS = (compare,)
