"""What the positions along one side of a map are: words, patches of an image, frames of a sound."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
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
    seconds : when each position begins in a sound; None where there is none.
    """

    labels: tuple[str, ...]
    words: tuple[int | None, ...]
    word_labels: tuple[str, ...]
    special: tuple[bool, ...]
    padding: tuple[bool, ...]
    segments: tuple[int, ...]
    patches: tuple[tuple[int, int] | None, ...] | None = None
    seconds: tuple[float, ...] | None = None

    def __len__(self) -> int:
        """Return the number of positions."""
        return len(self.labels)

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
