"""The command `models` and what it prints, without torch."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from json import dumps
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnviz.models.architectures import (
    Architecture,
    architectures,
    last_check,
    summary,
)
from attnviz.runtime.versions import version_of
from attnviz.terminal.options import ConsoleOptions, option_groups

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


State = Literal[
    "agrees", "differs", "not read", "random", "not run", "no attention", "part", "not checked"
]  # fmt: skip


@option_groups()
def models(
    *,
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Only models with this in their name.", show_default="all"),
    ] = None,
    state: Annotated[
        State | None, typer.Option(help="Only models in this state.", show_default="all")
    ] = None,
    console: ConsoleOptions,
) -> int:
    """List the models of the installed transformers, and how far each is verified.

    The states come from the last check of every architecture, which ships with attnviz.
    """
    matching = architectures(names or (), state=state)
    if console.json:
        data = {
            "transformers": version_of("transformers"),
            "checked_with": last_check().transformers,
            "models": [asdict(model) for model in matching],
        }
        sys.stdout.write(dumps(data, ensure_ascii=False, indent=1) + "\n")
    else:
        _print_models(matching)
    return 0


def _print_models(models: Sequence[Architecture]) -> None:
    """Print a row for each model, the reasons of some states, and how many models agree."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDTH_OF_FILES)
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


COMMANDS = (models,)
