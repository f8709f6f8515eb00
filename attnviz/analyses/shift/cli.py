"""The command `shift`."""

from __future__ import annotations

from typing import Annotated

import typer

from attnviz.errors import expect_words
from attnviz.terminal.options import (
    ConsoleOptions,
    FigureOptions,
    InputOptions,
    ModelOptions,
    expect_in_text,
    option_groups,
    parse_named_sentences,
)


@option_groups()
def shift(
    *,
    word: Annotated[str, typer.Argument(help="Word of the text. the#2 is the second “the”.")],
    text: Annotated[
        str,
        typer.Argument(help="The text. {mud|cash} in it compares the text with a reference."),
    ],
    toward: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=TEXT or NAME=FILE, for two regions: toward the first, from the second. In "
            "texts that have the word, its vector counts, else the mean of all words. Give other "
            "texts than the one that is explained.",
            show_default="along the shift itself",
        ),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            help="gate: the same text, where every token attends only to itself and special "
            "tokens; mask: all other words masked; or a text with the same number of tokens.",
            show_default="gate",
        ),
    ] = None,
    verify_causally: Annotated[
        bool,
        typer.Option(
            "--verify-causally",
            help="Change each other word in four ways: mask, replace (by common words), knock-out "
            "(no token may attend to it), delete; and patch every head, for its direct and its "
            "total effect.",
        ),
    ] = False,
    details: Annotated[
        bool,
        typer.Option(
            "--details",
            help="Draw also the contributions by layer and by head, the residual stream, and every "
            "intervention.",
        ),
    ] = False,
    figure: FigureOptions = FigureOptions("shift.png"),
    model: ModelOptions,
    console: ConsoleOptions,
) -> int:
    """Split what moved the vector of a word over layers, heads and words, exactly.

    The contributions of the words over all paths add up to the shift. So do the direct
    contributions: value parts (the words offer something else) and routing parts (the word attends
    to them more or less). Beside them stands the effect of changing each word, measured in separate
    runs.
    """
    path = figure.path(json=console.json)
    expect_words(text, "The text")
    expect_in_text([word], InputOptions(text=text))
    regions = parse_named_sentences(toward or (), "--toward")

    from attnviz.analyses.shift.compute import shift as split
    from attnviz.terminal.console import progress_bar, report

    loaded = model.load()
    with progress_bar("splitting the shift"):
        result = split(
            word,
            text,
            toward=regions,
            reference=reference,
            verify_causally=verify_causally,
            model=loaded,
        )
    return report(
        result,
        draw=lambda: result.plot(details=details, **figure.appearance),
        path=path,
        force=figure.force,
        json=console.json,
    )


COMMANDS = (shift,)
