"""The command `senses` and what it says: in which layers the senses of a word lie apart."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnviz.terminal import parse as typed
from attnviz.terminal.options import (
    Debug,
    Device,
    DeviceMap,
    DeviceName,
    Dtype,
    Force,
    Json,
    ModelName,
    OffloadFolder,
    Width,
    output_file,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table

    from attnviz.analyses.senses.result import SenseScore, SensesResult

_NAMED = 6  # words that each sense attends to


def senses(
    word: Annotated[
        str,
        typer.Argument(
            help="The word. Sentences come along for bank, check, apple, bat, crane, spring, "
            "mouse, seal, light and pitcher.",
            show_default=False,
        ),
    ],
    sense: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=SENTENCE, or NAME=FILE with one sentence per line; several for each name.",
            show_default="the sentences that come along",
        ),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Do not centre the vectors of each layer.")
    ] = False,
    output: Annotated[Path | None, output_file("senses.png")] = None,
    force: Force = False,
    width: Width = 183.0,
    model: ModelName = None,
    device: DeviceName = Device.auto,
    device_map: DeviceMap = None,
    offload_folder: OffloadFolder = None,
    dtype: Dtype = None,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Measure in which layers the senses of a word are told apart, and draw them.

    Every occurrence is judged by the others. Beside the accuracy stand guessing, shuffled senses,
    the word without context, and the other words without attention.
    """
    path = typed.where(output, None if json else "senses.png", force=force)

    from attnviz.analyses.senses.sentences import read_senses, read_sentences

    sentences = read_senses(sense or ())
    read_sentences(word, sentences)  # what is wrong with them is said before a model is loaded

    from attnviz.analyses.senses.compute import senses as measure
    from attnviz.pipeline.attend import load
    from attnviz.terminal import console as report

    loaded = load(model, **typed.place(device, dtype, device_map, offload_folder))
    result = measure(word, sentences, model=loaded, raw=raw)

    def figure() -> Figure:
        from attnviz.analyses.senses.plot import senses as draw

        return draw(result, width=width)

    return report.conclude(
        result, path, figure, lambda: print_senses(result), json=json, force=force
    )


def print_senses(result: SensesResult) -> None:
    """Print a row for each layer, the baselines, and what each sense attends to."""
    from rich.text import Text

    from attnviz.results.labels import literal
    from attnviz.terminal.console import console

    named = ", ".join(literal(name) for name in result.senses)
    model = result.provenance.model
    console.print(Text(f"“{literal(result.word)}”: {named}; {model}", "bold"))
    console.print(_table(result))
    minority = literal(result.minority)
    console.print(
        Text(
            "accuracy as the word enters a layer, with its 95% interval; shuffled: what 95% of "
            "the shuffled senses stay within; macro: mean recall of all senses; last: that of "
            f"{minority}",
            "dim",
        )
    )
    best = result.scores[result.best]
    console.print(
        Text(f"best {result.state_name(result.best)}: {best.accuracy:.2f}", "bold").append(
            f", p = {result.p_best:.4f} over all layers", "not bold"
        )
    )
    console.print(Text(f"guessing: {result.chance:.2f}"))
    static = result.scores[0]
    console.print(Text(f"the word without context, entering layer 0: {_told(static)}"))
    console.print(Text(f"the other words without attention: {_told(result.context)}"))
    console.print(
        Text(f"content words that get most of its attention in layer {result.attention_layer}")
    )
    for sense in result.senses:
        words = [f"{literal(w)} {share:.0%}" for w, share in result.strongest(sense)[:_NAMED]]
        console.print(Text(f"  {literal(sense)}: ", "bold").append(", ".join(words), "not bold"))
    for note in result.notes:
        console.print(Text(note, "dim"))


def _told(score: SenseScore) -> str:
    return f"{score.accuracy:.2f} ({score.low:.2f} to {score.high:.2f}), p = {score.p_value:.4f}"


def _table(result: SensesResult) -> Table:
    from rich.table import Table
    from rich.text import Text

    from attnviz.results.labels import literal

    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    minority = result.minority
    names = ("accuracy", "interval", "p", "shuffled", "silhouette", "macro", literal(minority, 12))
    for name in ("layer", *names):
        table.add_column(name, justify="right", no_wrap=True)
    for state, score in enumerate(result.scores):
        recall = score.recalls[result.senses.index(minority)]
        last = state == len(result.scores) - 1
        cells = (
            "output" if last else str(state),
            f"{score.accuracy:.2f}",
            f"{score.low:.2f}–{score.high:.2f}",
            f"{score.p_value:.4f}",
            f"{score.shuffled:.2f}",
            f"{score.silhouette:.2f}".replace("-", "\N{MINUS SIGN}"),
            f"{score.macro_recall:.2f}",
            f"{recall:.2f}",
        )
        table.add_row(*(Text(cell, "bold" if state == result.best else "") for cell in cells))
    return table
