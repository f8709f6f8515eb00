"""The command `view`: one page to explore, with all attentions."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from attnviz.errors import InputError
from attnviz.terminal import parse as typed
from attnviz.terminal.options import (
    Audio,
    Debug,
    Device,
    DeviceMap,
    DeviceName,
    Dtype,
    File,
    Force,
    Generate,
    Head,
    Image,
    Layer,
    Mode,
    ModelName,
    OffloadFolder,
    Pair,
    Reading,
    Saved,
    Target,
    Text,
    Truncate,
    Words,
)


class Show(StrEnum):
    """What a page shows first."""

    grid = "grid"
    head = "head"
    token = "token"
    steps = "steps"


def view(
    text: Text = None,
    file: File = None,
    image: Image = None,
    audio: Audio = None,
    pair: Pair = None,
    target: Target = None,
    generate: Generate = None,
    saved: Saved = None,
    compare: Annotated[
        str | None,
        typer.Option(help="A second text to compare with, which has as many tokens."),
    ] = None,
    layer: Layer = None,
    head: Head = None,
    show: Annotated[
        Show,
        typer.Option(
            help="What is shown first: all heads, one, one word in all, or how a weight "
            "comes about."
        ),
    ] = Show.grid,
    words: Words = True,
    size: Annotated[
        float | None,
        typer.Option(
            help="The largest page, in megabytes.", show_default="0.5; 8 for more than a sentence"
        ),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write: .html.")] = Path(
        "view.html"
    ),
    force: Force = False,
    open_: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    model: ModelName = None,
    device: DeviceName = Device.auto,
    device_map: DeviceMap = None,
    offload_folder: OffloadFolder = None,
    dtype: Dtype = None,
    truncate: Truncate = False,
    mode: Mode = Reading.auto,
    debug: Debug = False,
) -> int:
    """Write a page to explore: all heads, lines and maps, one word in all heads, every step.

    The page needs nothing else, and no network. Of a long text it holds what --size allows.
    """
    given = typed.given(text, image, audio, pair, target, generate, file, saved)
    if compare is not None and saved is not None:
        raise InputError("Expected a --result or --compare, got both. Type both texts instead.")
    if compare is not None and text is None:
        raise InputError("Expected a text beside --compare, got none. Type both.")
    several = [given] if compare is None else [given, typed.given(compare, *[None] * 5)]
    path = typed.page(output, force=force)
    kept = {"mode": mode.value, "exact": None if layer is None else [layer]}
    where = typed.place(device, dtype, device_map, offload_folder)
    results = typed.attend_each(several, model, where, truncate, **kept)

    from attnviz.interactive.view import view as make
    from attnviz.results import AgreementReport
    from attnviz.terminal import console as report

    page = make(
        results[0],
        compare=results[1] if compare is not None else None,
        layer=layer,
        head=head,
        show=show.value,
        words=words,
        size=size,
    )
    page.save(path, force=force)
    code = report.finish(
        AgreementReport.joined(each.agreement for each in results), path, json=False
    )
    if open_:
        typer.launch(str(path))
    return code
