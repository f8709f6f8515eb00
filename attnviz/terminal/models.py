"""The command `models` and what it says; apart from the others, since it needs no torch."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
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
from attnviz.terminal.options import Debug, Json, State

INITIALS = {
    "query": "Q", "key": "K", "value": "V", "scores": "S", "weights": "A", "head output": "H",
    "output": "O",
}  # fmt: skip
LEGEND = (
    "attn: how many attentions were executed; compared in each of them: Q, K, V from the input, "
    "S scores, A weights, H each head's output, O output; largest: difference of weights"
)
_COLOURS = {"agrees": "green", "differs": "bold red", "not read": "red"}
_NARROW = 100  # what a file or a pipe is given instead of the width of a terminal


def models(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Only models with this in their name.", show_default="all"),
    ] = None,
    state: Annotated[
        State | None, typer.Option(help="Only those in this state.", show_default="all")
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """List the models that the installed transformers has, and how far each is verified.

    The states are those of the last check of every architecture, which came with attnviz.
    """
    found = architectures(names or (), state=state)
    print_json(found) if json else print_models(found)
    return 0


def print_models(found: Sequence[Architecture]) -> None:
    """Print a row for each model, what is to be said about some, and how many agree."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_NARROW)
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0), collapse_padding=True)
    table.add_column("model", overflow="fold")
    table.add_column("attn", justify="right", no_wrap=True)
    table.add_column("reached", no_wrap=True)
    table.add_column("compared", no_wrap=True)
    table.add_column("largest", justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for one in found:
        table.add_row(*_cells(one))
    if found:
        console.print(table)
        console.print(Text(LEGEND, "dim"))
    for one in found:
        if one.reason:
            console.print(Text(f"{one.name}: {one.reason}"))
    console.print(Text(summary(found), "bold"))
    if installed_version() != last_check().transformers:
        console.print(Text(f"installed is transformers {installed_version()}"))


def print_json(found: Sequence[Architecture]) -> None:
    """Print the same as one JSON object."""
    data = {
        "transformers": installed_version(),
        "checked_with": last_check().transformers,
        "models": [asdict(one) for one in found],
    }
    sys.stdout.write(dumps(data, ensure_ascii=False, indent=1) + "\n")


def _cells(one: Architecture) -> list[str | Text]:
    compared = "".join(initial if s in one.stages else "·" for s, initial in INITIALS.items())
    return [
        Text(one.name),
        str(one.attentions or ""),
        one.reached,
        compared if one.stages else "",
        "" if one.difference is None else f"{one.difference:.0e}",
        Text(one.state, _COLOURS.get(one.state, "dim")),
    ]
