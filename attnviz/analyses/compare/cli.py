"""The command `compare` and what it prints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnviz.terminal import parse as typed
from attnviz.terminal.options import (
    ColumnName,
    Debug,
    Device,
    DeviceMap,
    DeviceName,
    Dtype,
    Force,
    Json,
    OffloadFolder,
    Seed,
    SkipBad,
    Truncate,
    Width,
    output_file,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def compare(
    first: Annotated[str, typer.Argument(help="A hub name or a folder, as for --model.")],
    second: Annotated[str, typer.Argument(help="Another checkpoint of the same architecture.")],
    corpus: Annotated[str, typer.Argument(help="A file of texts, as for survey; or -.")],
    output: Annotated[Path | None, output_file("comparison.png")] = None,
    force: Force = False,
    column: ColumnName = "text",
    skip_bad: SkipBad = False,
    seed: Seed = 0,
    width: Width = 183.0,
    device: DeviceName = Device.auto,
    device_map: DeviceMap = None,
    offload_folder: OffloadFolder = None,
    dtype: Dtype = None,
    truncate: Truncate = False,
    json: Json = False,
    debug: Debug = False,
) -> int:
    """Compare two checkpoints head by head over a corpus: which heads changed, with intervals."""
    path = typed.where(output, None if json else "comparison.png", force=force)

    from attnviz.analyses.compare.compute import compare as pair
    from attnviz.pipeline.attend import load
    from attnviz.terminal import console as report
    from attnviz.terminal.progress import watched

    where = typed.place(device, dtype, device_map, offload_folder)
    with watched():
        result = pair(
            corpus,
            models=(
                load(first, **where),
                load(second, **where),
            ),
            column=column,
            truncate=truncate,
            skip_bad=skip_bad,
            seed=seed,
        )

    def figure() -> Figure:
        from attnviz.analyses.compare.plot import compare as draw

        return draw(result, width=width)

    return report.conclude(
        result, path, figure, lambda: report.console.print(result), json=json, force=force
    )
