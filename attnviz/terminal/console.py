"""What a command says: results on standard output, for people through rich, or as JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from attnviz.io.export import to_data, to_json
from attnviz.results import AgreementReport
from attnviz.results.base import Result
from attnviz.results.labels import literal
from attnviz.terminal.parse import save

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Terminal(Console):
    """A console that no character steers which came with a text, a model or a kept result."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Render, with control characters made visible."""
        for text, style, control in super().render(renderable, options):
            lines = text.split("\n")
            shown = text if control else "\n".join(literal(line, len(line)) for line in lines)
            yield Segment(shown, style, control)


console = Terminal(highlight=False, soft_wrap=True)


def conclude(
    drawn: Result,
    path: Path | None,
    figure: Callable[[], Figure],
    tell: Callable[[], None],
    *,
    json: bool,
    force: bool,
) -> int:
    """Write the file, say what is in it, as JSON or by `tell`, and return the exit code."""
    save(path, drawn, figure, force=force)
    print_json(to_data(drawn)) if json else tell()
    agreement: AgreementReport | None = getattr(drawn, "agreement", None)
    if agreement is None:  # a worked example: no model, nothing to agree with
        print_written(path, json=json)
        return 0
    return finish(agreement, path, json=json)


def finish(agreement: AgreementReport, path: Path | None, *, json: bool) -> int:
    """Print the verdict and where the file is; return the exit code."""
    good = agreement.verdict == "verified"
    if not (json and good):
        _aside(json).print(Text(agreement.summary(), style="green" if good else "bold red"))
    print_written(path, json=json)
    return 0 if good else 5


def print_written(path: Path | None, *, json: bool) -> None:
    """Say where the file is."""
    if path is not None:
        _aside(json).print(Text(f"wrote {path}"))


def _aside(json: bool) -> Console:
    """Return standard error where standard output is for programs."""
    return Terminal(stderr=True, highlight=False, soft_wrap=True) if json else console


def print_json(data: dict[str, Any]) -> None:
    """Print data as one JSON object."""
    sys.stdout.write(to_json(data) + "\n")
