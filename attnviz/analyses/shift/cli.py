"""The command `shift` and what it says: which words moved a word, exactly and causally."""

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


def shift(
    word: Annotated[str, typer.Argument(help="A word of the text; the#2 is the second “the”.")],
    text: Annotated[
        str, typer.Argument(help="The text; {mud|cash} in it compares a reference with the text.")
    ],
    toward: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=TEXT or NAME=FILE, of two regions: toward the first, from the second. "
            "Where the texts have the word, the word in them counts, else all they say.",
            show_default="along the shift itself",
        ),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            help="gate: the same text, where every token may read only itself and special tokens; "
            "mask: all other words masked; or a text of as many tokens.",
            show_default="gate",
        ),
    ] = None,
    verify_causally: Annotated[
        bool,
        typer.Option(
            "--verify-causally",
            help="Change each other word in four ways: mask, replace (by common words), knock-out "
            "(no token may read it), delete; and patch every head.",
        ),
    ] = False,
    output: Annotated[Path | None, output_file("shift.png")] = None,
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
    """Split what moved the vector of a word over layers, heads and words, exactly.

    What a word brought over all paths sums to the shift; so do the value parts (what the words
    offer differs) and routing parts (the word reads them more or less) that it took directly.
    Beside them stands what is lost where a word is changed, which owes nothing to the split.
    """
    path = typed.where(output, None if json else "shift.png", force=force)
    typed.given(text, None, None, None, None, None)

    from attnviz.analyses.senses.sentences import read_senses

    regions = read_senses(toward or (), "--toward")

    from attnviz.analyses.shift.compute import shift as split
    from attnviz.pipeline.attend import load
    from attnviz.terminal import console as report
    from attnviz.terminal.progress import watched

    loaded = load(model, **typed.place(device, dtype, device_map, offload_folder))
    with watched():
        result = split(
            word,
            text,
            toward=regions,
            reference=reference,
            verify_causally=verify_causally,
            model=loaded,
        )

    def figure() -> Figure:
        from attnviz.analyses.shift.plot import shift as draw

        return draw(result, width=width)

    return report.conclude(
        result, path, figure, lambda: report.console.print(result), json=json, force=force
    )
