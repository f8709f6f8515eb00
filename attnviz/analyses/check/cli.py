"""The command `check`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from attnviz.io.weights_file import check_weights_file
from attnviz.terminal.options import (
    ConsoleOptions,
    FigureOptions,
    InputOptions,
    RunOptions,
    Stack,
    option_groups,
    refuse_overwriting,
)


@option_groups()
def check(
    *,
    weights: Annotated[
        Path,
        typer.Argument(
            help="Weights of another tool: .npy, .npz or .safetensors; one array of layers × heads "
            "× queries × keys, or one for each layer, with its number in the name.",
            show_default=False,
        ),
    ],
    inputs: InputOptions,
    stack: Stack = None,
    figure: FigureOptions = FigureOptions(),
    run: RunOptions,
    console: ConsoleOptions,
) -> int:
    """Compare another tool's attention weights with those of attnviz, head by head.

    Prints the first head that differs, where it does so most, and what explains the difference.

    Exit code 5 means that a head differs, or that attnviz's own weights could not be verified.
    """
    inputs = inputs.checked()
    check_weights_file(weights)
    path = figure.path(json=console.json, inputs=inputs)
    if path is not None:
        refuse_overwriting(path, weights, "file of weights")

    from attnviz.analyses.check.compute import check as compare_weights
    from attnviz.io.weights_file import read_weights
    from attnviz.terminal.console import report

    weights_of_tool = read_weights(weights)
    mode = "full" if inputs.result is None and run.mode == "auto" else run.mode
    result = compare_weights(weights_of_tool, replace(run, mode=mode).attend(inputs), stack=stack)
    code = report(
        result,
        draw=lambda: result.plot(**figure.appearance),
        path=path,
        force=figure.force,
        json=console.json,
        prints_verdict=True,
    )
    return code if result.agrees else 5


COMMANDS = (check,)
