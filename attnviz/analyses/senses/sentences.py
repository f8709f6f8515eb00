"""Sentences in which a word is used in each of its senses: yours, or those that come along."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import regex

from attnviz.errors import InputError

Span = tuple[int, int]

_VOWELS = "aeiou"
_FLAGS = regex.IGNORECASE | regex.FULLCASE | regex.WORD


def find_word(word: str, sentence: str) -> tuple[Span, ...]:
    """Return the (start, end) of a word, wherever it stands as it was given, in any case.

    The 's of a possessive is no part of the word. Only where the sentence does not have the word
    itself, its regular English inflections count.

    >>> sentence = "Banks lend; the bank's vault is in the Bank."
    >>> [sentence[a:b] for a, b in find_word("bank", sentence)]
    ['bank', 'Bank']
    >>> find_word("bank", "Two banks merged.")
    ((4, 9),)
    """
    exact = _matches((word,), sentence)
    return exact or _matches(inflections(word), sentence)


@cache
def inflections(word: str) -> tuple[str, ...]:
    """Return a word with the regular English endings of nouns and verbs.

    >>> inflections("bat")
    ('bats', 'bates', 'bated', 'bating', 'batted', 'batting')
    >>> inflections("file")[:3], inflections("try")[-2:]
    (('files', 'filed', 'filing'), ('tries', 'tried'))
    """
    last = word[-1:].casefold()
    if last == "e":
        return (f"{word}s", f"{word}d", f"{word[:-1]}ing")
    forms = [f"{word}{ending}" for ending in ("s", "es", "ed", "ing")]
    if last.isalpha() and last not in f"{_VOWELS}wxy" and word[-2:-1].casefold() in _VOWELS:
        forms += [f"{word}{last}{ending}" for ending in ("ed", "ing")]
    if last == "y":
        forms += [f"{word[:-1]}{ending}" for ending in ("ies", "ied")]
    return tuple(forms)


def near_words(word: str, sentence: str) -> list[str]:
    """Return the words of a sentence that come near to one that is not in it."""
    found = {near.casefold(): near for near in regex.findall(r"[\w'’]+", sentence)}
    near = difflib.get_close_matches(word.casefold(), found, n=3, cutoff=0.5)
    return [found[match] for match in near]


def _matches(forms: tuple[str, ...], sentence: str) -> tuple[Span, ...]:
    """Return where one of the forms stands between the boundaries of words (UAX #29)."""
    listed = "|".join(map(regex.escape, forms))
    pattern = regex.compile(rf"\b(?:{listed})(?=\b|['’])", _FLAGS)
    return tuple(match.span() for match in pattern.finditer(sentence))


@dataclass(frozen=True)
class Sentence:
    """A sentence, the sense in which it uses the word, and where (start, end) the word stands."""

    text: str
    sense: str
    places: tuple[Span, ...]


@cache
def bundled() -> dict[str, dict[str, list[str]]]:
    """Return the sentences that come along, by word and sense; all were written for attnviz.

    In each sense the word stands as early and as late on average, but not in the same places: where
    every place were used alike, an occurrence left out would tip the balance to the other sense,
    and its place alone would be judged wrong each time (Görgen et al. 2018, NeuroImage 180).
    """
    text = files("attnviz").joinpath("analyses", "senses", "sentences.json").read_text("utf-8")
    found: dict[str, dict[str, list[str]]] = json.loads(text)
    return found


def gather(word: str, senses: Mapping[str, str | Sequence[str]] | None) -> list[Sentence]:
    """Return the sentences of every sense, each once, with the places of the word.

    Raises
    ------
    InputError : no bundled word; one sense only, or a sense with fewer than two sentences; a
        sentence without the word, or in two senses.
    """
    if not isinstance(word, str) or not word.strip():
        raise InputError(f"Expected a word, got {word!r}. Type one, for example bank.")
    word = word.strip()
    given = _bundled_senses(word) if senses is None else senses
    if len(given) < 2:
        got = f"only {next(iter(given))!r}" if given else "none"
        raise InputError(
            f"Expected sentences for two senses of {word!r} or more, got {got}. "
            "Add --sense NAME=SENTENCE (a further entry of senses)."
        )
    found: dict[str, Sentence] = {}
    for sense, texts in given.items():
        for number, text in enumerate(_texts(sense, texts), start=1):
            before = found.get(text)
            if before is not None and before.sense != sense:
                raise InputError(
                    f"Expected each sentence in one sense, but {_quoted(text)} stands under "
                    f"{before.sense!r} and {sense!r}. Remove one."
                )
            found[text] = Sentence(text, sense, _word_spans(word, text, f"{sense} {number}"))
    for sense in given:
        count = sum(sentence.sense == sense for sentence in found.values())
        if count < 2:
            raise InputError(
                f"Expected at least two different sentences for each sense, got {count} for "
                f"{sense!r}: one is left out to be judged by the others. Add some."
            )
    return list(found.values())


def _bundled_senses(word: str) -> Mapping[str, Sequence[str]]:
    known = bundled()
    if word.casefold() not in known:
        raise InputError(
            f"Expected one of the words that come with sentences, {', '.join(known)}, got "
            f"{word!r}. Give your own: --sense NAME=SENTENCE, or a file of sentences (senses=…)."
        )
    return known[word.casefold()]


def _texts(sense: str, texts: str | Sequence[str]) -> list[str]:
    listed = [texts] if isinstance(texts, str) else list(texts)
    if not sense.strip():
        raise InputError("Expected a name for each sense, got an empty one. Name it.")
    for text in listed:
        if not isinstance(text, str):
            raise InputError(
                f"Expected the sentences of {sense!r} to be strings, got {type(text).__name__}."
            )
    kept = [" ".join(text.split()) for text in listed]
    if not any(kept):
        raise InputError(f"Expected sentences for the sense {sense!r}, got none. Add some.")
    return [text for text in kept if text]


def _word_spans(word: str, text: str, which: str) -> tuple[Span, ...]:
    places = find_word(word, text)
    if places:
        return places
    near = near_words(word, text)
    hint = f"Did you mean {' or '.join(near)}?" if near else "Write it, or leave the sentence out."
    raise InputError(
        f"Expected {word!r} in every sentence, but it is not in {_quoted(text)} ({which}). {hint}"
    )


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:59] + "…")
