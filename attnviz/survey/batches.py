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


def batches(lengths: Sequence[int], tokens: int, weights: int) -> Iterator[list[int]]:
    """Yield which of some texts are read together, the shortest first.

    Parameters
    ----------
    lengths : of the texts, in tokens. tokens, weights : how many positions, and how many weights of
        a head, padding among them, a batch holds at most; one text may hold more.

    >>> list(batches([5, 2, 9, 2], tokens=10, weights=100))
    [[1, 3], [0], [2]]
    """
    batch: list[int] = []
    for at in sorted(range(len(lengths)), key=lambda at: (lengths[at], at)):
        length, count = lengths[at], len(batch) + 1
        if batch and (count * length > tokens or count * length**2 > weights):
            yield batch
            batch = []
        batch.append(at)
    if batch:
        yield batch
