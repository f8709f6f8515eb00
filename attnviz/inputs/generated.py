"""What a model said by itself: its tokens as positions of an axis, and as text."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from attnviz.errors import InputError
from attnviz.inputs.text import max_tokens, read_labels
from attnviz.models.processors import has_text_decoder
from attnviz.results import Axis
from attnviz.results.words import make_axis

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from attnviz.models.checkpoint import Checkpoint


def continue_axis(tokenizer: PreTrainedTokenizerBase, axis: Axis | None, ids: Tensor) -> Axis:
    """Describe the positions of `ids` (T,), of which the first may be described already."""
    done = 0 if axis is None else len(axis)
    new: list[int] = ids[done:].tolist()
    special = [token in tokenizer.all_special_ids for token in new]
    if axis is None and special:
        special[0] = True  # with which a decoder begins
    # A piece spans what the text grows by when it is added.
    ends = [len(_decode(tokenizer, new[: n + 1])) for n in range(len(new))]
    offsets = list(itertools.pairwise([0, *ends]))
    said = make_axis(
        labels=read_labels(new, tokenizer),
        offsets=offsets,
        special=special,
        padding=[False] * len(new),
        segments=[0] * len(new),
        texts=(_decode(tokenizer, new), ""),
    )
    return said if axis is None else _joined(axis, said)


def expect_room(checkpoint: Checkpoint, read: int, tokens: int) -> None:
    """Raise InputError unless the model can say so many tokens after those that it read."""
    module, tokenizer = checkpoint.module, checkpoint.tokenizer
    if tokenizer is None:
        return
    of_decoder = has_text_decoder(module, module.config)
    longest = max_tokens(module, tokenizer, of_decoder=of_decoder)
    # The last token is said and never read.
    if longest is not None and read + tokens - 1 > longest:
        raise InputError(
            f"Expected at most {max(longest - read + 1, 0)} tokens to generate after these {read}, "
            f"since {checkpoint.name} can read {longest}, got {tokens}. Ask for fewer, or give a "
            "shorter text."
        )


def said_text(tokenizer: PreTrainedTokenizerBase, ids: Tensor) -> str:
    """Return the text that generated tokens (T,) spell."""
    return _decode(tokenizer, ids.tolist()).strip()


def _decode(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


def _joined(axis: Axis, said: Axis) -> Axis:
    first = len(axis.word_labels)
    words = tuple(None if word is None else first + word for word in said.words)
    more = (None,) * len(said)
    return replace(
        said,
        labels=axis.labels + said.labels,
        words=axis.words + words,
        word_labels=axis.word_labels + said.word_labels,
        special=axis.special + said.special,
        padding=axis.padding + said.padding,
        segments=axis.segments + said.segments,
        patches=None if axis.patches is None else axis.patches + more,
    )
