"""The command `view`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from attnviz.errors import InputError
from attnviz.io.files import PAGE_SUFFIXES, check_output
from attnviz.terminal.options import (
    Debug,
    Force,
    Head,
    InputOptions,
    Layer,
    RunOptions,
    Words,
    option_groups,
)


class Show(StrEnum):
    """What a page shows first."""

    grid = "grid"
    head = "head"
    token = "token"
    steps = "steps"


@option_groups()
def view(
    *,
    inputs: InputOptions,
    compare: Annotated[
        str | None,
        typer.Option(help="Second text to compare with. It needs as many tokens."),
    ] = None,
    layer: Layer = None,
    head: Head = None,
    show: Annotated[
        Show,
        typer.Option(
            help="First view of the page: all heads, one head, one word in all heads, or the steps "
            "to one weight."
        ),
    ] = Show.grid,
    words: Words = True,
    size: Annotated[
        float | None,
        typer.Option(
            help="Largest size of the page in megabytes.",
            show_default="0.5; 8 for more than a sentence",
        ),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write: .html.")] = Path(
        "view.html"
    ),
    force: Force = False,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
    run: RunOptions,
    debug: Debug = False,
) -> int:
    """Write an interactive page: all heads, lines and maps, one word in all heads, every step.

    The page is one file and works offline. For a long text it holds as much as --size allows.
    """
    inputs = inputs.checked()
    texts = [inputs]
    if compare is not None:
        if inputs.result is not None:
            raise InputError("Expected a --result or --compare, got both. Type both texts instead.")
        if inputs.text is None:
            raise InputError("Expected a text beside --compare, got none. Type both.")
        texts.append(InputOptions(text=compare).checked())
    path = check_output(output, PAGE_SUFFIXES, force=force)
    exact = None if layer is None else [layer]
    results = [run.attend(text, exact=exact) for text in texts]

    from attnviz.interactive.view import view as make_page
    from attnviz.results import AgreementReport
    from attnviz.terminal.console import print_verdict

    page = make_page(
        results[0],
        compare=results[1] if compare is not None else None,
        layer=layer,
        head=head,
        show=show.value,
        words=words,
        size=size,
    )
    page.save(path, force=force)
    agreement = AgreementReport.joined(result.agreement for result in results)
    code = print_verdict(agreement, path, json=False)
    if open_:
        typer.launch(str(path))
    return code


COMMANDS = (view,)
