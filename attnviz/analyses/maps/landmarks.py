"""Where in a long text one is: positions in round numbers, each with the words that stand there."""

from __future__ import annotations

import math

from attnviz.results import Axis, Landmark

_WORDS, _LETTERS = 3, 24  # of a landmark at most


def landmarks(axis: Axis, start: int, stop: int, most: int = 10) -> tuple[Landmark, ...]:
    """Return positions from `start` to `stop` in steps of a round number, `most` of them or fewer.

    >>> [mark.position for mark in landmarks(Axis.numbered(2345), 0, 2345)]
    [0, 500, 1000, 1500, 2000]
    """
    step = _round((stop - start) / most)
    first = -(-start // step) * step
    return tuple(Landmark(at, _words(axis, at)) for at in range(first, stop, step))


def _round(step: float) -> int:
    """Return the next of 1, 2, 5, 10, 20, 50 and so on."""
    power = int(10 ** math.floor(math.log10(max(step, 1))))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step)


def _words(axis: Axis, at: int) -> str:
    """Return the first words from a position on."""
    found: list[int] = []
    for word in axis.words[at:]:
        if word is not None and word not in found:
            found.append(word)
        if len(found) == _WORDS:
            break
    said = " ".join(axis.word_labels[word] for word in found)
    return said if len(said) <= _LETTERS else f"{said[:_LETTERS]}…"
