"""The command `verify`: every stage of every head, compared."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnviz.terminal import parse as typed
from attnviz.terminal.console import console
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

from rich.table import Table
from rich.text import Text as RichText

from attnviz.results import AttentionResult
from attnviz.results.recompute import STAGES

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

    from attnviz.io.contents import agreement_data
    from attnviz.io.export import save_data
    from attnviz.terminal import console as report

    if path is not None:
        save_data(result, path, force=force)
    if json:
        report.print_json({**asdict(result.provenance), **agreement_data(result.agreement)})
    else:
        print_stages(result)
    return report.finish(result.agreement, path, json=json)


def print_stages(result: AttentionResult) -> None:
    """Print for each stage the largest difference over all layers and heads."""
    agreement = result.agreement
    table = Table("stage", "compared", "largest difference", "of what passes", "", box=None)
    others = {check.stage: None for check in agreement.checks if check.stage not in STAGES}
    for stage in (*STAGES, *others):
        checks = [check for check in agreement.checks if check.stage == stage]
        if not checks:
            table.add_row(stage, "0", "not compared", "", "")
            continue
        worst = max(check.strain for check in checks)
        failed = [check for check in checks if not check.passed]
        table.add_row(
            stage,
            f"{sum(check.compared for check in checks):,}",
            f"{agreement.largest_difference(stage):.1e}",
            f"{worst:.0%}",
            RichText("differs", "bold red") if failed else RichText("agrees", "green"),
        )
    console.print(
        RichText(f"{result.provenance.model}, {agreement.dtype}, {agreement.device}", "bold")
    )
    console.print(table)
    reasons = {reason for _, _, reason in agreement.not_compared}
    for reason in sorted(reasons):
        console.print(RichText(f"not compared: {reason}"))
    layers = len(result.streamed or result.records)
    caught = layers - len(agreement.unproven)
    console.print(
        RichText(f"a scale 1 % off, planted on purpose: caught in {caught} of {layers} layers")
    )
