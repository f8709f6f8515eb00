"""The command `example`: a book's numbers, page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnviz.terminal import parse as typed
from attnviz.terminal.options import (
    Debug,
    Force,
    Json,
    Width,
    output_file,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def example(
    name: Annotated[
        str | None, typer.Argument(help="phones, cat or likes.", show_default=False)
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(help="Your own matrices and what a book prints of them, as JSON (README)."),
    ] = None,
    output: Annotated[Path | None, output_file("none is written")] = None,
    force: Force = False,
    width: Width = 183.0,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Replay a worked example: each stage from its inputs, and from the printed stages before.

    Every printed cell is said to follow or not to follow. That a book is wrong is no error: the
    exit code is 0.
    """
    from attnviz.analyses.example.compute import example as replay

    path = typed.where(output, None, force=force)
    worked = replay(name, file=file)

    from attnviz.terminal import console as report

    def figure() -> Figure:
        from attnviz.analyses.example.plot import example as draw

        return draw(worked, width=width)

    return report.conclude(
        worked, path, figure, lambda: report.console.print(worked), json=json, force=force
    )
