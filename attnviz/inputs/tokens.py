"""Tokens: texts given as them, what they spell, and where they stand in a text.

A text may come as token ids, as the output of a tokenizer, or as the messages of a chat.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor
from transformers import BatchEncoding
from transformers import PreTrainedTokenizerBase as Tokenizer

from attnviz.errors import InputError
from attnviz.results.axis import Span
from attnviz.results.text import counted

# What a user may give as one text. A type checker reads a string only in one piece.
_Ids: TypeAlias = "BatchEncoding | Tensor | np.ndarray[Any, Any] | Sequence[int]"
TextSource: TypeAlias = "str | _Ids | Sequence[Mapping[str, Any]]"
TokensSource: TypeAlias = "str | TokenIds | _Ids"
# What a tokenizer reports beside the arguments of a model.
BOOKKEEPING = {"special_tokens_mask", "offset_mapping", "length", "num_truncated_tokens",
               "overflowing_tokens", "overflow_to_sample_mapping", "token_type_ids",
               "mm_token_type_ids", "attention_mask"}  # fmt: skip
_NORMALIZED = {"Mn", "Mc", "Me", "Cf", "Cc"}  # categories of characters that may be removed
_REPLACED = "\N{REPLACEMENT CHARACTER}"  # where a token is a part of a character
_MOST_PARTS = 8  # tokens that are parts of one character, or of two with a token in both
# The byte that each character stands for in a vocabulary of bytes, as in GPT-2's.
_SHOWN = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHERS = [value for value in range(256) if value not in _SHOWN]
_BYTES = {chr(n): n for n in range(256)} | {chr(256 + n): other for n, other in enumerate(_OTHERS)}
_SLACK = 32  # letters that a normalizer may have added or removed before a token


@dataclass(frozen=True)
class TokenIds:
    """A text as the ids of its tokens, special ones included."""

    ids: tuple[int, ...]
    segments: tuple[int, ...] | None = None  # the token type of each, if the tokenizer gave them
    padding: int = 0  # how many tokens of padding stood before them, and are left out
    shifted: bool = False  # whether a target begins with the decoder's first token already

    @property
    def note(self) -> str:
        """What a reader should know."""
        return f"read as {len(self.ids)} token ids"


@dataclass(frozen=True)
class Chat:
    """The messages of a chat; prompted : whether the model is asked for an answer."""

    messages: tuple[Mapping[str, Any], ...]
    prompted: bool = False

    @property
    def note(self) -> str:
        """What a reader should know."""
        return f"a chat of {counted(len(self.messages), 'message')}, by the tokenizer's template"

    def render(self, tokenizer: Tokenizer, name: str, *, ids: bool = False) -> Any:
        """Return the text that the chat template of the tokenizer makes of the messages, or ids."""
        if not tokenizer.chat_template:
            raise InputError(
                f"The tokenizer of {name} has no chat template, so it reads no messages. Give a "
                "text, or set tokenizer.chat_template."
            )
        try:
            made: Any = tokenizer.apply_chat_template(
                [dict(message) for message in self.messages],
                tokenize=ids,
                return_dict=ids,
                add_generation_prompt=self.prompted,
            )
        except Exception as error:  # a template is code of the checkpoint, in a sandbox
            raise InputError(
                f"The chat template of {name} refuses these messages: {error}. Change their roles "
                "or their content."
            ) from error
        return list(made["input_ids"]) if ids else str(made)


def parse_text(value: Any, subject: str, *, prompted: bool) -> list[TokenIds | Chat] | None:
    """Return the texts, one or several, that come as ids or messages; None for anything else."""
    if isinstance(value, TokenIds):
        return [value]
    if isinstance(value, Mapping):
        return _of_encoding(value, subject)
    if isinstance(value, Tensor | np.ndarray):
        return [TokenIds(row) for row in _rows(value, subject)]
    if isinstance(value, list | tuple) and value:
        if all(map(_is_id, value)):
            return [TokenIds(tuple(map(int, value)))]
        if all(isinstance(item, Mapping) and "role" in item for item in value):
            return [Chat(tuple(value), prompted)]
    return None


def _is_id(item: Any) -> bool:
    return isinstance(item, int | np.integer) and not isinstance(item, bool)


def is_text(value: Mapping[str, Any]) -> bool:
    """Return whether a mapping holds the ids of texts, and a mask that hides only padding."""
    if "input_ids" not in value or set(value) - BOOKKEEPING - {"input_ids"}:
        return False
    if any(getattr(one, "ndim", 2) > 2 for one in value.values()):  # of choices, codebooks, tables
        return False
    return all(
        all(item in (0, 1) for item in row)
        and "10" not in "".join(map(str, map(int, row))).rstrip("0")
        for row in _lists([1] if value.get("attention_mask") is None else value["attention_mask"])
    )


def _of_encoding(value: Any, subject: str) -> list[TokenIds | Chat]:
    """Return the rows of a tokenizer's output, without its padding."""
    if "input_ids" not in value:
        hint = "A chat is a list of messages." if "role" in value else "Give a text, or ids."
        raise InputError(f"{subject} is a mapping without input_ids. {hint}")
    if not is_text(value):
        more = ", ".join(sorted(set(value) - BOOKKEEPING - {"input_ids"}))
        what = more or "a mask that hides tokens inside it"
        raise InputError(f"{subject} holds {what}. Give it alone, as inputs=….")
    rows = _rows(value["input_ids"], subject)
    masks, segments = (
        [None] * len(rows) if value.get(name) is None else _lists(value[name])
        for name in ("attention_mask", "token_type_ids")
    )
    if len({tuple(map(len, of)) for of in (rows, masks, segments) if None not in of}) > 1:
        raise InputError(f"{subject} has a mask of another shape than its ids. Fit it to them.")
    texts: list[TokenIds | Chat] = []
    for ids, mask, types in zip(rows, masks, segments, strict=True):
        kept = [n for n in range(len(ids)) if mask is None or mask[n]]
        texts.append(
            TokenIds(
                tuple(ids[n] for n in kept),
                None if types is None else tuple(int(types[n]) for n in kept),
                kept[0] if kept else 0,
            )
        )
    return texts


def _lists(values: Any) -> list[Any]:
    """Return numbers as rows, (N, T); one row where they are of one text, (T,)."""
    rows = values.tolist() if hasattr(values, "tolist") else values
    rows = rows if isinstance(rows, list | tuple) else ()
    rows = [row.tolist() if hasattr(row, "tolist") else row for row in rows]
    return rows if rows and isinstance(rows[0], list | tuple) else [rows]


def _rows(values: Any, subject: str) -> list[tuple[int, ...]]:
    """Return rows of whole numbers, (N, T) or of one text (T,)."""
    rows = _lists(values)
    if all(isinstance(row, list | tuple) and row and all(map(_is_id, row)) for row in rows):
        return [tuple(row) for row in rows]
    raise InputError(f"The ids of {subject.lower()} are whole numbers, one for each token.")


def special_ids(tokenizer: Tokenizer) -> set[int]:
    """Return the ids of special tokens.

    A mask and an unknown token stand for words; but a tokenizer of bytes knows every word, and its
    unknown token, such as <|endoftext|>, has another purpose.
    """
    special = set(tokenizer.all_special_ids) - {tokenizer.mask_token_id}
    ends = [getattr(tokenizer, f"{end}_token_id") for end in ("bos", "eos", "cls", "sep", "pad")]
    if (unknown := unknown_id(tokenizer)) not in ends:
        special.discard(unknown)
    return special


def special_flags(tokenizer: Tokenizer, ids: Sequence[int]) -> list[bool]:
    """Return which tokens are special."""
    special = special_ids(tokenizer)
    return [token in special for token in ids]


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
