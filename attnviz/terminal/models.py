"""The table of the command `models`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnviz.models.architectures import Architecture, last_check, summary
from attnviz.runtime import version_of

_INITIALS = {
    "query": "Q", "key": "K", "value": "V", "scores": "S", "weights": "A", "head output": "H",
    "output": "O",
}  # fmt: skip
_LEGEND = (
    "attn: how many attentions were executed, linear ones among them; compared in each: Q, K, V "
    "from the input, S scores, A weights, H each head's output, O output; largest: difference of "
    "weights"
)
_COLORS = {"agrees": "green", "differs": "bold red", "not read": "red", "random": "yellow"}
_WIDTH_OF_FILES = 100  # columns of output that goes to a file or a pipe


def wide_console() -> Console:
    """Return a console that is wide enough for tables where nobody sees them."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_WIDTH_OF_FILES)


def print_models(models: Sequence[Architecture]) -> None:
    """Print a row for each model, the reasons of some states, and how many models agree."""
    console = wide_console()
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0), collapse_padding=True)
    table.add_column("model", overflow="fold")
    table.add_column("attn", justify="right", no_wrap=True)
    table.add_column("reached", no_wrap=True)
    table.add_column("compared", no_wrap=True)
    table.add_column("largest", justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
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
