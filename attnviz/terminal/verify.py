"""The command `verify`."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from attnviz.errors import InputError
from attnviz.io.files import check_output
from attnviz.terminal.options import ConsoleOptions, Force, InputOptions, RunOptions, option_groups


@option_groups()
def verify(
    *,
    inputs: InputOptions,
    run: RunOptions,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Save the whole result as a .safetensors file, for --result."
        ),
    ] = None,
    force: Force = False,
    positions: Annotated[
        bool,
        typer.Option(
            "--positions",
            help="Change every token, patch or frame, one at a time, and see in every layer which "
            "key moves.",
        ),
    ] = False,
    printing: ConsoleOptions,
) -> int:
    """Recompute every head's attention and compare it with the model's own, stage by stage.

    With --result, recompute what the file holds: no model runs.

    Exit code 5 means that they differ, or that their agreement could not be proven.
    """
    inputs = inputs.checked()
    if positions and inputs.result is not None:
        raise InputError("--result runs no model, so --positions does nothing. Leave one out.")
    if output is not None:
        output = check_output(output, (".safetensors",), force=force)
        inputs.refuse_overwriting(output)
    result = run.attend(inputs, positions="all" if positions else "sample")

    if inputs.result is not None:
        from attnviz.agreement import verify_saved

        result = replace(result, agreement=verify_saved(result))

    from attnviz.io.export import save_result
    from attnviz.terminal.console import console, print_json, print_verdict

    if output is not None:
        save_result(result, output, force=force)
    if printing.json:
        notes = {"notes": list(result.notes)}
        print_json({**asdict(result.provenance), **notes, **result.agreement.about()})
    else:
        console.print(result)
    return print_verdict(result.checked_agreement, output, json=printing.json)


COMMANDS = (verify,)
