"""Text → what a model takes: token ids in a padded batch, and what each position is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from attnviz.errors import InputError, ModelError
from attnviz.records import Axis
from attnviz.words import make_axis

if TYPE_CHECKING:
    from transformers import BatchEncoding, PreTrainedTokenizerBase

    from attnviz.checkpoints import Checkpoint


@dataclass(frozen=True, eq=False)
class Batch:
    """N texts padded to one length T.

    inputs : tensors (N, T), by the name under which the model takes them. axes : for each kind of
    input, "text" or "target" (what the decoder of an encoder–decoder reads), the positions of the
    N of them. cut_from : how many tokens a text had that was cut, else None.
    """

    inputs: dict[str, Tensor]
    axes: dict[str, tuple[Axis, ...]]
    cut_from: tuple[int | None, ...] = ()


def encode(
    checkpoint: Checkpoint,
    texts: Sequence[str],
    pairs: Sequence[str] | None = None,
    targets: Sequence[str] | None = None,
    *,
    truncate: bool = False,
) -> Batch:
    """Tokenize texts, or pairs of them, and pad them on the right.

    Position tables count from the left, so padding on the right leaves every text as it would be
    by itself. What is typed is text, also where it spells a special token.

    Parameters
    ----------
    targets : for an encoder–decoder, what its decoder is to say of each text.

    Raises
    ------
    InputError : text that is no Unicode, holds no word, or is longer than the model can read; a
        target missing, or given to a model that has no decoder of its own.
    ModelError : the model reads no text.
    """
    module = checkpoint.module
    if module.main_input_name != "input_ids":
        raise ModelError(
            f"Expected a model that reads text, but {checkpoint.name} reads "
            f"{module.main_input_name}. Choose a text model."
        )
    two_sided = bool(getattr(module.config, "is_encoder_decoder", False))
    if two_sided != (targets is not None):
        raise InputError(
            f"Expected a target, the text that the decoder of {checkpoint.name} is to say, got "
            "none. Give one with --target (target=…)."
            if two_sided
            else f"Expected no target, since {checkpoint.name} has no decoder beside an encoder, "
            "got one. Leave it out."
        )
    couples = [(text, None if pairs is None else pairs[n]) for n, text in enumerate(texts)]
    inputs, axes, cut_from = _batch(checkpoint, couples, truncate=truncate)
    if targets is None:
        return Batch(inputs, {"text": axes}, cut_from)
    goals = [(text, None) for text in targets]
    labels, target_axes, _ = _batch(checkpoint, goals, truncate=truncate)
    # The decoder reads its own last word and says the next: the target, one to the right.
    shifted: Tensor = module.prepare_decoder_input_ids_from_labels(labels["input_ids"])  # type: ignore[operator]
    inputs["decoder_input_ids"] = shifted
    inputs["decoder_attention_mask"] = torch.cat(
        [torch.ones_like(shifted[:, :1]), labels["attention_mask"][:, :-1]], dim=1
    )
    start = checkpoint.tokenizer.convert_ids_to_tokens(int(shifted[0, 0]))
    shifted_axes = tuple(_shifted(axis, str(start)) for axis in target_axes)
    return Batch(inputs, {"text": axes, "target": shifted_axes}, cut_from)


def _batch(
    checkpoint: Checkpoint, couples: Sequence[tuple[str, str | None]], *, truncate: bool
) -> tuple[dict[str, Tensor], tuple[Axis, ...], tuple[int | None, ...]]:
    tokenizer, device = checkpoint.tokenizer, checkpoint.module.device
    longest = max_tokens(checkpoint.module, tokenizer)
    encodings, cut_from = [], []
    for couple in couples:
        encoding = _tokenize(tokenizer, *couple)
        length = len(encoding["input_ids"])
        cut = truncate and longest is not None and length > longest
        encodings.append(_tokenize(tokenizer, *couple, longest) if cut else encoding)
        cut_from.append(length if cut else None)
        if all(encoding["special_tokens_mask"]):
            raise InputError(
                f"Expected a text with at least one word, got {couple[0][:40]!r}. Type a sentence."
            )
        if longest is not None and length > longest and not truncate:
            raise InputError(
                f"Expected at most {longest} tokens, the most that {checkpoint.name} can read, "
                f"got {length}. Shorten the text, or cut it with --truncate (truncate=True)."
            )
    fill = {"input_ids": _pad_id(tokenizer)}
    inputs = {
        name: pad_sequence(
            [torch.tensor(encoding[name]) for encoding in encodings],
            batch_first=True,
            padding_value=fill.get(name, 0),
        ).to(device)
        for name in ("input_ids", "attention_mask", "token_type_ids")
        if name in encodings[0]
    }
    length = inputs["input_ids"].shape[1]
    axes = tuple(
        _axis(encoding, tokenizer, length, (text, pair or ""))
        for encoding, (text, pair) in zip(encodings, couples, strict=True)
    )
    return inputs, axes, tuple(cut_from)


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


def max_tokens(module: nn.Module, tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return how many tokens the model can read, special ones included; None if any number."""
    limits = [tokenizer.model_max_length]
    config = getattr(module, "config", None)
    positions = getattr(config, "max_position_embeddings", None)
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
    try:
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
    except (UnicodeError, TypeError) as error:
        raise InputError(
            f"Expected text in valid Unicode, got {text[:40]!a}. Remove what cannot be encoded."
        ) from error


def _axis(
    encoding: BatchEncoding,
    tokenizer: PreTrainedTokenizerBase,
    length: int,
    texts: tuple[str, str],
) -> Axis:
    """Describe the positions of one encoded text, padded on the right to `length`."""
    ids: list[int] = encoding["input_ids"]
    padding = length - len(ids)
    offsets = encoding.get("offset_mapping")
    return make_axis(
        labels=[*_labels(ids, tokenizer), *["[PAD]"] * padding],
        offsets=None if offsets is None else [*offsets, *[(0, 0)] * padding],
        special=[*map(bool, encoding["special_tokens_mask"]), *[True] * padding],
        padding=[*[False] * len(ids), *[True] * padding],
        segments=[*_segments(encoding), *[0] * padding],
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


def _labels(ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> list[str]:
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
