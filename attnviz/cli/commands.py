"""The commands. Heavy rooms are imported inside them, so that help comes at once."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnviz.cli import typed
from attnviz.cli.example import example
from attnviz.cli.listing import models
from attnviz.cli.maps import heads, heatmap
from attnviz.cli.options import (
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
    Json,
    Layer,
    Mode,
    ModelName,
    OffloadFolder,
    Pair,
    Reading,
    Saved,
    Stack,
    Target,
    Text,
    Truncate,
    Width,
    output_file,
)
from attnviz.cli.senses import senses
from attnviz.cli.serve import serve
from attnviz.cli.shift import shift
from attnviz.cli.survey import compare, survey
from attnviz.cli.view import view

if TYPE_CHECKING:
    from matplotlib.figure import Figure

app = typer.Typer(
    name="attnviz",
    help="See, verify and explain attention in pretrained Hugging Face models.",
    no_args_is_help=True,
    rich_markup_mode="markdown",  # paragraphs, not the lines of the source
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as version_of

        print(f"attnviz {version_of('attnviz')}")
        raise typer.Exit


app.command()(heatmap)
app.command()(heads)
app.command()(view)


@app.command()
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

    from attnviz.cli import report
    from attnviz.cli.print_steps import print_steps
    from attnviz.dissection import make_steps

    taken = make_steps(result, layer=layer, head=head, word=word)

    def figure() -> Figure:
        from attnviz.plot import steps as draw

        return draw(taken, width=width)

    return report.conclude(taken, path, figure, lambda: print_steps(taken), json=json, force=force)


@app.command()
def verify(
    text: Text = None,
    file: File = None,
    image: Image = None,
    audio: Audio = None,
    pair: Pair = None,
    target: Target = None,
    generate: Generate = None,
    saved: Saved = None,
    model: ModelName = None,
    device: DeviceName = Device.auto,
    device_map: DeviceMap = None,
    offload_folder: OffloadFolder = None,
    dtype: Dtype = None,
    truncate: Truncate = False,
    mode: Mode = Reading.auto,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Keep the whole result in a .safetensors file, for --result."
        ),
    ] = None,
    force: Force = False,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Recompute every head's attention and compare it with the model's own, stage by stage.

    Exit code 5 means that they differ, or that their agreement could not be proven.
    """
    given = typed.given(text, image, audio, pair, target, generate, file, saved)
    path = typed.whole(output, force=force)
    where = typed.place(device, dtype, device_map, offload_folder)
    result = typed.attend(given, model, where, truncate, mode=mode.value)

    from attnviz.cli import report
    from attnviz.storage import agreement_data, save_data

    if path is not None:
        save_data(result, path, force=force)
    if json:
        report.print_json({**asdict(result.provenance), **agreement_data(result.agreement)})
    else:
        report.print_stages(result)
    return report.finish(result.agreement, path, json=json)


app.command()(senses)
app.command()(shift)
app.command()(survey)
app.command()(compare)
app.command()(example)
app.command()(models)
app.command()(serve)
