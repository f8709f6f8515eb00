"""The command `models` and what it prints, without torch."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from json import dumps
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnviz.models.architectures import (
    Architecture,
    architectures,
    installed_version,
    last_check,
    summary,
)
from attnviz.terminal.options import ConsoleOptions, option_groups

INITIALS = {
    "query": "Q", "key": "K", "value": "V", "scores": "S", "weights": "A", "head output": "H",
    "output": "O",
}  # fmt: skip
LEGEND = (
    "attn: how many attentions were executed; compared in each of them: Q, K, V from the input, "
    "S scores, A weights, H each head's output, O output; largest: difference of weights"
)
_COLORS = {"agrees": "green", "differs": "bold red", "not read": "red"}
_WIDTH_OF_FILES = 100  # columns of output that goes to a file or a pipe


class State(StrEnum):
    """Result of the last check of an architecture."""

    agrees = "agrees"
    differs = "differs"
    not_read = "not read"
    not_run = "not run"
    no_attention = "no attention"
    part = "part"
    not_checked = "not checked"


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
    print_json(matching) if console.json else print_models(matching)
    return 0


def print_models(models: Sequence[Architecture]) -> None:
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
        table.add_row(*_cells(model))
    if models:
        console.print(table)
        console.print(Text(LEGEND, "dim"))
    for model in models:
        if model.reason:
            console.print(Text(f"{model.name}: {model.reason}"))
    console.print(Text(summary(models), "bold"))
    if installed_version() != last_check().transformers:
        console.print(Text(f"installed is transformers {installed_version()}"))


def print_json(models: Sequence[Architecture]) -> None:
    """Print the same as one JSON object."""
    data = {
        "transformers": installed_version(),
        "checked_with": last_check().transformers,
        "models": [asdict(model) for model in models],
    }
    sys.stdout.write(dumps(data, ensure_ascii=False, indent=1) + "\n")


def _cells(model: Architecture) -> list[str | Text]:
    """Return the row of a model."""
    stages = "".join(
        initial if stage in model.stages else "·" for stage, initial in INITIALS.items()
    )
    return [
        Text(model.name),
        str(model.attentions or ""),
        model.reached,
        stages if model.stages else "",
        "" if model.difference is None else f"{model.difference:.0e}",
        Text(model.state, _COLORS.get(model.state, "dim")),
    ]


COMMANDS = (models,)
