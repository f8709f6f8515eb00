"""The command `steps`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnviz.terminal import parse as typed
from attnviz.terminal.options import (
    Audio,
    Debug,
    Device,
    DeviceMap,
    DeviceName,
    Dtype,
    Force,
    Generate,
    Head,
    Image,
    Json,
    Layer,
    ModelName,
    OffloadFolder,
    Pair,
    Saved,
    Stack,
    Target,
    Text,
    Truncate,
    Width,
    output_file,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def steps(
    text: Text = None,
    image: Image = None,
    audio: Audio = None,
    pair: Pair = None,
    target: Target = None,
    generate: Generate = None,
    saved: Saved = None,
    stack: Stack = None,
    layer: Layer = None,
    head: Head = None,
    word: Annotated[
        str | None,
        typer.Option(
            help="The word to follow, or one of its pieces; the#2 is the second “the”.",
            show_default="the first content word",
        ),
    ] = None,
    output: Annotated[Path | None, output_file("steps.png")] = None,
    force: Force = False,
    width: Width = 183.0,
    model: ModelName = None,
    device: DeviceName = Device.auto,
    device_map: DeviceMap = None,
    offload_folder: OffloadFolder = None,
    dtype: Dtype = None,
    truncate: Truncate = False,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Take one head apart: from X through Q, K, V, scores and weights to the output.

    One word is followed all the way, with shapes, real numbers and the agreement of every stage.
    """
    given = typed.given(text, image, audio, pair, target, generate, saved=saved)
    path = typed.where(output, None if json else "steps.png", force=force, image=image)
    where = typed.place(device, dtype, device_map, offload_folder)
    result = typed.attend(given, model, where, truncate, mode="full").stack(stack)

    from attnviz.analyses.steps.compute import steps as take_steps
    from attnviz.terminal import console as report

    taken = take_steps(result, layer=layer, head=head, word=word)

    def figure() -> Figure:
        from attnviz.analyses.steps.plot import steps as draw

        return draw(taken, width=width)

    return report.conclude(
        taken, path, figure, lambda: report.console.print(taken), json=json, force=force
    )
