"""The command `senses` and what it says: in which layers the senses of a word lie apart."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnviz.terminal import parse as typed
from attnviz.terminal.options import (
    Debug,
    Device,
    DeviceMap,
    DeviceName,
    Dtype,
    Force,
    Json,
    ModelName,
    OffloadFolder,
    Width,
    output_file,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def senses(
    word: Annotated[
        str,
        typer.Argument(
            help="The word. Sentences come along for bank, check, apple, bat, crane, spring, "
            "mouse, seal, light and pitcher.",
            show_default=False,
        ),
    ],
    sense: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=SENTENCE, or NAME=FILE with one sentence per line; several for each name.",
            show_default="the sentences that come along",
        ),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Do not centre the vectors of each layer.")
    ] = False,
    output: Annotated[Path | None, output_file("senses.png")] = None,
    force: Force = False,
    width: Width = 183.0,
    model: ModelName = None,
    device: DeviceName = Device.auto,
    device_map: DeviceMap = None,
    offload_folder: OffloadFolder = None,
    dtype: Dtype = None,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Measure in which layers the senses of a word are told apart, and draw them.

    Every occurrence is judged by the others. Beside the accuracy stand guessing, shuffled senses,
    the word without context, and the other words without attention.
    """
    path = typed.where(output, None if json else "senses.png", force=force)

    from attnviz.analyses.senses.sentences import gather, read_senses

    sentences = read_senses(sense or ())
    gather(word, sentences)  # what is wrong with them is said before a model is loaded

    from attnviz.analyses.senses.compute import senses as measure
    from attnviz.pipeline.attend import load
    from attnviz.terminal import console as report

    loaded = load(model, **typed.place(device, dtype, device_map, offload_folder))
    result = measure(word, sentences, model=loaded, raw=raw)

    def figure() -> Figure:
        from attnviz.analyses.senses.plot import senses as draw

        return draw(result, width=width)

    return report.conclude(
        result, path, figure, lambda: report.console.print(result), json=json, force=force
    )
