"""The command `shift` and what it says: which words moved a word, exactly and causally."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnviz.cli import typed
from attnviz.cli.options import (
    Debug,
    Device,
    DeviceName,
    Dtype,
    Json,
    ModelName,
    Width,
    output_file,
)
from attnviz.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from attnviz.records import ShiftResult

_PAIR = re.compile(r"\{([^{}|]+)\|([^{}|]+)\}")


def shift(
    word: Annotated[str, typer.Argument(help="A word of the text; the#2 is the second “the”.")],
    text: Annotated[
        str, typer.Argument(help="The text; {mud|cash} in it compares a reference with the text.")
    ],
    toward: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=TEXT or NAME=FILE, of two regions: toward the first, from the second.",
            show_default="along the shift itself",
        ),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            help="A text of as many tokens to compare with.",
            show_default="the same text, where every token may read only itself",
        ),
    ] = None,
    output: Annotated[Path | None, output_file("shift.png")] = None,
    width: Width = 183.0,
    model: ModelName = None,
    device: DeviceName = Device.auto,
    dtype: Dtype = None,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Split what moved the vector of a word over layers, heads and words, exactly.

    Beside each word stands what is lost where it is masked, which owes nothing to the split.
    """
    from attnviz.separation import read_senses

    path = typed.where(output, None if json else "shift.png")
    typed.given(text, None, None, None, None, None)
    text, reference = _pair(text, reference)
    regions = read_senses(toward or (), "--toward")

    from attnviz.cli import report
    from attnviz.displacement import shift as split
    from attnviz.models import load
    from attnviz.storage import to_data

    loaded = load(model, device=device.value, dtype=dtype)
    result = split(word, text, toward=regions, reference=reference, model=loaded)

    def figure() -> Figure:
        from attnviz.plot import waterfall

        return waterfall(result, width=width)

    typed.save(path, result, figure)
    report.print_json(to_data(result)) if json else print_shift(result)
    return report.finish(result.agreement, path, json=json)


def _pair(text: str, reference: str | None) -> tuple[str, str | None]:
    """Return the text and its reference, of a text with {reference|text} in it."""
    if not (found := _PAIR.search(text)):
        return text, reference
    if reference is not None:
        raise InputError(
            f"Expected {found[0]} in the text or a --reference, got both. Give one of them."
        )
    return _PAIR.sub(r"\2", text), _PAIR.sub(r"\1", text)


def print_shift(result: ShiftResult) -> None:
    """Print what each token brought, what masking it takes, and how nearly all adds up."""
    from rich.table import Table
    from rich.text import Text

    from attnviz.cli.report import console
    from attnviz.plot.style import literal

    split, account = result.secant, result.ledger
    toward = f" toward {result.regions[0]}, from {result.regions[1]}" if result.regions else ""
    console.print(Text(f"what moved “{literal(result.word)}”{toward}", "bold"))
    console.print(Text(f"compared with {result.reference}", "dim"))
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("source")
    for name in ("over all paths", "directly: value", "routing", "lost if masked"):
        table.add_column(name, justify="right", no_wrap=True)
    value, routing = split.value.sum((0, 1)), split.routing.sum((0, 1))
    for at, token in enumerate(result.tokens):
        lost = None if result.causal is None else result.causal[at].item()
        masked = "" if lost is None or lost != lost else f"{lost:.2f}"
        numbers = (f"{each[at]:.2f}" for each in (split.credit, value, routing))
        table.add_row(Text(literal(token)), *numbers, masked)
    console.print(table)
    console.print(
        Text(f"the shift: {split.total:.2f}; the parts miss it by {split.error:.0e} of its length")
    )
    if (rank := result.rank_correlation) is not None:
        console.print(Text(f"rank correlation of all paths with masking: {rank:.2f}"))
    console.print(
        Text(
            f"from static to contextual, {account.total:.2f}: attention "
            f"{account.attention.sum():.2f}, MLPs {account.mlp.sum():.2f}, biases "
            f"{account.bias:.2f}, the own embedding {account.own:.2f}"
        )
    )
    if result.path is not None:
        path = "  ".join(f"{place:.2f}" for place in result.path.tolist())
        console.print(Text(f"from {result.regions[1]} (0) to {result.regions[0]} (1): {path}"))
    for note in result.notes:
        console.print(Text(note, "dim"))
