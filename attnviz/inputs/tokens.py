"""Texts that come as token ids, as the output of a tokenizer, or as the messages of a chat."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from torch import Tensor

from attnviz.errors import InputError
from attnviz.results.axis import Span

if TYPE_CHECKING:
    from transformers import BatchEncoding, PreTrainedTokenizerBase

# What a user may give as one text. A type checker reads a string only in one piece.
_Ids: TypeAlias = "BatchEncoding | Tensor | np.ndarray[Any, Any] | Sequence[int]"
_Messages: TypeAlias = Sequence[Mapping[str, Any]]
TextSource: TypeAlias = "str | _Ids | _Messages"
# What a tokenizer reports beside the arguments of a model.
BOOKKEEPING = {"special_tokens_mask", "offset_mapping", "length", "num_truncated_tokens",
               "overflowing_tokens", "overflow_to_sample_mapping", "token_type_ids",
               "mm_token_type_ids", "attention_mask"}  # fmt: skip


@dataclass(frozen=True)
class TokenIds:
    """A text as the ids of its tokens, special ones included.

    segments : the token type of each; None where the tokenizer gave none.
    """

    ids: tuple[int, ...]
    segments: tuple[int, ...] | None = None

    @property
    def note(self) -> str:
        """What a reader should know."""
        return f"read as {len(self.ids)} token ids"

    def second(self) -> list[bool]:
        """Return which tokens belong to the second text of a pair."""
        segments = self.segments or (0,) * len(self.ids)
        return [segment == 1 and max(segments) == 1 for segment in segments]


@dataclass(frozen=True)
class Chat:
    """The messages of a chat; prompted : whether the model is asked for an answer."""

    messages: tuple[Mapping[str, Any], ...]
    prompted: bool = False

    @property
    def note(self) -> str:
        """What a reader should know."""
        count = len(self.messages)
        return f"a chat of {count} message{'' if count == 1 else 's'}, by the tokenizer's template"

    def render(self, tokenizer: PreTrainedTokenizerBase, name: str) -> str:
        """Return the text that the chat template of the tokenizer makes of the messages."""
        if not tokenizer.chat_template:
            raise InputError(
                f"The tokenizer of {name} has no chat template, so it reads no messages. Give a "
                "text, or set tokenizer.chat_template."
            )
        try:
            text = tokenizer.apply_chat_template(
                [dict(message) for message in self.messages],
                tokenize=False,
                add_generation_prompt=self.prompted,
            )
        except Exception as error:  # a template is code of the checkpoint, in a sandbox
            raise InputError(
                f"The chat template of {name} refuses these messages: {error}. Change their roles "
                "or their content."
            ) from error
        return str(text)


def parse_text(value: Any, subject: str, *, prompted: bool) -> list[TokenIds | Chat] | None:
    """Return the texts that come as ids or messages; None for anything else.

    A tokenizer's output may hold several.
    """
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
    mask = np.asarray(value.get("attention_mask", [1]))
    return mask.ndim < 3 and all(_is_one_run(row) for row in np.atleast_2d(mask).tolist())


def _is_one_run(row: list[Any]) -> bool:
    """Return whether the ones of a mask follow each other."""
    return set(row) <= {0, 1} and "10" not in "".join(map(str, map(int, row))).rstrip("0")


def _of_encoding(value: Any, subject: str) -> list[TokenIds | Chat]:
    """Return the rows of a tokenizer's output, without its padding."""
    if "input_ids" not in value:
        hint = "A chat is a list of messages." if "role" in value else "Give a text, or ids."
        raise InputError(f"{subject} is a mapping without input_ids. {hint}")
    if not is_text(value):
        raise InputError(
            f"{subject} holds {', '.join(sorted(set(value) - BOOKKEEPING))}, or a mask that hides "
            "tokens inside it. Give it alone, as inputs=…."
        )
    rows = _rows(value["input_ids"], subject)
    masks, segments = (
        _rows(value[name], subject) if name in value else [None] * len(rows)
        for name in ("attention_mask", "token_type_ids")
    )
    texts: list[TokenIds | Chat] = []
    for ids, mask, types in zip(rows, masks, segments, strict=True):
        kept = [n for n in range(len(ids)) if mask is None or mask[n]]
        texts.append(
            TokenIds(
                tuple(ids[n] for n in kept),
                None if types is None else tuple(types[n] for n in kept),
            )
        )
    return texts


def _rows(values: Any, subject: str) -> list[tuple[int, ...]]:
    """Return rows of whole numbers, (N, T) or of one text (T,)."""
    rows = values.tolist() if isinstance(values, Tensor | np.ndarray) else values
    if isinstance(rows, list | tuple) and rows and not isinstance(rows[0], list | tuple):
        rows = [rows]
    if isinstance(rows, list | tuple) and rows:
        found = [tuple(row) for row in rows if isinstance(row, list | tuple) and row]
        if len(found) == len(rows) and all(_is_id(item) for row in found for item in row):
            return found
    raise InputError(f"The ids of {subject.lower()} are whole numbers, one for each token.")


def special_flags(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[bool]:
    """Return which tokens are special.

    A mask and an unknown token stand for words; but a tokenizer of bytes knows every word, and its
    unknown token, such as <|endoftext|>, has another purpose.
    """
    special = set(tokenizer.all_special_ids) - {tokenizer.mask_token_id}
    ends = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.cls_token_id,
            tokenizer.sep_token_id, tokenizer.pad_token_id)  # fmt: skip
    algorithm = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    of_bytes = getattr(algorithm, "unk_token", "") is None
    if tokenizer.unk_token_id not in ends and not of_bytes:
        special.discard(tokenizer.unk_token_id)
    return [token in special for token in ids]


def spell(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> tuple[str, list[Span]]:
    """Return the text of some ids, and the span of each in it.

    The spans are those of the tokenizer, where it makes the same ids of the text; else the part
    that each id adds to the text.
    """

    def decoded(some: Sequence[int]) -> str:
        return str(tokenizer.decode(list(some), clean_up_tokenization_spaces=False))

    text = decoded(ids)
    if tokenizer.is_fast:
        options: dict[str, Any] = {"add_special_tokens": False, "return_offsets_mapping": True}
        again = tokenizer(text, verbose=False, **options)
        if again["input_ids"] == list(ids):
            return text, list(again["offset_mapping"])
    ends = [0, *(len(decoded(ids[: n + 1])) for n in range(len(ids)))]
    return text, [(start, max(start, end)) for start, end in itertools.pairwise(ends)]


def expect_known(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], name: str) -> None:
    """Raise InputError for an id that is not in the vocabulary."""
    size = len(tokenizer)
    for token in ids:
        if not 0 <= token < size:
            raise InputError(
                f"{token} is not a token id of {name}: its tokenizer has ids 0–{size - 1}."
            )


def read_ids(
    tokenizer: PreTrainedTokenizerBase, source: TokenIds, name: str
) -> tuple[dict[str, Any], tuple[str, str | None]]:
    """Return token ids as a tokenizer encodes a text, and the text or the pair that they spell."""
    expect_known(tokenizer, source.ids, name)
    special, second = special_flags(tokenizer, source.ids), source.second()
    offsets: list[Span] = [(0, 0)] * len(source.ids)
    texts: list[str | None] = [None, None]
    for number in (False, True):
        places = [n for n, s in enumerate(special) if not s and second[n] == number]
        if places or not number:
            text, spans = spell(tokenizer, [source.ids[n] for n in places])
            texts[number] = text
            for place, span in zip(places, spans, strict=True):
                offsets[place] = span
    encoding = {
        "input_ids": list(source.ids),
        "attention_mask": [1] * len(source.ids),
        "token_type_ids": list(source.segments or (0,) * len(source.ids)),
        "special_tokens_mask": special,
        "offset_mapping": offsets,
        "segments": [int(flag) for flag in second],
    }
    return encoding, (str(texts[0]), texts[1])


def encode_messages(
    tokenizer: PreTrainedTokenizerBase, chat: Chat, name: str
) -> tuple[dict[str, Any], tuple[str, str | None]]:
    """Return the messages of a chat as a tokenizer encodes a text, and the text of the template."""
    text = chat.render(tokenizer, name)
    encoded = tokenizer(
        text,
        add_special_tokens=False,
        return_offsets_mapping=tokenizer.is_fast,
        verbose=False,
    )
    ids = list(encoded["input_ids"])
    encoding = {
        "input_ids": ids,
        "attention_mask": [1] * len(ids),
        "token_type_ids": [0] * len(ids),
        "special_tokens_mask": special_flags(tokenizer, ids),
        "offset_mapping": encoded.get("offset_mapping"),
        "segments": [0] * len(ids),
    }
    return encoding, (text, None)
