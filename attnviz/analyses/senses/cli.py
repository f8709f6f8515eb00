"""The command `senses`."""

from __future__ import annotations

from typing import Annotated

import typer

from attnviz.terminal.options import (
    ConsoleOptions,
    FigureOptions,
    ModelOptions,
    option_groups,
    parse_named_sentences,
)


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

    from attnviz.analyses.senses.sentences import read_sentences

    sentences = parse_named_sentences(sense or (), "--sense")
    read_sentences(word, sentences)  # raises before a model is loaded

    from attnviz.analyses.senses.compute import senses as measure
    from attnviz.terminal.console import report

    result = measure(word, sentences, model=model.load(), raw=raw)
    return report(
        result,
        draw=lambda: result.plot(**figure.appearance),
        path=path,
        force=figure.force,
        json=console.json,
    )


COMMANDS = (senses,)
