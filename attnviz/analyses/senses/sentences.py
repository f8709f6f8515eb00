"""Read sentences that use a word in each of its senses: given by the user, or bundled."""

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
    """Return the spans (start, end) of a word in a sentence, in any case.

    The 's of a possessive is not part of the word. If the sentence does not have the word itself,
    its regular English inflections count.

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
    """Return the words of a sentence that are spelled like a word."""
    words = {token.casefold(): token for token in regex.findall(r"[\w'’]+", sentence)}
    matches = difflib.get_close_matches(word.casefold(), words, n=3, cutoff=0.5)
    return [words[match] for match in matches]


def _matches(forms: tuple[str, ...], sentence: str) -> tuple[Span, ...]:
    """Return the spans of any of the forms between word boundaries (UAX #29)."""
    alternatives = "|".join(map(regex.escape, forms))
    pattern = regex.compile(rf"\b(?:{alternatives})(?=\b|['’])", _FLAGS)
    return tuple(match.span() for match in pattern.finditer(sentence))


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
    """Return the sentences of every sense, each once, with the spans of the word.

    Raises
    ------
    InputError
        The word has no bundled sentences, there are fewer than two senses, a sense has fewer than
        two sentences, or a sentence does not have the word or is in two senses.
    """
    if not isinstance(word, str) or not word.strip():
        raise InputError(f"Expected a word, got {word!r}. Type one, for example bank.")
    word = word.strip()
    texts_by_sense = _bundled_senses(word) if senses is None else senses
    if len(texts_by_sense) < 2:
        got = f"only {next(iter(texts_by_sense))!r}" if texts_by_sense else "none"
        raise InputError(
            f"Expected sentences for two senses of {word!r} or more, got {got}. "
            "Add --sense NAME=SENTENCE (a further entry of senses)."
        )
    sentences: dict[str, Sentence] = {}
    for sense, texts in texts_by_sense.items():
        for number, text in enumerate(_texts(sense, texts), start=1):
            before = sentences.get(text)
            if before is not None and before.sense != sense:
                raise InputError(
                    f"Expected each sentence in one sense, but {_quoted(text)} stands under "
                    f"{before.sense!r} and {sense!r}. Remove one."
                )
            sentences[text] = Sentence(text, sense, _word_spans(word, text, f"{sense} {number}"))
    for sense in texts_by_sense:
        count = sum(sentence.sense == sense for sentence in sentences.values())
        if count < 2:
            raise InputError(
                f"Expected at least two different sentences for each sense, got {count} for "
                f"{sense!r}: one is left out to be judged by the others. Add some."
            )
    return list(sentences.values())


def _bundled_senses(word: str) -> Mapping[str, Sequence[str]]:
    sentences = bundled()
    if word.casefold() not in sentences:
        raise InputError(
            f"Expected one of the words that come with sentences, {', '.join(sentences)}, got "
            f"{word!r}. Give your own: --sense NAME=SENTENCE, or a file of sentences (senses=…)."
        )
    return sentences[word.casefold()]


def _texts(sense: str, texts: str | Sequence[str]) -> list[str]:
    listed = [texts] if isinstance(texts, str) else list(texts)
    if not sense.strip():
        raise InputError("Expected a name for each sense, got an empty one. Name it.")
    for text in listed:
        if not isinstance(text, str):
            raise InputError(
                f"Expected the sentences of {sense!r} to be strings, got {type(text).__name__}."
            )
    normalized = [" ".join(text.split()) for text in listed]
    if not any(normalized):
        raise InputError(f"Expected sentences for the sense {sense!r}, got none. Add some.")
    return [text for text in normalized if text]


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
