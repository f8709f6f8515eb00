"""Build a tiny random model of every architecture in the installed transformers, and check each.

No downloads. Each architecture runs in a process of its own. Results are kept, one JSON line per
architecture, and a second run does only those that are missing. Once all are there,
`attnviz/catalogue.json` and `gallery/architectures.md` are written.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Annotated

os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "OMP_NUM_THREADS": "1"}

import typer
from architectures import results
from architectures.isolation import run_each
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from attnviz.io.files import atomic

console = Console(stderr=True)
ROOT = Path(__file__).parents[1]
DATA = ROOT / "attnviz" / "catalogue.json"
TABLE = ROOT / "gallery" / "architectures.md"
FAILED = {"not run", "not read", "differs"}


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Only these architectures.")] = None,
    results_file: Annotated[Path, typer.Option("--results", help="Where results are kept.")] = Path(
        "architectures.jsonl"
    ),
    again: Annotated[bool, typer.Option("--all", help="Also those that are done.")] = False,
    failed: Annotated[bool, typer.Option("--failed", help="Also those that failed.")] = False,
    workers: Annotated[int, typer.Option(min=1, help="Processes at the same time.")] = 2,
    seconds: Annotated[float, typer.Option(help="Time limit of one architecture.")] = 120,
    gigabytes: Annotated[float, typer.Option(help="Memory limit of one architecture.")] = 8,
    tolerance: Annotated[float, typer.Option(help="Largest difference that agrees.")] = 1e-5,
) -> None:
    """Check every architecture, or those named."""
    from architectures.catalogue import architectures  # imports torch

    with console.status("importing torch and transformers"):
        known = architectures()
    unknown = set(names or []) - set(known)
    if unknown:
        raise typer.BadParameter(f"transformers has no architecture {', '.join(sorted(unknown))}")
    done = results.read(results_file)
    wanted = names or [
        name
        for name in known
        if again or name not in done or (failed and results.state(done[name], tolerance) in FAILED)
    ]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
               TimeElapsedColumn())  # fmt: skip
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("checking", total=len(wanted))
        for result in run_each(wanted, workers, seconds, gigabytes):
            results.append(results_file, result)
            said = results.state(result, tolerance)
            if said in FAILED:
                console.print(
                    f"{result['architecture']}: {said} {results.reason(result)}"[:300],
                    markup=False,
                    highlight=False,
                )
            progress.update(task, advance=1, description=result["architecture"][:30].ljust(30))
    found = [one for name, one in results.read(results_file).items() if name in known]
    summarise(found, tolerance)
    if len(found) == len(known):
        write(found, tolerance)
    else:
        console.print(f"{len(known) - len(found)} are still to be checked: no table is written")
    if any(results.state(one, tolerance) in FAILED for one in found):
        raise typer.Exit(5)


def write(found: list[dict], tolerance: float) -> None:
    """Write what the package carries and what the docs show."""
    from architectures.catalogue import belongs

    data = results.catalogue(found, belongs(), tolerance)
    for path, content in (
        (DATA, results.to_json(data)),
        (TABLE, results.page(found, data, tolerance)),
    ):
        with atomic(path) as file:
            file.write_text(content, encoding="utf-8")
        console.print(f"wrote {path.relative_to(ROOT)}")


def summarise(found: list[dict], tolerance: float) -> None:
    """Print how many architectures came to which state."""
    counts = Counter(results.state(one, tolerance) for one in found)
    console.print(f"{len(found)} architectures: " + ", ".join(
        f"{count} {said}" for said, count in counts.most_common()
    ))  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
