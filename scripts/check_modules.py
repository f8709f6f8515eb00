"""Record models of other libraries than transformers, with random weights, and check every call.

Nothing is downloaded, and a library that is not installed is left out:

    pip install --no-deps timm open_clip_torch diffusers x-transformers vit-pytorch segment-anything

Of each call: what our weights mix equals its own output; the maps equal those of a hook written by
hand; a wrong scale, a wrong mask and another order of heads are noticed. Of each model: its outputs
are the same bit for bit, and one line of the user's code records it.
"""

from __future__ import annotations

import json
import os
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}

import torch
import typer
from modules.cases import CASES, Case
from modules.hook import MapsByHand
from modules.pipeline import check as check_pipeline
from modules.planted import planted
from rich.console import Console
from rich.table import Table
from torch import Tensor

import attnviz
from attnviz.capture.search import call_of
from attnviz.errors import one_line
from attnviz.models.pretrained import forward_parameters
from attnviz.runtime.compat import tree_leaves

MOST = 1e-6  # by which W·V may differ from the output of a call, relative to its largest number
console = Console()


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Libraries to check.")] = None,
    results: Annotated[Path, typer.Option(help="File of results.")] = Path("modules.jsonl"),
) -> None:
    """Check all models, or those of some libraries."""
    warnings.filterwarnings("ignore")
    chosen = [case for case in CASES if not names or case.library in names]
    rows = []
    for case in chosen:
        rows.append(row := check(case))
        console.print(*row.values())
        with results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*map(str, row.values()))
    console.print(table)
    faults, caught = (sum(row[name] for row in rows) for name in ("planted", "caught"))
    done = [row for row in rows if row["outcome"] == "verified"]
    console.print(
        f"{len(done)} of {len(rows)} models of {len({row['library'] for row in done})} libraries, "
        f"{sum(row['calls'] for row in done)} calls; {caught} of {faults} planted faults are caught"
    )
    if find_spec("diffusers") and (not names or "diffusers" in names):
        console.print(check_pipeline())
    raise typer.Exit(len(done) < len(rows))


def check(case: Case) -> dict[str, Any]:
    """Return the row of one model."""
    row: dict[str, Any] = {
        "library": case.library, "model": case.name, "outcome": "", "calls": 0, "W·V": 0.0,
        "by hand": "", "attend": "", "same output": "", "planted": 0, "caught": 0,
    }  # fmt: skip
    try:
        torch.manual_seed(0)
        module, args, kwargs = case.build()
        module = module.eval() if isinstance(module, torch.nn.Module) else module
        with torch.no_grad():
            torch.manual_seed(1)
            expected = module(*args, **kwargs)
            torch.manual_seed(1)
            with MapsByHand() as by_hand:
                module(*args, **kwargs)
            torch.manual_seed(1)
            with attnviz.record() as recording:
                output = module(*args, **kwargs)
        result = recording.result()
        calls = [call_of(call, 0) for call in recording._calls]
        pairs = [*zip(calls, result.records, strict=True)]
        errors = [mixing_error(call.attention.head_output, record) for call, record in pairs]
        found, caught = planted(pairs)
        outcome = result.agreement.verdict
        if outcome == "verified" and not max(errors, default=1.0) <= MOST:
            outcome = "W·V differs"
        row |= {"calls": len(pairs), "W·V": float(f"{max(errors):.1e}"), "outcome": outcome}
        row |= {"by hand": by_hand.compared(result.records), "planted": found, "caught": caught}
        row["attend"] = through_attend(module, args, kwargs)
        row["same output"] = "yes" if same(expected, output) else "NO"
        if outcome == "failed":
            row["outcome"] = result.agreement.summary()
        if row["same output"] == "NO":
            row["outcome"] = "other output"
    except ImportError as error:
        row["outcome"] = f"not installed: {error.name}"
    except Exception as error:
        row["outcome"] = f"{type(error).__name__}: {one_line(error)}"
    return row


def through_attend(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return the verdict of a module that is given to `attend`, and what is verified beside."""
    if not isinstance(module, torch.nn.Module):
        return "–"
    names = forward_parameters(module)
    try:
        inputs = dict(zip(names, args, strict=False)) | kwargs
        results = attnviz.attend(inputs=inputs, model=module)
    except (attnviz.AttnvizError, TypeError) as error:
        return f"{error}"
    report = (results if isinstance(results, list) else [results])[0].agreement
    others = [part for part in ("projections", "output") if report.parts[part] == "verified"]
    return f"{report.verdict}: {', '.join(others)}" if others else report.summary()


def mixing_error(output: Tensor | None, record: attnviz.AttentionRecord) -> float:
    """Return how far W·V in float64 is from the output of a call, relative to its largest."""
    if output is None:
        return float("nan")
    mixed = record.mix(record.weights(dtype=torch.float64))
    readable = record.readable()
    if readable is not None:  # a query that reads nothing has no output that means anything
        rows = readable.any(1)
        mixed, output = mixed[:, rows], output[:, :, rows]
    error = (mixed - output[0]).abs().max() / output.abs().max().clamp(min=1e-12)
    return float(error)


def same(first: Any, second: Any) -> bool:
    """Return whether two outputs hold the same tensors, bit for bit."""
    sides = ([x for x in tree_leaves(one) if isinstance(x, Tensor)] for one in (first, second))
    return all(torch.equal(x.nan_to_num(), y.nan_to_num()) for x, y in zip(*sides, strict=True))


if __name__ == "__main__":
    typer.run(main)
