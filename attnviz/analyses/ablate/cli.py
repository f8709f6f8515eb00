"""The command `ablate`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from attnviz.errors import expect_words
from attnviz.terminal.options import ConsoleOptions, FigureOptions, ModelOptions, option_groups

_LONGEST = 12  # characters of the name of a head


class How(StrEnum):
    """What replaces the output of a head."""

    MEAN = "mean"
    ZERO = "zero"
    RESAMPLE = "resample"


class Effect(StrEnum):
    """What is recomputed after a head."""

    TOTAL = "total"
    DIRECT = "direct"


@option_groups()
def ablate(
    *,
    text: Annotated[
        list[str], typer.Argument(help="The text, or several: means then have intervals.")
    ],
    target: Annotated[
        str | None,
        typer.Option(
            help="Token or class whose log-probability is measured.",
            show_default="the most probable in each text",
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(help="Another token or class: the difference of both logits is measured."),
    ] = None,
    word: Annotated[
        str | None,
        typer.Option(help="Measure how far the vector of this word moves, not a prediction."),
    ] = None,
    heads: Annotated[
        list[str] | None,
        typer.Option(
            help="Heads to ablate together, as layer.head: 17.5,18.6. Repeat it for several sets.",
            show_default="each head by itself",
        ),
    ] = None,
    how: Annotated[
        How | None,
        typer.Option(
            help="What replaces the output of a head: its mean, zeros or that of another text.",
            show_default="mean",
        ),
    ] = None,
    knock_out: Annotated[
        str | None,
        typer.Option(help="Only keep the heads from attending to this word of the text."),
    ] = None,
    patch: Annotated[
        str | None,
        typer.Option(help="Give the heads their outputs in this text with as many tokens."),
    ] = None,
    effect: Annotated[
        Effect,
        typer.Option(
            help="total: recompute everything after the heads; direct: only where the output is "
            "read, with all other heads fixed."
        ),
    ] = Effect.TOTAL,
    keep_sink: Annotated[
        bool,
        typer.Option(help="Whether heads keep their output at the attention sink."),
    ] = True,
    figure: FigureOptions = FigureOptions("ablation.png"),
    model: ModelOptions,
    console: ConsoleOptions,
) -> int:
    """Measure what a prediction loses without each head, exactly.

    Every head is ablated by itself, in a run of its own, and the change of the prediction is
    measured. Beside it stands the estimate of the gradient. With --word the vector of a word is
    measured, as the bundled model predicts no tokens.
    """
    path = figure.path(json=console.json)
    for one in text:
        expect_words(one, "The text")
    sets = None if heads is None else [_parse_set(one) for one in heads]

    from attnviz.analyses.ablate.compute import ablate as compute
    from attnviz.terminal.console import progress_bar, report

    loaded = model.load()
    with progress_bar("ablating heads"):
        result = compute(
            text,
            target=target,
            against=against,
            word=word,
            heads="all" if sets is None else sets,
            how=None if how is None else how.value,
            knock_out=knock_out,
            patch=patch,
            effect=effect.value,
            keep_sink=keep_sink,
            model=loaded,
        )
    return report(
        result,
        draw=lambda: result.plot(**figure.appearance),
        path=path,
        force=figure.force,
        json=console.json,
    )


def _parse_set(value: str) -> list[tuple[int, int]]:
    """Return the heads that are written as 17.5,18.6."""
    heads = []
    for name in value.split(","):
        layer, dot, head = name.strip().partition(".")
        if not (dot and layer.isdecimal() and head.isdecimal() and len(name) < _LONGEST):
            raise typer.BadParameter(
                f"{name.strip()!r:.60} is not a head. Write its layer and head, such as 17.5"
            )
        heads.append((int(layer), int(head)))
    return heads


COMMANDS = (ablate,)
