"""Texts that come as token ids, as the output of a tokenizer, or as the messages of a chat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor
from transformers import BatchEncoding
from transformers import PreTrainedTokenizerBase as Tokenizer

from attnviz.errors import InputError
from attnviz.inputs.spelling import unknown_id
from attnviz.results.text import counted

# What a user may give as one text. A type checker reads a string only in one piece.
_Ids: TypeAlias = "BatchEncoding | Tensor | np.ndarray[Any, Any] | Sequence[int]"
TextSource: TypeAlias = "str | _Ids | Sequence[Mapping[str, Any]]"
TokensSource: TypeAlias = "str | TokenIds | _Ids"
# What a tokenizer reports beside the arguments of a model.
BOOKKEEPING = {"special_tokens_mask", "offset_mapping", "length", "num_truncated_tokens",
               "overflowing_tokens", "overflow_to_sample_mapping", "token_type_ids",
               "mm_token_type_ids", "attention_mask"}  # fmt: skip


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
