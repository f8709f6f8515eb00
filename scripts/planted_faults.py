"""Plant faults in attention, and count which rules catch them; count false alarms without one.

Each fault is planted in many models and in three dtypes. attnviz and three common rules judge the
same numbers. Results are stored, one JSON line per case, and a second run only adds those that are
missing. When all cases are there, the page `gallery/guides/proof.md` is written. Needs what the
tests need.
"""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from enum import Enum
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated

os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "OMP_NUM_THREADS": "1"}

import typer
from planted import cases
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from attnviz.io import atomic

console = Console(stderr=True, highlight=False)
PAGE = Path(__file__).parents[1] / "gallery" / "guides" / "proof.md"


class Part(Enum):
    """The parts of the page."""

    formula = "formula"
    model = "model"
    architectures = "architectures"
    unplanted = "unplanted"


def main(
    parts: Annotated[
        list[Part] | None, typer.Argument(help="Parts to run; all by default.")
    ] = None,
    output: Annotated[Path, typer.Option(help="The page to write.")] = PAGE,
    results_file: Annotated[Path, typer.Option("--results", help="File of results.")] = Path(
        "planted_faults.jsonl"
    ),
    again: Annotated[bool, typer.Option("--all", help="Repeat all cases.")] = False,
    workers: Annotated[int, typer.Option(min=1, help="Number of parallel processes.")] = 2,
) -> None:
    """Run the missing cases of each part, and write the page when none is missing."""
    done = cases.read(results_file)
    wanted = [
        case
        for case in cases.every()
        if (not parts or case.part in {part.value for part in parts})
        and (again or case not in done)
    ]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    pool = ProcessPoolExecutor(workers, get_context("spawn"))
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress, pool:
        task = progress.add_task("running", total=len(wanted))
        for finished in as_completed([pool.submit(cases.run, case) for case in wanted]):
            case, result = finished.result()
            cases.append(results_file, case, result)
            progress.update(task, advance=1, description=str(case)[:40].ljust(40))
    done, every = cases.read(results_file), [*cases.every()]
    if missing := [case for case in every if case not in done]:
        console.print(f"{len(missing)} cases are not run yet: no page is written")
        return
    from planted.page import page

    with atomic(output) as file:
        in_order = {case: done[case] for case in every}
        file.write_text(page(in_order), encoding="utf-8")
    console.print(f"wrote {output}")


if __name__ == "__main__":
    typer.run(main)
