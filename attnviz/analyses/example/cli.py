"""The command `example`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from attnviz.analyses.example.bundled import check_source
from attnviz.terminal.options import ConsoleOptions, FigureOptions, InputOptions, option_groups


@option_groups()
def example(
    *,
    name: Annotated[
        str | None, typer.Argument(help="phones, cat or likes.", show_default=False)
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(help="JSON file with your own matrices and the printed results."),
    ] = None,
    figure: FigureOptions = FigureOptions(),
    console: ConsoleOptions,
) -> int:
    """Replay a worked example: each stage from its inputs, and from the printed stages before.

    Each printed cell is reported to follow or not to follow. An error in a book is not an error of
    the command: the exit code is 0.
    """
    check_source(name, file)
    path = figure.path(json=console.json, inputs=InputOptions(source=file))

    from attnviz.analyses.example.compute import example as replay
    from attnviz.terminal.console import report

    result = replay(name, file=file)
    return report(
        result,
        draw=lambda: result.plot(**figure.appearance),
        path=path,
        force=figure.force,
        json=console.json,
    )


COMMANDS = (example,)
