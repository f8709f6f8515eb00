"""What the positions along one side of a map are: words, patches of an image, frames of a sound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from attnviz.results.base import Rules, Savable, one_each

T = TypeVar("T")


@dataclass(frozen=True)
class Axis(Savable):
    """What the positions along one side of a map are, one entry per position.

    Attributes
    ----------
    labels : the pieces as the tokenizer writes them ("play", "##ing").
    words : the index in `word_labels` of the word that the piece belongs to; None for a special
        token and for padding.
    word_labels : the words as they stand in the text.
    special : True for tokens that the tokenizer added ([CLS], [SEP], <s>, …), padding included.
    padding : True for the positions that only fill up a batch.
    segments : 0, or 1 for the second text of a pair.
    patches : the (row, column) on an image of the patch that the position stands for, None for
        one that is no patch; None for all where there is no image.
    seconds : when the frame that the position stands for begins in a sound, None for one that is
        no frame; None for all where there is no sound.
    """

    labels: tuple[str, ...]
    words: tuple[int | None, ...]
    word_labels: tuple[str, ...]
    special: tuple[bool, ...]
    padding: tuple[bool, ...]
    segments: tuple[int, ...]
    patches: tuple[tuple[int, int] | None, ...] | None = None
    seconds: tuple[float | None, ...] | None = None

    def __len__(self) -> int:
        """Return the number of positions."""
        return len(self.labels)

    def _rules(self) -> Rules:
        yield (
            "one entry of each kind for each label",
            one_each(
                len(self),
                (
                    self.words,
                    self.special,
                    self.padding,
                    self.segments,
                    self.patches,
                    self.seconds,
                ),
            ),
        )
        count = len(self.word_labels)
        yield (
            "words that have a label",
            all(word is None or 0 <= word < count for word in self.words),
        )

    def at(self, positions: Sequence[int]) -> Axis:
        """Return some of the positions, in this order."""

        def some(entries: tuple[T, ...]) -> tuple[T, ...]:
            return tuple(entries[at] for at in positions)

        return replace(
            self,
            labels=some(self.labels),
            words=some(self.words),
            special=some(self.special),
            padding=some(self.padding),
            segments=some(self.segments),
            patches=None if self.patches is None else some(self.patches),
            seconds=None if self.seconds is None else some(self.seconds),
        )

    @classmethod
    def plain(
        cls,
        labels: Sequence[str],
        *,
        special: Sequence[bool],
        patches: Sequence[tuple[int, int] | None] | None = None,
        seconds: Sequence[float | None] | None = None,
    ) -> Axis:
        """Return an axis of positions that belong to no words: patches, frames."""
        length = len(labels)
        return cls(
            labels=tuple(labels),
            words=(None,) * length,
            word_labels=(),
            special=tuple(special),
            padding=(False,) * length,
            segments=(0,) * length,
            patches=None if patches is None else tuple(patches),
            seconds=None if seconds is None else tuple(seconds),
        )

    @classmethod
    def numbered(cls, length: int) -> Axis:
        """Return an axis of positions of which nothing is known but their number."""
        numbers = tuple(map(str, range(length)))
        return cls(
            labels=numbers,
            words=tuple(range(length)),
            word_labels=numbers,
            special=(False,) * length,
            padding=(False,) * length,
            segments=(0,) * length,
        )


@dataclass(frozen=True)
class Landmark(Savable):
    """A position in a long text, and the words that stand there."""

    position: int
    words: str


@dataclass(frozen=True)
class AxisGeometry(Savable):
    """Where the rows, or the columns, of a map lie in an image, in a sound or in a long text.

    patches, seconds : as in `Axis`, one entry per row or column; None where there are none.
    landmarks : positions to be named in place of each row or column; none in a short text.
    start, cell : the position at which the first begins, and how many each joins.
    """

    patches: tuple[tuple[int, int] | None, ...] | None = None
    seconds: tuple[float | None, ...] | None = None
    landmarks: tuple[Landmark, ...] = ()
    start: int = 0
    cell: int = 1

    def fits(self, count: int) -> bool:
        """Return whether there is a place for each of so many rows or columns."""
        return one_each(count, (self.patches, self.seconds))
