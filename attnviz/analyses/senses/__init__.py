"""In which layers a model separates the senses of a word.

This file reads the sentences of each sense, the user's or bundled ones. It imports nothing heavy: a
wrong word is refused at once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import regex

from attnviz.errors import InputError, did_you_mean, expect_words

Span = tuple[int, int]

_VOWELS = "aeiou"
_FLAGS = regex.IGNORECASE | regex.FULLCASE | regex.WORD


def find_word(word: str, sentence: str) -> tuple[Span, ...]:
    """Return the spans (start, end) of a word in a sentence, in any case.

    The 's of a possessive is not part of the word. If the sentence does not have the word itself,
    its regular English inflections count.
    """
    for forms in ((word,), inflections(word)):
        alternatives = "|".join(map(regex.escape, forms))  # between word boundaries (UAX #29)
        pattern = regex.compile(rf"\b(?:{alternatives})(?=\b|['’])", _FLAGS)
        if spans := tuple(match.span() for match in pattern.finditer(sentence)):
            return spans
    return ()


@cache
def inflections(word: str) -> tuple[str, ...]:
    """Return a word with the regular English endings of nouns and verbs."""
    last = word[-1:].casefold()
    if last == "e":
        return (f"{word}s", f"{word}d", f"{word[:-1]}ing")
    forms = [f"{word}{ending}" for ending in ("s", "es", "ed", "ing")]
    if last.isalpha() and last not in f"{_VOWELS}wxy" and word[-2:-1].casefold() in _VOWELS:
        forms += [f"{word}{last}{ending}" for ending in ("ed", "ing")]
    if last == "y":
        forms += [f"{word[:-1]}{ending}" for ending in ("ies", "ied")]
    return tuple(forms)


@dataclass(frozen=True)
class Sentence:
    """A sentence, the sense of the word in it, and the spans (start, end) of the word."""

    text: str
    sense: str
    places: tuple[Span, ...]


@cache
def bundled() -> dict[str, dict[str, list[str]]]:
    """Return the bundled sentences by word and sense. All were written for attnviz.

    On average the word is at the same position in each sense, but the positions are not balanced
    exactly: with exact balance, leaving one sentence out makes its position predict the other sense
    (Görgen et al. 2018, NeuroImage 180).
    """
    text = files("attnviz").joinpath("analyses", "senses", "sentences.json").read_text("utf-8")
    sentences: dict[str, dict[str, list[str]]] = json.loads(text)
    return sentences


def read_sentences(word: str, senses: Mapping[str, str | Sequence[str]] | None) -> list[Sentence]:
    """Return the sentences of every sense, with the spans of the word; see `senses`."""
    word = expect_words(word, "The word").strip()
    if senses is None:
        if word.casefold() not in bundled():
            raise InputError(
                f"There are no bundled sentences for {word!r}, only for {', '.join(bundled())}. "
                "Give your own with --sentences NAME=SENTENCE or NAME=FILE (sentences=)."
            )
        senses = bundled()[word.casefold()]
    if not isinstance(senses, Mapping):
        raise InputError(
            f"sentences must name at least two senses with sentences of each, as in "
            f"{{'river': [...], 'money': [...]}}, not {senses!r:.60}."
        )
    if len(senses) < 2:
        raise InputError(
            f"At least two senses of {word!r} are needed, not {len(senses)}. Add another one: "
            "--sentences NAME=SENTENCE, an entry of sentences=, or a line NAME: SENTENCE on a page."
        )
    sentences: list[Sentence] = []
    for sense, texts in senses.items():
        for number, text in enumerate(_texts(sense, texts), start=1):
            if not (places := find_word(word, text)):
                shown = repr(text if len(text) <= 60 else text[:59] + "…")
                hint = did_you_mean(word, regex.findall(r"[\w'’]+", text))
                hint = hint or "Write it, or leave the sentence out."
                raise InputError(f"{word!r} is not in {shown} ({sense} {number}). {hint}")
            sentences.append(Sentence(text, sense, places))
    return sentences


def _texts(sense: str, texts: str | Sequence[str]) -> list[str]:
    """Return the sentences of a sense without blank ones and extra blanks."""
    expect_words(sense, "The name of a sense")
    listed = [texts] if isinstance(texts, str) else list(texts)
    for text in listed:
        if not isinstance(text, str):
            raise InputError(
                f"The sentences of {sense!r} must be strings, not {type(text).__name__}."
            )
    normalized = [" ".join(text.split()) for text in listed]
    if not any(normalized):
        raise InputError(f"The sense {sense!r} has no sentences. Give at least two.")
    return [text for text in normalized if text]
