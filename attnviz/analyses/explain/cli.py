"""The command `explain`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from attnviz.errors import expect_words
from attnviz.terminal.options import ConsoleOptions, FigureOptions, ModelOptions, option_groups


class Number(StrEnum):
    """What is explained of a target alone."""

    LOG_PROBABILITY = "log-probability"
    LOGIT = "logit"


@option_groups()
def explain(
    *,
    text: Annotated[
        str, typer.Argument(help="The text. A masked language model predicts the [MASK] in it.")
    ],
    target: Annotated[
        str | None,
        typer.Option(
            help="Token or class to explain; of a word of several tokens the first.",
            show_default="the most probable",
        ),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            help="Another token or class: the difference of both logits is explained.",
            show_default="the second most probable, if --target is not given",
        ),
    ] = None,
    number: Annotated[
        Number, typer.Option(help="What is explained of a target alone.")
    ] = Number.LOG_PROBABILITY,
    reference: Annotated[
        str,
        typer.Option(
            help="gate: the same text, where every token attends only to itself, special tokens "
            "and the attention sink; mask: all other words masked; or a text with the same number "
            "of tokens.",
        ),
    ] = "gate",
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="Attribution method to compare, such as gradient-attention. Repeat it for "
            "several.",
            show_default="partial-split",
        ),
    ] = None,
    heads: Annotated[
        bool,
        typer.Option(
            "--heads",
            help="Also show what is lost without each head, and what each layer would predict.",
        ),
    ] = False,
    generate: Annotated[
        int,
        typer.Option(
            help="Generate this many tokens greedily and explain the last of them.", min=1
        ),
    ] = 1,
    decoder: Annotated[
        str | None,
        typer.Option(
            help="Beginning of the target of an encoder-decoder, which the explained token goes "
            "on.",
            show_default="an empty target",
        ),
    ] = None,
    figure: FigureOptions = FigureOptions("explain.png"),
    model: ModelOptions,
    console: ConsoleOptions,
) -> int:
    """Explain a prediction by the words of a text, exactly.

    The contributions of the words add up to the difference between the prediction in the text and
    without context. Beside them stands the effect of changing each word, measured in separate runs.
    The model must predict tokens or classes, which the bundled one does not.
    """
    path = figure.path(json=console.json)
    expect_words(text, "The text")

    from attnviz.analyses.explain.compute import explain as compute
    from attnviz.terminal.console import progress_bar, report

    loaded = model.load()
    with progress_bar("explaining the prediction"):
        result = compute(
            text,
            target=target,
            against=against,
            number=number.value,
            reference=reference,
            methods=method or ("partial-split",),
            heads=heads,
            generate=generate,
            decoder=decoder,
            model=loaded,
        )
    return report(
        result,
        draw=lambda: result.plot(**figure.appearance),
        path=path,
        force=figure.force,
        json=console.json,
    )


COMMANDS = (explain,)
