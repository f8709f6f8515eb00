"""The command `verify`: every stage of every head, compared."""

from __future__ import annotations

from dataclasses import asdict
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
    File,
    Force,
    Generate,
    Image,
    Json,
    Mode,
    ModelName,
    OffloadFolder,
    Pair,
    Reading,
    Saved,
    Target,
    Text,
    Truncate,
)

if TYPE_CHECKING:
    pass

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


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

    from attnviz.io.export import save_result
    from attnviz.terminal import console as report

    if path is not None:
        save_result(result, path, force=force)
    if json:
        report.print_json({**asdict(result.provenance), **result.agreement.about()})
    else:
        report.console.print(result)
    return report.finish(result.agreement, path, json=json)
