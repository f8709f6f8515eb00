"""Where a word stands in a sentence, in characters, whatever its case and inflection."""

from __future__ import annotations

import difflib
from functools import cache

import regex

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
    exact = _places((word,), sentence)
    return exact or _places(inflections(word), sentence)


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


def _places(forms: tuple[str, ...], sentence: str) -> tuple[Span, ...]:
    """Return where one of the forms stands between the boundaries of words (UAX #29)."""
    listed = "|".join(map(regex.escape, forms))
    pattern = regex.compile(rf"\b(?:{listed})(?=\b|['’])", _FLAGS)
    return tuple(match.span() for match in pattern.finditer(sentence))
