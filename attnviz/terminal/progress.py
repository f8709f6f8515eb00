"""A bar with the remaining time on standard error, for whatever takes more than two seconds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from attnviz.runtime.progress import listening

_PATIENCE = 2.0  # seconds without a word


@contextmanager
def watched() -> Iterator[None]:
    """Show how far what runs inside has come; in a terminal only, and nothing remains of it."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task: list[TaskID] = []
    began = time.monotonic()

    def show(name: str, done: float) -> None:
        if not task and time.monotonic() - began > _PATIENCE:
            bar.start()
            task.append(bar.add_task(name, total=1.0))
        if task:
            bar.update(task[0], description=name, completed=done)

    try:
        with listening(show):
            yield
    finally:
        bar.stop()
