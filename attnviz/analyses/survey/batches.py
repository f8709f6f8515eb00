"""Texts in batches of a like length, so that little is computed on padding."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def windows(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yield so many items at a time: what is sorted and written together.

    >>> list(windows("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    rest = iter(items)
    while window := list(islice(rest, size)):
        yield window


def batches(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Yield which of some texts are read together, the shortest first.

    Parameters
    ----------
    lengths : of the texts, in tokens. tokens : how many positions a batch holds at most, padding
        among them; one text may hold more.

    >>> list(batches([5, 2, 9, 2], tokens=10))
    [[1, 3], [0], [2]]
    """
    batch: list[int] = []
    for at in sorted(range(len(lengths)), key=lambda at: (lengths[at], at)):
        if batch and (len(batch) + 1) * lengths[at] > tokens:
            yield batch
            batch = []
        batch.append(at)
    if batch:
        yield batch
