"""Start a model from the residual stream of an earlier run, at any block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.attribution.tracing import blocks_of


class StoredRun:
    """The output of every block of a model in one run of one text.

    In later runs a block can return its stored output without any computation. Everything outside
    the blocks is computed by the model itself: embeddings, final norm, unembedding.
    """

    def __init__(self, base: nn.Module) -> None:
        self.blocks: Sequence[nn.Module] = list(blocks_of(base))
        self.outputs: list[Any] = []  # by block, in the order of execution
        self.running: int | None = None  # the block that is executed now
        self._order: list[int] = []

    @property
    def in_a_row(self) -> bool:
        """Whether every block ran once, one after the other."""
        return self._order == list(range(len(self.blocks)))

    @contextmanager
    def record(self) -> Iterator[None]:
        """Store the outputs of the blocks while the model runs."""

        def enter(index: int, *_: object) -> None:
            self.running = index

        def leave(index: int, _: nn.Module, __: object, output: Any) -> None:
            self.running = None
            self._order.append(index)
            self.outputs.append(_each_tensor(Tensor.detach, output))

        hooks = []
        for index, block in enumerate(self.blocks):
            hooks.append(block.register_forward_pre_hook(partial(enter, index)))
            hooks.append(block.register_forward_hook(partial(leave, index)))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    @contextmanager
    def skip(self, count: int, copies: int, states: Tensor | None = None) -> Iterator[None]:
        """Run `copies` of the text without the first `count` blocks.

        states : the states that the last of these blocks returns, (copies, T, d); by default the
        stored ones.
        """

        def repeat(tensor: Tensor) -> Tensor:
            single = tensor.dim() > 1 and tensor.shape[0] == 1
            return tensor.repeat(copies, *[1] * (tensor.dim() - 1)) if single else tensor

        def stored(index: int, *_: object, **__: object) -> Any:
            output = _each_tensor(repeat, self.outputs[index])
            if states is None or index < count - 1:
                return output
            return states if isinstance(output, Tensor) else (states, *output[1:])

        skipped = self.blocks[:count]
        own = [vars(block).get("forward") for block in skipped]
        for index, block in enumerate(skipped):
            block.forward = partial(stored, index)
        try:
            yield
        finally:
            for block, forward in zip(skipped, own, strict=True):
                if forward is None:
                    del block.forward
                else:
                    block.forward = forward

    def states(self) -> Tensor:
        """Return the residual stream after each block, (L, T, d)."""
        states = (output if isinstance(output, Tensor) else output[0] for output in self.outputs)
        return torch.cat([state.reshape(1, *state.shape[-2:]) for state in states])


def _each_tensor(function: Any, output: Any) -> Any:
    """Apply a function to every tensor of a block's output."""
    if isinstance(output, Tensor):
        return function(output)
    if isinstance(output, tuple | list):
        return type(output)(_each_tensor(function, part) for part in output)
    return output
