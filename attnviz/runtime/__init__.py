"""The versions of libraries, what notebooks show, and the progress of long runs: without torch.

Progress is reported to a listener; without one, nothing happens. A task may have subtasks, so no
code needs to know which task it is a part of.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, metadata, version
from typing import Any, TypeAlias, TypeVar

NOT_INSTALLED = "(not installed)"
_STYLE = "font-family:monospace;line-height:1.25;white-space:pre;overflow-x:auto"
T = TypeVar("T")
Listener: TypeAlias = Callable[[str, float], None]


@cache
def version_of(package: str) -> str:
    """Return the version of a package; attnviz also runs from its source folder, uninstalled."""
    try:
        return version(package)
    except PackageNotFoundError:
        return NOT_INSTALLED


def address_of(name: str) -> str:
    """Return an address of the project by its name in pyproject.toml; "" if not installed."""
    with suppress(PackageNotFoundError):
        for line in metadata("attnviz").get_all("Project-URL", []):
            if line.startswith(f"{name}, "):
                return str(line).partition(", ")[2]
    return ""


class Printed:
    """What a notebook shows as the text that the command line prints."""

    def _repr_html_(self) -> str:
        return text_as_html(self)


def text_as_html(renderable: Any) -> str:
    """Return what rich prints, as HTML for a notebook."""
    from rich.console import Console

    # In a notebook a console would also print there by itself.
    console = Console(
        record=True, file=io.StringIO(), width=100, color_system="truecolor", force_jupyter=False
    )
    console.print(renderable)
    code = f'<pre style="{_STYLE}">{{code}}</pre>'
    return console.export_html(inline_styles=True, code_format=code)


@dataclass(frozen=True)
class _Task:
    """The current task: its name, and the shares of the whole at which it starts and ends."""

    listener: Listener
    name: str = ""
    start: float = 0.0
    end: float = 1.0


_current: ContextVar[_Task | None] = ContextVar("task", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Call `listener` with the name of the current task and the share of the whole that is done."""
    token = _current.set(_Task(listener))
    try:
        yield
    finally:
        _current.reset(token)


def is_listened() -> bool:
    """Return whether a listener hears of progress."""
    return _current.get() is not None


@contextmanager
def notebook_bar(name: str) -> Iterator[None]:
    """Show in a notebook how far a call is that takes longer than a second."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if is_listened() or not hasattr(shell, "kernel"):
        yield
        return
    from huggingface_hub.utils.tqdm import tqdm  # without ipywidgets the bar is text

    look = {"delay": 1.0, "leave": False, "bar_format": "{desc} {bar} {elapsed}"}
    with tqdm(total=1.0, desc=name, **look) as bar:  # type: ignore[no-untyped-call]

        def update(name: str, share: float) -> None:
            bar.set_description_str(name, refresh=False)
            bar.update(share - bar.n)

        with listening(update):
            yield


@contextmanager
def part(number: int, count: int, name: str = "") -> Iterator[None]:
    """Make the block one of `count` equal parts of the current task; `number` counts from 0."""
    task = _current.get()
    if task is None:
        yield
        return
    size = (task.end - task.start) / count
    start = task.start + min(number, count - 1) * size
    subtask = replace(task, name=name or task.name, start=start, end=start + size)
    _current.set(subtask)
    try:
        say(subtask.name)
        yield
        say(subtask.name, 1.0)
    finally:
        # A loop that raises leaves the generator of `track` open. It is closed later, perhaps in
        # another thread, where the current task is another one.
        if _current.get() is subtask:
            _current.set(task)


def say(name: str, share: float | None = None) -> None:
    """Report the current work, and the share of the current task that is done, if known."""
    task = _current.get()
    if task is not None:
        task.listener(name, task.start + (task.end - task.start) * (share or 0.0))


def track(items: Sequence[T], name: str = "") -> Iterator[T]:
    """Yield the items; the work on each is one part of the current task."""
    for number, item in enumerate(items):
        with part(number, len(items), name):
            yield item
