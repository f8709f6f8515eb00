"""The decoder's text: a target, shifted one position to the right, or generated tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnviz.errors import InputError
from attnviz.inputs.spelling import decode, read_labels
from attnviz.inputs.text import InputCheck, encode_ids, encode_texts, max_tokens, tokenize
from attnviz.inputs.tokens import TokenIds
from attnviz.models.pretrained import has_text_decoder
from attnviz.results import Axis
from attnviz.results.axis import join_axes

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from attnviz.models.checkpoint import Checkpoint


# --- a target (teacher forcing)


def encode_target(
    checkpoint: Checkpoint, targets: Sequence[str | TokenIds], *, truncate: bool
) -> tuple[dict[str, Tensor], tuple[Axis, ...], tuple[InputCheck, ...]]:
    """Tokenize the decoder's targets and shift them right: each position predicts the next token.

    The tensors are (N, T), by the name of the model's argument; the axes are those of the targets,
    and the checks compare their ids with the tokenizer's own call. Ids that are shifted already are
    read alone, as they are.
    """
    module, tokenizer = checkpoint.module, checkpoint.target_tokenizer
    first = targets[0]
    if isinstance(first, TokenIds) and (first.shifted or tokenizer is None):
        ids = torch.tensor([first.ids], device=checkpoint.device)
        ids = ids if first.shifted else _shift(module, torch.cat([ids, ids[:, -1:]], dim=1))
        inputs = {"decoder_input_ids": ids, "decoder_attention_mask": torch.ones_like(ids)}
        return inputs, (continue_axis(tokenizer, None, ids[0]),), (InputCheck(),)
    labels, axes, _, checks = encode_texts(
        checkpoint, [(text, None) for text in targets], truncate=truncate, of_decoder=True
    )
    ids, mask = labels["input_ids"], labels["attention_mask"]
    shifted = _shift(module, ids)
    axes = tuple(axis.at(range(len(axis) - 1)) for axis in axes)
    if torch.equal(shifted, ids):  # the tokenizer itself writes the decoder's first token
        shifted, mask = ids[:, :-1], mask[:, :-1]
    else:
        start = Axis.plain(read_labels(shifted[0, :1].tolist(), tokenizer), special=[True])
        axes = tuple(join_axes(start, axis) for axis in axes)
        mask = torch.cat([torch.ones_like(mask[:, :1]), mask[:, :-1]], dim=1)
    return {"decoder_input_ids": shifted, "decoder_attention_mask": mask}, axes, checks


def encode_prefix(checkpoint: Checkpoint, text: str) -> TokenIds:
    """Return what a decoder reads before the token that goes on a text, which may be empty.

    The token that ends a target is left out.
    """
    encoded = tokenize(checkpoint, text, of_decoder=True, may_be_empty=True)
    is_added = bool(encoded.ids) and encoded.special[-1] and encoded.spans[-1] == (0, 0)
    ids = encoded.ids[:-1] if is_added else encoded.ids
    # The shift drops the last label, whatever it is.
    labels = torch.tensor([[*ids, 0]], device=checkpoint.device)
    shifted = _shift(checkpoint.module, labels)
    read = labels[0, :-1] if torch.equal(shifted, labels) else shifted[0]
    return TokenIds(tuple(read.tolist()), shifted=True)


def _shift(module: Any, ids: Tensor) -> Tensor:
    """Return the decoder's input ids; unchanged if they already begin with the start token."""
    owners = (module.config, module, getattr(module.config, "text_config", None))
    starts = (getattr(owner, "decoder_start_token_id", None) for owner in owners)
    start = next((start for start in starts if start is not None), None)
    if start is not None and bool((ids[:, 0] == start).all()):
        return ids
    if hasattr(module, "prepare_decoder_input_ids_from_labels"):
        shifted: Tensor = module.prepare_decoder_input_ids_from_labels(ids)
        return shifted
    if start is None:
        raise InputError(
            f"The config of {type(module).__name__} has no decoder_start_token_id, the token with "
            "which its decoder begins. Set it."
        )
    return torch.cat([torch.full_like(ids[:, :1], start), ids[:, :-1]], dim=1)


class _DecoderCalledError(Exception):
    """Ends a run where the decoder begins."""


def own_decoder_ids(module: Any, inputs: Mapping[str, Any]) -> Tensor | None:
    """Return the ids (N, T) that a decoder reads where the model makes them; None if it does not.

    The model runs up to its decoder.
    """
    found: list[Tensor] = []

    def keep(_: Any, args: Any, kwargs: Any) -> None:
        ids = kwargs.get("input_ids", args[0] if args else None)
        found.extend([ids] if isinstance(ids, Tensor) else [])
        raise _DecoderCalledError

    hook = module.get_decoder().register_forward_pre_hook(keep, with_kwargs=True)
    try:
        with torch.no_grad():
            module(**inputs)
    except Exception:
        pass  # the model fails without them, or ended here
    finally:
        hook.remove()
    return found[0] if found else None


# --- generated tokens


def continue_axis(
    tokenizer: PreTrainedTokenizerBase | None, axis: Axis | None, ids: Tensor
) -> Axis:
    """Return the axis of `ids` (T,), whose first positions `axis` describes already."""
    if axis is None:  # the token with which a decoder begins
        axis = Axis.plain(read_labels(ids[:1].tolist(), tokenizer), special=[True])
    new: list[int] = ids[len(axis) :].tolist()
    if tokenizer is None:
        return join_axes(axis, Axis.plain(read_labels(new, None), special=[False] * len(new)))
    return join_axes(axis, encode_ids(tokenizer, TokenIds(tuple(new))).axis(tokenizer, len(new)))


def expect_tokens_left(checkpoint: Checkpoint, length: int, tokens: int) -> None:
    """Raise InputError if the model cannot read `tokens` more after an input of this length."""
    module = checkpoint.module
    of_decoder = has_text_decoder(module, module.config)
    tokenizer = checkpoint.target_tokenizer if of_decoder else checkpoint.tokenizer
    if tokenizer is None:
        return
    longest = max_tokens(module, tokenizer, of_decoder=of_decoder)
    # The last token is generated and never read.
    if longest is not None and length + tokens - 1 > longest:
        raise InputError(
            f"{checkpoint.name} can read {longest} tokens: after these {length} it can generate at "
            f"most {max(longest - length + 1, 0)}, not {tokens}. Ask for fewer, or give a shorter "
            "text."
        )


def generated_text(tokenizer: PreTrainedTokenizerBase, ids: Tensor) -> str:
    """Return the text of generated tokens (T,)."""
    return decode(tokenizer, ids.tolist(), skip_special_tokens=True).strip()
