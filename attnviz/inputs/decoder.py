"""What a decoder is to say, as it reads it: one place to the right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnviz.errors import InputError
from attnviz.inputs.text import encode_texts
from attnviz.results import Axis

if TYPE_CHECKING:
    from attnviz.models.checkpoint import Checkpoint


def encode_target(
    checkpoint: Checkpoint, targets: Sequence[str], *, truncate: bool
) -> tuple[dict[str, Tensor], tuple[Axis, ...]]:
    """Tokenize what the decoder is to say, one place to the right: it says the word that follows.

    Returns
    -------
    `decoder_input_ids` and `decoder_attention_mask`, each (N, T), and the positions of each target.
    """
    module, tokenizer = checkpoint.module, checkpoint.tokenizer
    assert tokenizer is not None  # as in encode_texts
    goals = [(text, None) for text in targets]
    labels, axes, _ = encode_texts(checkpoint, goals, truncate=truncate, of_decoder=True)
    ids, mask = labels["input_ids"], labels["attention_mask"]
    shifted = _shift(module, ids)
    if torch.equal(shifted, ids):  # the tokenizer itself writes the decoder's first token
        return _as_decoder_reads(ids[:, :-1], mask[:, :-1]), tuple(_without_last(a) for a in axes)
    start = tokenizer.convert_ids_to_tokens(int(shifted[0, 0]))
    mask = torch.cat([torch.ones_like(mask[:, :1]), mask[:, :-1]], dim=1)
    return _as_decoder_reads(shifted, mask), tuple(_shifted(a, str(start)) for a in axes)


def _as_decoder_reads(ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
    return {"decoder_input_ids": ids, "decoder_attention_mask": mask}


def _shift(module: Any, ids: Tensor) -> Tensor:
    """Return ids as the decoder reads them; unchanged if they begin as it does already."""
    start = module.config.decoder_start_token_id
    if start is not None and bool((ids[:, 0] == start).all()):
        return ids
    if hasattr(module, "prepare_decoder_input_ids_from_labels"):
        shifted: Tensor = module.prepare_decoder_input_ids_from_labels(ids)
        return shifted
    if start is None:
        raise InputError(
            f"Expected {type(module).__name__} to say with which token its decoder begins, but its "
            "config has no decoder_start_token_id. Set it."
        )
    return torch.cat([torch.full_like(ids[:, :1], start), ids[:, :-1]], dim=1)


def _without_last(axis: Axis) -> Axis:
    return Axis(
        labels=axis.labels[:-1],
        words=axis.words[:-1],
        word_labels=axis.word_labels,
        special=axis.special[:-1],
        padding=axis.padding[:-1],
        segments=axis.segments[:-1],
    )


def _shifted(axis: Axis, start: str) -> Axis:
    """Describe a target as the decoder reads it: a start token first, the last token left out."""
    return Axis(
        labels=(start, *axis.labels[:-1]),
        words=(None, *axis.words[:-1]),
        word_labels=axis.word_labels,
        special=(True, *axis.special[:-1]),
        padding=(False, *axis.padding[:-1]),
        segments=(0, *axis.segments[:-1]),
    )
