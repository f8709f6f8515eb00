"""Parse and validate the inputs of `attend`: one input, or a list of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from attnviz.errors import InputError, expect_words
from attnviz.inputs.audio import AudioSource, Sound, read_sound
from attnviz.inputs.image import ImageSource, Picture, read_image

T = TypeVar("T")
Many: TypeAlias = list[T] | tuple[T, ...]


@dataclass(frozen=True, eq=False)
class Inputs:
    """N inputs by kind; a kind that was not given is None.

    Attributes
    ----------
    several : bool
        Whether the caller gave a list.
    generate : int or None
        The number of tokens that the model generates.
    """

    texts: list[str] | None
    pairs: list[str] | None
    targets: list[str] | None
    pictures: list[Picture] | None
    sounds: list[Sound] | None
    several: bool
    generate: int | None = None

    def batches(self) -> Iterator[Inputs]:
        """Yield what runs at once: all texts, or one image or sound with its text.

        Padding an image or a sound would change what the model makes of it, and generated texts
        differ in length.
        """
        if self.pictures or self.sounds or self.generate:
            yield from self.one_by_one()
        else:
            yield self

    def one_by_one(self) -> Iterator[Inputs]:
        """Yield each input by itself."""
        for n in range(len(self.pictures or self.sounds or self.texts or ())):
            yield Inputs(
                texts=_nth(self.texts, n),
                pairs=_nth(self.pairs, n),
                targets=_nth(self.targets, n),
                pictures=_nth(self.pictures, n),
                sounds=_nth(self.sounds, n),
                several=False,
                generate=self.generate,
            )


def _nth(items: list[T] | None, n: int) -> list[T] | None:
    return None if items is None else [items[n]]


def parse_inputs(
    text: str | Many[str] | None = None,
    *,
    pair: str | Many[str] | None = None,
    target: str | Many[str] | None = None,
    image: ImageSource | Many[ImageSource] | None = None,
    audio: AudioSource | Many[AudioSource] | None = None,
    sampling_rate: int | None = None,
    generate: int | None = None,
) -> Inputs:
    """Read and check the inputs; each kind must have as many as there are inputs.

    Raises
    ------
    InputError
        Nothing is given, a text is empty, a file cannot be read, or lists differ in length.
    """
    if sampling_rate is not None and audio is None:
        raise InputError("Expected a sound with sampling_rate, got none. Give it as audio=….")
    if generate is not None and (not isinstance(generate, int) or generate < 1):
        raise InputError(
            f"Expected generate to be 1 token or more, got {generate!r}. Give a number, or nothing."
        )
    if generate is not None and target is not None:
        raise InputError(
            "Expected a target or a number of tokens to generate, got both. Leave one out."
        )
    inputs = Inputs(
        texts=_map(text, lambda item: _check_text(item, "text")),
        pairs=_map(pair, lambda item: _check_text(item, "pair")),
        targets=_map(target, lambda item: _check_text(item, "target")),
        pictures=_map(image, read_image),
        sounds=_map(audio, lambda item: read_sound(item, sampling_rate)),
        several=any(isinstance(value, list | tuple) for value in (text, image, audio)),
        generate=generate,
    )
    _expect_equal_counts(
        {
            "a text": inputs.texts,
            "an image": inputs.pictures,
            "a sound": inputs.sounds,
            "a pair": inputs.pairs,
            "a target": inputs.targets,
        }
    )
    return inputs


def _expect_equal_counts(kinds: dict[str, list[Any] | None]) -> None:
    """Raise InputError for no input at all, or for lists whose lengths differ from the first."""
    given = {name: items for name, items in kinds.items() if items is not None}
    first = next(iter(given), "a pair")
    if first in ("a pair", "a target"):
        raise InputError("Expected a text, an image or a sound, got none. Give one.")
    if not given[first]:
        raise InputError(f"Expected at least one {first.split()[1]}, got none.")
    for name, items in given.items():
        if len(items) != len(given[first]):
            raise InputError(
                f"Expected {name} for each of {len(given[first])} {first.split()[1]}s, "
                f"got {len(items)}."
            )


def _map(value: Any, read: Callable[[Any], T]) -> list[T] | None:
    if value is None:
        return None
    return [read(item) for item in (value if isinstance(value, list | tuple) else [value])]


def _check_text(text: Any, kind: str) -> str:
    if not isinstance(text, str):
        raise InputError(
            f"Expected {kind} to be a string, or a list of them, got {type(text).__name__}."
        )
    return expect_words(text, kind)
