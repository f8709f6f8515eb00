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

    from attnviz.analyses.compare.result import CompareResult


_SHOWN = 2  # heads of each statistic, or statistics of each head


_LISTED = 10  # heads


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
        result, path, figure, lambda: print_comparison(result), json=json, force=force
    )


def print_comparison(result: CompareResult) -> None:
    """Print the heads that are furthest apart, and what each surely does more or less."""
    from rich.table import Table
    from rich.text import Text

    from attnviz.results.labels import literal
    from attnviz.terminal.console import console

    first, second = (literal(name) for name in result.names)
    said = f"{len(result.heads)} heads of {second} beside those of {first}, {result.texts:,} texts"
    console.print(Text(said, "bold"))
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for name in ("head", "apart", "95 %", "changed most, surely"):
        table.add_column(name, justify="left" if name == "changed most, surely" else "right")
    for n in result.apart.argsort(descending=True).tolist()[:_LISTED]:
        sure = [at for at in range(len(result.statistics)) if result.p_value[n, at] < 0.01]
        # They have different units: how much it is beside what texts make uncertain of it.
        wide = (result.high - result.low)[n].clamp(min=1e-12)
        sizes = {at: abs(float(result.change[n, at] / wide[at])) for at in sure}
        most = sorted(sizes, key=sizes.__getitem__, reverse=True)[:_SHOWN]
        told = [f"{result.statistics[at]} {result.change[n, at]:+.2g}" for at in most]
        table.add_row(
            str(result.heads[n]),
            f"{result.apart[n]:.2g}",
            f"{result.apart_low[n]:.2g} to {result.apart_high[n]:.2g}",
            ", ".join(told) or "–",
        )
    console.print(table)
    for note in result.notes:
        console.print(Text(note, "dim"))
