"""Text → token ids in a padded batch, and what each position is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from attnviz.errors import InputError
from attnviz.inputs.readers import expect_room, reading
from attnviz.results import Axis
from attnviz.results.words import Span, make_axis
from attnviz.runtime.logs import hushed

if TYPE_CHECKING:
    from transformers import BatchEncoding, PreTrainedTokenizerBase

    from attnviz.models.checkpoint import Checkpoint

Couple = tuple[str, str | None]  # a text, and the second one of a pair


def _tokenizer(checkpoint: Checkpoint) -> PreTrainedTokenizerBase:
    tokenizer = checkpoint.tokenizer
    assert tokenizer is not None  # no model that reads text is loaded without one
    return tokenizer


def encode_texts(
    checkpoint: Checkpoint,
    couples: Sequence[Couple],
    *,
    truncate: bool,
    of_decoder: bool = False,
) -> tuple[dict[str, Tensor], tuple[Axis, ...], tuple[int | None, ...]]:
    """Tokenize texts, or pairs of them, and pad them on the right.

    Returns
    -------
    Tensors (N, T) by the name under which the model takes them, the positions of each text, and
    how many tokens a text had that was cut, else None.
    """
    tokenizer = _tokenizer(checkpoint)
    longest = max_tokens(checkpoint.module, tokenizer, of_decoder=of_decoder)
    tokenized = [tokenize(checkpoint, couple, longest, truncate=truncate) for couple in couples]
    encodings, cut_from = zip(*tokenized, strict=True)
    inputs = pad_together(checkpoint, encodings)
    length = inputs["input_ids"].shape[1]
    axes = tuple(
        text_axis(
            tokenizer,
            encoding["input_ids"],
            special=encoding["special_tokens_mask"],
            offsets=encoding.get("offset_mapping"),
            segments=_segments(encoding),
            texts=(text, pair or ""),
            length=length,
        )
        for encoding, (text, pair) in zip(encodings, couples, strict=True)
    )
    return inputs, axes, cut_from


def tokenize(
    checkpoint: Checkpoint, couple: Couple, longest: int | None, *, truncate: bool
) -> tuple[BatchEncoding, int | None]:
    """Return the tokens of a text, or of a pair, and how many they were before they were cut.

    longest : how many the model can read, from `max_tokens`.

    Raises
    ------
    InputError : a text that leaves no token, or more than the model can read, unless it is cut.
    """
    tokenizer = _tokenizer(checkpoint)
    expect_room(checkpoint, sum(map(len, filter(None, couple))))
    encoding = _tokenize(tokenizer, *couple)
    if all(encoding["special_tokens_mask"]):
        raise InputError(
            f"Expected a text with at least one word, got {couple[0][:40]!r}. Type a sentence."
        )
    length = len(encoding["input_ids"])
    if longest is None or length <= longest:
        return encoding, None
    if not truncate:
        raise InputError(
            f"Expected at most {longest} tokens, the most that {checkpoint.name} can read, "
            f"got {length}. Shorten the text, or cut it with --truncate (truncate=True)."
        )
    return _tokenize(tokenizer, *couple, longest), length


def pad_together(
    checkpoint: Checkpoint, encodings: Sequence[Mapping[str, Sequence[int]]]
) -> dict[str, Tensor]:
    """Return encoded texts as the model takes them, (N, T), padded on the right."""
    fill = {"input_ids": _pad_id(_tokenizer(checkpoint))}
    return {
        name: padded([each[name] for each in encodings], fill.get(name, 0)).to(checkpoint.device)
        for name in ("input_ids", "attention_mask", "token_type_ids")
        if name in encodings[0]
    }


def padded(rows: Sequence[Sequence[int]], fill: int) -> Tensor:
    """Return rows of whole numbers as one tensor (N, T), filled up on the right."""
    T = max(map(len, rows))
    return torch.tensor([[*row, *[fill] * (T - len(row))] for row in rows])


def max_tokens(
    module: nn.Module, tokenizer: PreTrainedTokenizerBase, *, of_decoder: bool = False
) -> int | None:
    """Return how many tokens the model can read, special ones included; None if any number.

    of_decoder : whether the decoder is to read them, beside an encoder.
    """
    limits, said = [10**9], tokenizer.model_max_length
    if isinstance(said, int | float) and said > 0:
        limits.append(int(said))
    config = getattr(module, "config", None)
    for part in (config, getattr(config, "text_config", None)):
        names = ("max_position_embeddings", *(["max_target_positions"] if of_decoder else []))
        for positions in (getattr(part, name, None) for name in names):
            if isinstance(positions, int) and positions > 0:  # some say -1 for "any number"
                limits.append(positions)
    for name, table in module.named_modules():
        # Some tables of positions start behind the index that stands for padding.
        if name.endswith("position_embeddings") and isinstance(table, nn.Embedding):
            start = 0 if table.padding_idx is None else table.padding_idx + 1
            limits.append(table.num_embeddings - start)
    limit = min(limits)
    return limit if limit < 10**9 else None


def _tokenize(
    tokenizer: PreTrainedTokenizerBase, text: str, pair: str | None, cut: int | None = None
) -> BatchEncoding:
    for typed in filter(None, (text, pair)):
        try:
            typed.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"Expected text in valid Unicode, got {typed[error.start : error.start + 20]!a} at "
                f"character {error.start:,}. Remove what cannot be encoded."
            ) from error
    with hushed():
        encoding: BatchEncoding = tokenizer(
            text,
            pair,
            truncation=cut is not None,
            max_length=cut,
            return_offsets_mapping=tokenizer.is_fast,
            return_special_tokens_mask=True,
            return_attention_mask=True,
            split_special_tokens=True,
            verbose=False,
        )
    return encoding


def token_spans(checkpoint: Checkpoint, text: str) -> list[Span]:
    """Return where each token of a text stands in it, in characters; (0, 0) for special tokens.

    Raises
    ------
    InputError : text that is no Unicode, or a tokenizer that does not know where its tokens stand.
    """
    tokenizer = _tokenizer(checkpoint)
    with reading(checkpoint):
        spans: list[Span] | None = _tokenize(tokenizer, text, None).get("offset_mapping")
    if spans is None:
        raise InputError(
            f"Expected a tokenizer that knows where its tokens stand, but that of "
            f"{checkpoint.name} does not. Load its fast version (tokenizer=…)."
        )
    return spans


def pieces_in(spans: Sequence[Span], place: Span) -> tuple[int, ...]:
    """Return which tokens, of `token_spans`, stand in a place of the text; special ones nowhere.

    >>> pieces_in([(0, 0), (0, 2), (2, 6), (7, 9), (0, 0)], (0, 6))
    (1, 2)
    """
    start, end = place
    return tuple(at for at, (a, b) in enumerate(spans) if a < b and a < end and b > start)


def text_axis(
    tokenizer: PreTrainedTokenizerBase,
    ids: Sequence[int],
    *,
    special: Sequence[int],
    offsets: Sequence[Span] | None,
    segments: Sequence[int],
    texts: tuple[str, str],
    length: int,
) -> Axis:
    """Describe the positions of an encoded text, padded on the right to `length`."""
    padding = length - len(ids)
    return make_axis(
        labels=[*read_labels(ids, tokenizer), *["[PAD]"] * padding],
        offsets=None if offsets is None else [*offsets, *[(0, 0)] * padding],
        special=[*map(bool, special), *[True] * padding],
        padding=[*[False] * len(ids), *[True] * padding],
        segments=[*segments, *[0] * padding],
        texts=texts,
    )


def _segments(encoding: BatchEncoding) -> list[int]:
    """Return 0 or 1 for every token; a special token belongs to the text before it."""
    if not encoding.is_fast:
        return list(encoding.get("token_type_ids", [0] * len(encoding["input_ids"])))
    segment, segments = 0, []
    for found in encoding.sequence_ids(0):
        segment = segment if found is None else found
        segments.append(segment)
    return segments


def read_labels(ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return each token as a reader knows it: without the marks that stand for a blank."""
    labels = []
    for token_id, token in zip(ids, tokenizer.convert_ids_to_tokens(list(ids)), strict=True):
        text = str(tokenizer.decode([token_id])).strip()
        # A token may be part of one character only; then its raw spelling says more.
        labels.append(str(token) if not text or "\N{REPLACEMENT CHARACTER}" in text else text)
    return labels


def _pad_id(tokenizer: PreTrainedTokenizerBase) -> int:
    # Padding is masked, so any id does where a causal tokenizer has none of its own.
    for found in (tokenizer.pad_token_id, tokenizer.eos_token_id):
        if isinstance(found, int):
            return found
    return 0
