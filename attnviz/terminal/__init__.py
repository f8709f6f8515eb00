"""What commands share. Results go to standard output, progress to standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import Progress, SpinnerColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from attnviz.runtime import is_listened, listening, say

if TYPE_CHECKING:
    from attnviz.models import Architecture
    from attnviz.results import AgreementReport


class LiteralConsole(Console):
    """A console that shows control characters, and wraps lines in a terminal only."""

    def __init__(self, **how: Any) -> None:
        super().__init__(highlight=False, **how)
        self.soft_wrap = not self.is_terminal

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Render, with control characters made visible."""
        from attnviz.results.text import literal

        for text, style, control in super().render(renderable, options):
            lines = text.split("\n")
            shown = text if control else "\n".join(literal(line, len(line)) for line in lines)
            yield Segment(shown, style, control)


_INITIALS = {
    "query": "Q",
    "key": "K",
    "value": "V",
    "scores": "S",
    "weights": "A",
    "head output": "H",
    "output": "O",
}
_LEGEND = (
    "attn: how many attentions were executed, linear ones among them; compared in each: Q, K, V "
    "from the input, S scores, A weights, H each head's output, O output; largest: difference of "
    "weights"
)
_COLORS = {"agrees": "green", "differs": "bold red", "not read": "red", "random": "yellow"}

console = LiteralConsole()


def print_verdict(agreement: AgreementReport | None, path: Path | None, *, json: bool) -> int:
    """Print whether the attention is verified and which file was written; return the exit code."""
    verified = agreement is None or agreement.verdict == "verified"
    errors = LiteralConsole(stderr=True)
    output = errors if json else console
    if agreement is not None and not (json and verified):
        verdict = Text(agreement.summary(), style="green" if verified else "bold red")
        (output if verified else errors).print(verdict)
    if path is not None:
        output.print(Text(f"wrote {path}"), soft_wrap=True)
    return 0 if verified else 5


def print_json(data: dict[str, Any]) -> None:
    """Print data as one JSON object."""
    from attnviz.io.export import to_json

    sys.stdout.write(to_json(data) + "\n")


@contextmanager
def progress_bar(name: str) -> Iterator[None]:
    """Show in a terminal what the code inside does, and its progress where it is known."""
    if is_listened():  # a bar is shown already
        say(name)
        yield
        return
    stderr = Console(stderr=True)
    bar = Progress(
        SpinnerColumn(),
        *Progress.get_default_columns(),
        console=stderr,
        transient=True,
        disable=not stderr.is_terminal,
    )
    task = bar.add_task(name, total=None)

    def update(name: str, share: float) -> None:
        bar.update(task, description=name, total=1.0, completed=share)

    with bar, listening(update):
        yield


def wide_console() -> Console:
    """Return a console that is wide enough for tables where nobody sees them."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=100)


def print_models(models: Sequence[Architecture]) -> None:
    """Print a row for each model, the reasons of some states, and how many models agree."""
    from attnviz.models import last_check, summary
    from attnviz.runtime import version_of

    console = wide_console()
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0), collapse_padding=True)
    table.add_column("model", overflow="fold")
    for name in ("attn", "reached", "compared", "largest", "state"):
        justify: Literal["left", "right"] = "right" if name in ("attn", "largest") else "left"
        table.add_column(name, justify=justify, no_wrap=True)
    for model in models:
        stages = [initial if name in model.stages else "·" for name, initial in _INITIALS.items()]
        table.add_row(
            Text(model.name),
            str(model.attentions + model.linear or ""),
            model.reached,
            "".join(stages) if model.stages else "",
            "" if model.difference is None else f"{model.difference:.0e}",
            Text(model.state, _COLORS.get(model.state, "dim")),
        )
    if models:
        console.print(table)
        console.print(Text(_LEGEND, "dim"))
    for model in models:
        if model.reason:
            console.print(Text(f"{model.name}: {model.reason}"))
    console.print(Text(summary(models), "bold"))
    if version_of("transformers") != last_check().transformers:
        console.print(Text(f"installed is transformers {version_of('transformers')}"))
