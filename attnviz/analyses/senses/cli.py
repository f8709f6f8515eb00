"""The command `senses` and what it prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from attnviz.terminal.options import (
    ConsoleOptions,
    FigureOptions,
    ModelOptions,
    option_groups,
    parse_named_sentences,
)

if TYPE_CHECKING:
    from rich.table import Table

    from attnviz.analyses.senses.result import SenseScore, SensesResult

_NAMED = 6  # words that each sense attends to


@option_groups()
def senses(
    *,
    word: Annotated[
        str,
        typer.Argument(
            help="Word to study. Example sentences are included for bank, check, apple, bat, "
            "crane, spring, mouse, seal, light and pitcher.",
            show_default=False,
        ),
    ],
    sense: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=SENTENCE, or NAME=FILE with one sentence per line. Repeat it for further "
            "sentences and senses.",
            show_default="the included sentences",
        ),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Do not center the vectors of each layer.")
    ] = False,
    figure: FigureOptions = FigureOptions("senses.png"),
    model: ModelOptions,
    console: ConsoleOptions,
) -> int:
    """Measure which layers separate the senses of a word, and draw them.

    Each occurrence is classified by the others. The accuracy is compared with guessing, shuffled
    senses, the word without context, and the other words without attention.
    """
    path = figure.path(json=console.json)

    from attnviz.analyses.senses.sentences import gather

    sentences = parse_named_sentences(sense or (), "--sense")
    gather(word, sentences)  # raises before a model is loaded

    from attnviz.analyses.senses.compute import senses as measure
    from attnviz.analyses.senses.plot import senses as draw
    from attnviz.terminal.console import report

    result = measure(word, sentences, model=model.load(), raw=raw)
    return report(
        result,
        lambda: draw(result, width=figure.width),
        lambda: print_senses(result),
        path=path,
        force=figure.force,
        json=console.json,
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
