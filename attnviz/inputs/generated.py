"""What a model said by itself: its tokens as positions of an axis, and as text."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from attnviz.inputs.text import read_labels
from attnviz.records import Axis
from attnviz.words import make_axis

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def continue_axis(tokenizer: PreTrainedTokenizerBase, axis: Axis | None, ids: Tensor) -> Axis:
    """Describe the positions of `ids` (T,), of which the first may be described already."""
    done = 0 if axis is None else len(axis)
    new: list[int] = ids[done:].tolist()
    special = [token in tokenizer.all_special_ids for token in new]
    if axis is None:
        special[0] = True  # with which a decoder begins
    # A piece spans what the text grows by when it is added.
    ends = [len(_decode(tokenizer, new[: n + 1])) for n in range(len(new))]
    offsets = list(zip([0, *ends[:-1]], ends, strict=True))
    said = make_axis(
        labels=read_labels(new, tokenizer),
        offsets=offsets,
        special=special,
        padding=[False] * len(new),
        segments=[0] * len(new),
        texts=(_decode(tokenizer, new), ""),
    )
    return said if axis is None else _joined(axis, said)


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
