"""What a caller hands over, one thing or a list of them, read and checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from attnviz.errors import InputError
from attnviz.inputs.audio import Recording, Sound, read_sound
from attnviz.inputs.image import Photo, Picture, read_image

T = TypeVar("T")
Many: TypeAlias = list[T] | tuple[T, ...]


@dataclass(frozen=True, eq=False)
class Given:
    """N inputs, by kind; None of a kind that was not given.

    several : whether a list was given. generate : how many tokens the model is to say by itself.
    """

    texts: list[str] | None
    pairs: list[str] | None
    targets: list[str] | None
    images: list[Photo] | None
    sounds: list[Sound] | None
    several: bool
    generate: int | None = None

    def batches(self) -> Iterator[Given]:
        """Yield what is run at once: all texts; or an image or a sound with what goes with it.

        Padding an image or a sound would change what the model makes of it, and generated texts
        differ in length.
        """
        if not (self.images or self.sounds or self.generate):
            yield self
        else:
            yield from self.one_by_one()

    def one_by_one(self) -> Iterator[Given]:
        """Yield each input by itself."""
        for n in range(len(self.images or self.sounds or self.texts or ())):
            yield Given(
                texts=_nth(self.texts, n),
                pairs=_nth(self.pairs, n),
                targets=_nth(self.targets, n),
                images=_nth(self.images, n),
                sounds=_nth(self.sounds, n),
                several=False,
                generate=self.generate,
            )


def _nth(found: list[T] | None, n: int) -> list[T] | None:
    return None if found is None else [found[n]]


def gather(
    text: str | Many[str] | None = None,
    *,
    pair: str | Many[str] | None = None,
    target: str | Many[str] | None = None,
    image: Picture | Many[Picture] | None = None,
    audio: Recording | Many[Recording] | None = None,
    sampling_rate: int | None = None,
    generate: int | None = None,
) -> Given:
    """Read what was given; there must be as many of each kind as there are inputs.

    Raises
    ------
    InputError : nothing was given, an empty text, a file that cannot be read, or lists of different
        lengths.
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
    given = Given(
        texts=_each(text, lambda one: _text(one, "text")),
        pairs=_each(pair, lambda one: _text(one, "pair")),
        targets=_each(target, lambda one: _text(one, "target")),
        images=_each(image, read_image),
        sounds=_each(audio, lambda one: read_sound(one, sampling_rate)),
        several=any(isinstance(what, list | tuple) for what in (text, image, audio)),
        generate=generate,
    )
    _expect_as_many(
        {
            "a text": given.texts,
            "an image": given.images,
            "a sound": given.sounds,
            "a pair": given.pairs,
            "a target": given.targets,
        }
    )
    return given


def _expect_as_many(kinds: dict[str, list[Any] | None]) -> None:
    """Refuse nothing at all, and lists of different lengths; the first given sets the length."""
    there = {name: found for name, found in kinds.items() if found is not None}
    first = next(iter(there), "a pair")
    if first in ("a pair", "a target"):
        raise InputError("Expected a text, an image or a sound, got none. Give one.")
    if not there[first]:
        raise InputError(f"Expected at least one {first.split()[1]}, got none.")
    for name, found in there.items():
        if len(found) != len(there[first]):
            raise InputError(
                f"Expected {name} for each of {len(there[first])} {first.split()[1]}s, "
                f"got {len(found)}."
            )


def _each(given: Any, read: Callable[[Any], T]) -> list[T] | None:
    if given is None:
        return None
    return [read(one) for one in (given if isinstance(given, list | tuple) else [given])]


def _text(given: Any, what: str) -> str:
    if not isinstance(given, str):
        raise InputError(
            f"Expected {what} to be a string, or a list of them, got {type(given).__name__}."
        )
    if not given.strip():
        raise InputError(f"Expected a {what} with at least one word, got an empty one.")
    return given
