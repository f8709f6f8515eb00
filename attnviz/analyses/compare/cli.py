"""The command `compare`."""

from __future__ import annotations

from typing import Annotated

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
    from attnviz.analyses.survey.corpus import check_corpus_name
    from attnviz.terminal.console import progress_bar, report

    check_corpus_name(corpus)
    models = run.load(first), run.load(second)
    with progress_bar("comparing the models"):
        result = measure(
            corpus,
            models=models,
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
