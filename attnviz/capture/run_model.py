"""A model's own code at work: what it raises, and what memory it needs, in our words."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from attnviz.models.parameters import devices
from attnviz.runtime.memory import Room
from attnviz.runtime.translate import translated


@contextmanager
def running(model: nn.Module) -> Iterator[None]:
    """Turn whatever a model raises while it runs into one line.

    Raises
    ------
    ModelError : it fails on this input. InputError : there is no memory for it.
    """
    name = type(model).__name__
    said = f"Expected {name} to run on this input, but it fails"
    with translated(said, ". Check its config.json, or try another input.", room_to_run(model)):
        yield


def room_to_run(model: nn.Module) -> Room:
    """Return what to say where a model has no room to run, or its maps have none."""
    device = devices(model)[0]
    elsewhere = "" if device.type == "cpu" else ", device='cpu' (--device cpu)"
    return Room(
        f"the attention maps of {type(model).__name__}",
        device,
        "Use mode='streamed' (--mode streamed), a shorter text (--truncate), fewer texts at once, "
        f"dtype='bfloat16' (--dtype bfloat16){elsewhere}, or a smaller model.",
    )
