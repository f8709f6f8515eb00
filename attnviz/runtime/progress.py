"""How far a long run has come, told to whoever listens; where nobody does, nothing happens.

Rooms that take long say which part of their work they are at. A part may have parts of its own, so
none needs to know what it is a part of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Listener: TypeAlias = Callable[[str, float], None]


@dataclass(frozen=True)
class _Part:
    """The part of the whole that is being done, from `start` to `end`, and what it is called."""

    listener: Listener
    name: str = ""
    start: float = 0.0
    end: float = 1.0


_current: ContextVar[_Part | None] = ContextVar("part", default=None)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Have `listener` hear what is being done, and which share of the whole is done.

    >>> with listening(lambda name, done: print(name, done)), part(1, 2, "second half"):
    ...     tell(0.5)
    second half 0.5
    second half 0.75
    second half 1.0
    """
    token = _current.set(_Part(listener))
    try:
        yield
    finally:
        _current.reset(token)


@contextmanager
def part(number: int, count: int, name: str = "") -> Iterator[None]:
    """Count what is told inside as one of `count` equal parts, from 0; say when it is done."""
    outer = _current.get()
    if outer is None:
        yield
        return
    size = (outer.end - outer.start) / count
    start = outer.start + min(number, count - 1) * size
    token = _current.set(replace(outer, name=name or outer.name, start=start, end=start + size))
    try:
        tell(0.0)
        yield
        tell(1.0)
    finally:
        _current.reset(token)


def tell(share: float) -> None:
    """Say which share of the current part is done."""
    current = _current.get()
    if current is not None:
        done = current.start + (current.end - current.start) * share
        current.listener(current.name, done)


def say(name: str, share: float | None = None) -> None:
    """Say what is being done, and which share of the current part is done, if that is known."""
    current = _current.get()
    if current is not None:
        done = current.start + (current.end - current.start) * (share or 0.0)
        current.listener(name, done)


def track(items: Sequence[T], name: str = "") -> Iterator[T]:
    """Yield each of some items, and count what is done with it as a part.

    >>> with listening(lambda name, done: print(done)):
    ...     for _ in track("ab"):
    ...         pass
    0.0
    0.5
    0.5
    1.0
    """
    for number, item in enumerate(items):
        with part(number, len(items), name):
            yield item
