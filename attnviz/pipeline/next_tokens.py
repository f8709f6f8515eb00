"""The tokens that a causal language model finds most probable after each position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnviz.inputs.spelling import read_labels
from attnviz.results import AttentionRecord, Axis, NextTokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_MOST = 5  # tokens for each position
_AT_ONCE = 2**21  # probabilities in memory, beside the logits of the run


def next_tokens(
    module: Any,
    tokenizer: PreTrainedTokenizerBase | None,
    logits: Tensor | None,
    records: Sequence[AttentionRecord],
) -> NextTokens | None:
    """Return the most probable next tokens of one text; None unless the model predicts them.

    It does with a language head, where no position reads a later one.

    logits : (T, vocabulary), of the run that was recorded.
    """
    if logits is None or tokenizer is None or not getattr(module, "can_generate", bool)():
        return None
    axis = _causal_axis(records, len(logits))
    if axis is None:
        return None
    probabilities, ids = most_probable(logits, min(_MOST, logits.shape[-1]))
    labels = tuple(tuple(read_labels(row, tokenizer)) for row in ids.tolist())
    return NextTokens(axis, ids, labels, probabilities)


def most_probable(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the largest probabilities (T, count), float32, and their ids, from logits (T, V)."""
    rows = max(1, _AT_ONCE // logits.shape[-1])
    tops = [part.double().softmax(-1).topk(count) for part in torch.split(logits, rows)]
    probabilities, ids = (torch.cat(parts).cpu() for parts in zip(*tops, strict=True))
    return probabilities.float(), ids


def _causal_axis(records: Sequence[AttentionRecord], length: int) -> Axis | None:
    """Return the tokens (length,) of the stack in which no query reads a later key."""
    stacks: dict[str, list[AttentionRecord]] = {}
    for record in records:
        if len(record.query_axis) == len(record.key_axis) == length:
            stacks.setdefault(record.stack, []).append(record)
    causal = [same for same in stacks.values() if all(map(_is_causal, same))]
    return causal[0][0].query_axis if len(causal) == 1 else None


def _is_causal(record: AttentionRecord) -> bool:
    readable = record.readable()
    return readable is not None and not bool(readable.triu(1).any())
