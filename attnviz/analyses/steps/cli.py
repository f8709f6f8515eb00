"""The command `steps`."""

from __future__ import annotations

from typing import Annotated

import typer

from attnviz.terminal.options import (
    ConsoleOptions,
    FigureOptions,
    Head,
    InputOptions,
    Layer,
    RunOptions,
    Stack,
    expect_in_text,
    option_groups,
)


@option_groups(without=["file", "mode"])
def steps(
    *,
    inputs: InputOptions,
    stack: Stack = None,
    layer: Layer = None,
    head: Head = None,
    word: Annotated[
        str | None,
        typer.Option(
            help="Word to follow, or one of its pieces. the#2 is the second “the”.",
            show_default="the first content word",
        ),
    ] = None,
    figure: FigureOptions = FigureOptions("steps.png"),
    run: RunOptions = RunOptions(mode="full"),
    console: ConsoleOptions,
) -> int:
    """Take one head apart: from X through Q, K, V, scores and weights to the output.

    One word is followed through all stages, with shapes, real numbers and the agreement of every
    stage with the model. Linear attention: from gates, queries and keys to M and M V.
    """
    inputs = inputs.checked()
    path = figure.path(json=console.json, inputs=inputs)
    if word is not None:
        expect_in_text([word], inputs)
    run.expect_heads(inputs, [layer], [head])
    attention = run.attend(inputs).stack(stack)

    from attnviz.analyses.steps.compute import steps as take_apart
    from attnviz.terminal.console import report

    result = take_apart(attention, layer=layer, head=head, word=word)
    return report(
        result,
        draw=lambda: result.plot(**figure.appearance),
        path=path,
        force=figure.force,
        json=console.json,
    )


COMMANDS = (steps,)
