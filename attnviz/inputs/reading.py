"""A checkpoint's tokenizer or processor at work: what it raises, in our words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from attnviz.failures import translated
from attnviz.memory import Room

if TYPE_CHECKING:
    from attnviz.checkpoints import Checkpoint


@contextmanager
def reading(checkpoint: Checkpoint) -> Iterator[None]:
    """Turn whatever a checkpoint's tokenizer or processor raises into one line.

    Raises
    ------
    ModelError : it cannot read this. InputError : there is no memory for it.
    """
    said = f"Expected the tokenizer or processor of {checkpoint.name} to read this, but it fails"
    ways = ". Check its files, or pass another one (tokenizer=, processor=)."
    room = Room(f"the input of {checkpoint.name}", torch.device("cpu"), "Give a smaller one.")
    with translated(said, ways, room):
        yield
