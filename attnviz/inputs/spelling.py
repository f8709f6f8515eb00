"""What tokens spell: their labels, where they stand in a text, and what they leave out of it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import accumulate, pairwise
from typing import Any

from transformers import PreTrainedTokenizerBase as Tokenizer

from attnviz.results.axis import Span

_NORMALIZED = {"Mn", "Mc", "Me", "Cf", "Cc"}  # categories of characters that may be removed
_REPLACED = "\N{REPLACEMENT CHARACTER}"  # where a token is a part of a character
_MOST_PARTS = 8  # tokens that are parts of one character, or of two with a token in both
# The byte that each character stands for in a vocabulary of bytes, as in GPT-2's.
_SHOWN = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHERS = [value for value in range(256) if value not in _SHOWN]
_BYTES = {chr(n): n for n in range(256)} | {chr(256 + n): other for n, other in enumerate(_OTHERS)}
_SLACK = 32  # letters that a normalizer may have added or removed before a token


def decode(tokenizer: Tokenizer, ids: Sequence[int], **options: bool) -> str:
    """Return the text of tokens."""
    return str(tokenizer.decode(list(ids), clean_up_tokenization_spaces=False, **options))


def unknown_id(tokenizer: Tokenizer) -> int | None:
    """Return the id of what the vocabulary lacks; None for a tokenizer that knows every byte."""
    algorithm = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    of_bytes = getattr(algorithm, "unk_token", "") is None
    unknown: int | None = None if of_bytes else tokenizer.unk_token_id
    return unknown


def read_labels(ids: Sequence[int], tokenizer: Tokenizer | None) -> list[str]:
    r"""Return the text of each token, without the marks that stand for a space.

    Blanks are written as ␣ and \n, and bytes that are a part of a character as <0xC3>. Without a
    tokenizer a token is called by its id.
    """
    labels = {token_id: _label(token_id, tokenizer) for token_id in set(ids)}
    return [labels[token_id] for token_id in ids]


def _label(token_id: int, tokenizer: Tokenizer | None) -> str:
    token = None if tokenizer is None else tokenizer.convert_ids_to_tokens(token_id)
    if tokenizer is None or token is None:  # a row of the embedding beyond the vocabulary
        return f"[id {token_id}]"
    text = str(tokenizer.decode([token_id]))
    if text and _REPLACED not in text:
        return text.strip() or repr(text.replace(" ", "␣"))[1:-1]
    values = [_BYTES.get(character) for character in str(token)]
    if None in values or max(filter(None, values), default=0) < 128:
        return str(token)
    text = bytes(value or 0 for value in values).decode(errors="backslashreplace").strip()
    return re.sub(r"\\x(..)", lambda match: f"<0x{match[1].upper()}>", text)


@cache
def _fold(character: str) -> str:
    """Return a character without what normalizers change: case, marks, compatible forms."""
    folded = unicodedata.normalize("NFKD", character.casefold())
    kept = (c for c in folded if unicodedata.category(c) not in _NORMALIZED)
    return "".join(kept).replace(" ", "").strip()


def _letters(text: str) -> str:
    return "".join(map(_fold, text))


def _groups(tokenizer: Tokenizer, ids: Sequence[int]) -> Iterator[tuple[int, int, str | None]]:
    """Yield start, end and letters of tokens that are one character; None for unknown letters."""
    alone = {token_id: decode(tokenizer, [token_id]) for token_id in set(ids)}
    unknown, start = unknown_id(tokenizer), 0
    while start < len(ids):
        end, text = start + 1, alone[ids[start]]
        while not text or _REPLACED in text:
            following = ids[end : end + 1]
            if end - start == _MOST_PARTS or not following or following[0] == unknown:
                end, text = start + 1, ""
                break
            end += 1
            text = decode(tokenizer, ids[start:end])
        bare = text.removeprefix("##").removesuffix("@@") or text  # marks of parts of words
        yield start, end, None if ids[start] == unknown or not text else _letters(bare)
        start = end


def align(tokenizer: Tokenizer, ids: Sequence[int], text: str) -> list[Span]:
    """Return the span of each token in a text, for a tokenizer that does not report it.

    An unknown token has the letters between its neighbors. One that is not found has none.
    """
    groups = list(_groups(tokenizer, ids))
    origins = [n for n, character in enumerate(text) for _ in _fold(character)]
    folded = _letters(text)
    places: list[Span] = [(0, 0)] * len(groups)  # in the letters
    kinds = "".join("?" if letters is None else "x" for _, _, letters in groups)
    for match in re.finditer(r"(\?*)(x*)", kinds):  # unknown tokens, and the others after them
        unknown, start, end = match.start(1), match.start(2), match.end()
        before = places[unknown - 1][1] if unknown else 0
        run = [str(letters) for _, _, letters in groups[start:end]]
        places[start:end] = _find(run, folded, before, len(folded))
        after = places[start][0] if run else len(folded)
        places[unknown:start] = _divide(origins, text, (before, after), start - unknown)
    spans: list[Span] = [(0, 0)] * len(ids)
    for (first, last, _), (a, b) in zip(groups, places, strict=True):
        begin = origins[a] if a < len(origins) else len(text)
        spans[first:last] = [(begin, origins[b - 1] + 1 if b > a else begin)] * (last - first)
    return spans


def _find(run: Sequence[str], folded: str, start: int, end: int) -> list[Span]:
    """Return where consecutive pieces stand; where they differ from the text, each by itself."""
    whole = "".join(run)
    found = folded.find(whole, start, end)
    if found < 0 and len(run) > 1:
        middle, end = len(run) // 2, min(end, start + 2 * len(whole) + _SLACK)
        first = _find(run[:middle], folded, start, end)
        return first + _find(run[middle:], folded, first[-1][1], end)
    found, lengths = (start, [0]) if found < 0 else (found, [*map(len, run)])
    ends = list(accumulate(lengths, initial=found))
    return list(pairwise(ends))


def _divide(origins: Sequence[int], text: str, gap: Span, count: int) -> list[Span]:
    """Divide a gap between `count` unknown tokens: a word each, else a letter each."""
    places = range(*gap)
    words = [
        n for n in places if n == gap[0] or any(map(str.isspace, text[origins[n - 1] : origins[n]]))
    ]
    if len(words) != count:
        words = list(places[:count])
    starts = [*words, *[gap[1]] * (count + 1 - len(words))]
    return list(pairwise(starts))


def covered(
    tokenizer: Tokenizer, ids: Sequence[int], spans: Sequence[Span], text: str, *, cut: bool
) -> tuple[tuple[str, str] | None, tuple[str, ...]]:
    """Compare what the tokens of a text spell with the text at their places.

    Returns the first token that stands at another text, and that text; and the parts of the text
    that no token holds.
    cut : whether the end of the text is left out on purpose.
    """
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    normalizer = getattr(backend, "normalizer", None)
    misplaced, dropped, before = None, list[tuple[int, str]](), 0
    for (first, last), letters, part in _places(tokenizer, ids, spans):
        here, overlaps, before = text[first:last], first < before, last
        expected = _letters(here)
        if not letters or letters == expected:
            continue
        if normalizer is not None and letters == _letters(
            normalizer.normalize_str(here).replace("▁", " ")
        ):
            continue
        rest = iter(expected)
        if not overlaps and all(letter in rest for letter in letters):
            dropped.append((first, here.strip()))
        elif any(map(str.isalnum, letters + expected)) and misplaced is None:
            misplaced = decode(tokenizer, part).strip(), here
    place = 0
    for a, b in [*sorted(spans), *([] if cut else [(len(text), len(text))])]:
        if _letters(text[place:a]):
            dropped.append((place, text[place:a].strip()))
        place = max(place, b)
    return misplaced, tuple(dict.fromkeys(part for _, part in sorted(dropped)))


def _places(
    tokenizer: Tokenizer, ids: Sequence[int], spans: Sequence[Span]
) -> list[tuple[Span, str | None, list[int]]]:
    """Return places in a text, with the letters, if known, and the ids of the tokens of each."""
    places: list[tuple[Span, str | None, list[int]]] = []
    for start, end, letters in _groups(tokenizer, ids):
        first = min(span[0] for span in spans[start:end])
        last = max(span[1] for span in spans[start:end])
        part = list(ids[start:end])
        if places:
            (a, b), before, earlier = places[-1]
            is_within = (a <= first and last <= b) or (first <= a and b <= last)
            if is_within and first < b and last > a:
                places.pop()
                first, last, part = min(a, first), max(b, last), earlier + part
                letters = None if before is None or letters is None else before + letters
        places.append(((first, last), letters, part))
    return places


def pieces_in(spans: Sequence[Span], region: Span) -> tuple[int, ...]:
    """Return the indices of the tokens in a region of the text; special tokens are in none."""
    start, end = region
    return tuple(n for n, (a, b) in enumerate(spans) if a < b and a < end and b > start)
