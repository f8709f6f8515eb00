"""Build a tiny random model of every architecture in the installed transformers, and check each.

So is every class with a head. Nothing is downloaded. Each class runs in a separate process. Results
are stored, one JSON line per class, and a second run only checks those that are missing. When all
are done, `attnviz/models/architectures.json` and `gallery/architectures.md` are written.
"""

from __future__ import annotations

import json
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

from attnviz.io import atomic

console = Console(stderr=True)
ROOT = Path(__file__).parents[1]
DATA = ROOT / "attnviz" / "models" / "architectures.json"
TABLE = ROOT / "gallery" / "architectures.md"
FAILED = {"not run", "not read", "differs"}


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Architectures to check.")] = None,
    results_file: Annotated[Path, typer.Option("--results", help="File of results.")] = Path(
        "architectures.jsonl"
    ),
    with_heads: Annotated[
        bool, typer.Option("--heads/--no-heads", help="Check every class with a head too.")
    ] = True,
    again: Annotated[bool, typer.Option("--all", help="Repeat all checks.")] = False,
    failed: Annotated[bool, typer.Option("--failed", help="Repeat failed checks.")] = False,
    workers: Annotated[int, typer.Option(min=1, help="Number of parallel processes.")] = 2,
    seconds: Annotated[float, typer.Option(help="Time limit per architecture, in seconds.")] = 120,
    gigabytes: Annotated[float, typer.Option(help="Memory limit per architecture, in GiB.")] = 8,
    update: Annotated[
        bool, typer.Option(help="Write the rows of these architectures into the table.")
    ] = False,
    use: Annotated[
        bool, typer.Option("--use", help="Run what a user calls, and write its table.")
    ] = False,
    tolerance: Annotated[float, typer.Option(help="Largest accepted difference.")] = 1e-5,
) -> None:
    """Check every architecture, or only the ones given."""
    from architectures.catalogue import architectures, head_classes, used  # imports torch

    with console.status("importing torch and transformers"):
        known = architectures()
    unknown = set(names or []) - set(known)
    if unknown:
        raise typer.BadParameter(f"transformers has no architecture {', '.join(sorted(unknown))}")
    done = results.read(results_file)
    every = used(names or known) if use else [
        f"{name}/{head}" if head else name
        for name in names or known
        for head in ["", *(head_classes(name) if with_heads else [])]
    ]  # fmt: skip
    wanted = [
        name
        for name in every
        if names
        or again
        or name not in done
        or (failed and _has_failed(done[name], tolerance, use=use))
    ]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
               TimeElapsedColumn())  # fmt: skip
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("checking", total=len(wanted))
        for result in run_each(wanted, workers, seconds, gigabytes, "use" if use else "check"):
            results.append(results_file, result)
            if _has_failed(result, tolerance, use=use):
                why = results.exceptions(result) if use else [results.reason(result)]
                line = f"{result['architecture']}: {' '.join(why)}"
                console.print(line[:300], markup=False, highlight=False)
            progress.update(task, advance=1, description=result["architecture"][:30].ljust(30))
    done = results.read(results_file)
    if use:
        finish_use([done[name] for name in every], is_all=not names)
        return
    checked = [result for name, result in done.items() if name in known]
    heads = [result for name, result in done.items() if "/" in name]
    summarize(checked, tolerance, "architectures")
    if heads:
        summarize(heads, tolerance, "classes with a head")
    if update:
        data, page = json.loads(DATA.read_text("utf-8")), TABLE.read_text("utf-8")
        page, data = results.update(page, data, checked, tolerance)
        save(results.to_json(data), page)
    elif len(checked) == len(known):
        write(checked, heads, tolerance)
    else:
        console.print(f"{len(known) - len(checked)} are not checked yet: no table is written")
    if any(results.state(result, tolerance) in FAILED for result in [*checked, *heads]):
        raise typer.Exit(5)


def _has_failed(result: dict, tolerance: float, *, use: bool) -> bool:
    if use:
        states = {result[call][0] for call in results.CALLS if call in result}
        return "reason" in result or bool(states & {"failed", "refused", "crash"})
    return results.state(result, tolerance) in FAILED


def finish_use(done: list[dict], *, is_all: bool) -> None:
    """Write the table of what users call where all were called; exit with 5 after a crash."""
    for call in results.CALLS:
        counts = Counter(result[call][0] for result in done if call in result)
        console.print(f"{call}: " + ", ".join(f"{n} {state}" for state, n in counts.most_common()))
    if is_all:
        data, page = json.loads(DATA.read_text("utf-8")), TABLE.read_text("utf-8")
        page, data = results.with_use(page, data, done)
        save(results.to_json(data), page)
    if any(
        result[call][0] == "crash" for result in done for call in results.CALLS if call in result
    ):
        raise typer.Exit(5)


def write(checked: list[dict], heads: list[dict], tolerance: float) -> None:
    """Write the catalogue of the package and the docs page."""
    from architectures.catalogue import owners

    data = results.catalogue(checked, owners(), tolerance)
    save(results.to_json(data), results.page(checked, heads, data, tolerance))


def save(catalogue: str, page: str) -> None:
    """Write the catalogue of the package and the docs page."""
    for path, content in ((DATA, catalogue), (TABLE, page)):
        with atomic(path) as file:
            file.write_text(content, encoding="utf-8")
        console.print(f"wrote {path.relative_to(ROOT)}")


def summarize(checked: list[dict], tolerance: float, what: str) -> None:
    """Print the number of checks in each state."""
    counts = Counter(results.state(result, tolerance) for result in checked)
    console.print(f"{len(checked)} {what}: " + ", ".join(
        f"{count} {state}" for state, count in counts.most_common()
    ))  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
