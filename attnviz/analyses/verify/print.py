"""The stages of every head and how far they agree, in a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnviz.terminal.console import console

if TYPE_CHECKING:
    pass
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from attnviz.results import AttentionResult
from attnviz.results.recompute import STAGES

if TYPE_CHECKING:
    pass


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
            Text("differs", "bold red") if failed else Text("agrees", "green"),
        )
    console.print(Text(f"{result.provenance.model}, {agreement.dtype}, {agreement.device}", "bold"))
    console.print(table)
    reasons = {reason for _, _, reason in agreement.not_compared}
    for reason in sorted(reasons):
        console.print(Text(f"not compared: {reason}"))
    layers = len(result.streamed or result.records)
    caught = layers - len(agreement.unproven)
    console.print(
        Text(f"a scale 1 % off, planted on purpose: caught in {caught} of {layers} layers")
    )
