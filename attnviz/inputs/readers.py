"""A checkpoint's tokenizer or processor at work: what it raises, in our words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from attnviz.runtime.memory import Room
from attnviz.runtime.translate import translated

if TYPE_CHECKING:
    from attnviz.models.checkpoint import Checkpoint

# What a tokenizer in Rust keeps of each byte of a text: where it stood. Tokens come on top: of
# English words 105 to 165 bytes for each byte of them were measured.
_PER_BYTE = 16
_FEW = 2**20  # bytes, which always have room: to ask takes longer than to read them


@contextmanager
def reading(checkpoint: Checkpoint) -> Iterator[None]:
    """Turn whatever a checkpoint's tokenizer or processor raises into one line.

    Raises
    ------
    ModelError : it cannot read this. InputError : there is no memory for it.
    """
    said = f"Expected the tokenizer or processor of {checkpoint.name} to read this, but it fails"
    ways = ". Check its files, or pass another one (tokenizer=, processor=)."
    with translated(said, ways, _room(checkpoint)):
        yield


def expect_room(checkpoint: Checkpoint, size: int) -> None:
    """Raise InputError if there certainly is no memory to read a text of so many bytes."""
    if size > _FEW:
        _room(checkpoint).expect(_PER_BYTE * size)


def _room(checkpoint: Checkpoint) -> Room:
    return Room(f"the input of {checkpoint.name}", torch.device("cpu"), "Give a smaller one.")
