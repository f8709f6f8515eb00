"""Start a model from a stored residual stream, as the logit lens does after each layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.attribution.target import Target, unembedding_of
from attnviz.attribution.tracing import blocks_of, computing
from attnviz.errors import ModelError
from attnviz.results.base import Rules, Savable
from attnviz.runtime.compat import tree_map_only


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
            self.outputs.append(tree_map_only(Tensor, Tensor.detach, output))

        with ExitStack() as hooks:
            for index, block in enumerate(self.blocks):
                hooks.enter_context(block.register_forward_pre_hook(partial(enter, index)))
                hooks.enter_context(block.register_forward_hook(partial(leave, index)))
            yield

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
            output = tree_map_only(Tensor, repeat, self.outputs[index])
            if states is None or index < count - 1:
                return output
            return states if isinstance(output, Tensor) else (states, *output[1:])

        skipped = enumerate(self.blocks[:count])
        with computing({block: partial(stored, index) for index, block in skipped}):
            yield

    def states(self) -> Tensor:
        """Return the residual stream after each block, (L, T, d)."""
        states = (output if isinstance(output, Tensor) else output[0] for output in self.outputs)
        return torch.cat([state.reshape(1, *state.shape[-2:]) for state in states])


_SAME = 1e-4  # of the largest logit: rounding


@dataclass(frozen=True, eq=False)
class LogitLens(Savable):
    """The most probable tokens after each of the L layers, the first the most probable."""

    ids: Tensor  # of the tokens, (L, k)
    logits: Tensor  # (L, k)
    probabilities: Tensor  # (L, k)
    tokens: tuple[tuple[str, ...], ...]  # as text, L × k

    def _rules(self) -> Rules:
        shape = self.ids.shape
        is_table = len(shape) == 2 and self.ids.numel() > 0
        are_alike = shape == self.logits.shape == self.probabilities.shape
        yield "tables of layers and tokens", is_table and are_alike
        yield "a text of each token", [len(line) for line in self.tokens] == [shape[1]] * shape[0]


def logit_lens(target: Target, row: int, *, k: int = 5) -> LogitLens:
    """Return the k most probable tokens at a position after each layer.

    The residual stream after a layer takes the place of that after the last layer. The model then
    computes its own final norm, head and unembedding. The last row is the model's prediction.

    row : the position: in a causal model the one before the predicted token, in a masked one that
    of the mask.

    Source: nostalgebraist 2020, "interpreting GPT: the logit lens".
    """
    module = target.model.module
    unembedding = unembedding_of(module)
    if unembedding is None:
        raise ModelError(
            f"{target.model.name} has no unembedding, so its layers predict no tokens. Choose a "
            "causal or masked language model, loaded with its head."
        )
    stored = StoredRun(target.readout.bases[-1])
    with torch.no_grad(), stored.record():
        last = module(**target.inputs)[0][0]
    layers, logits = len(stored.blocks), []
    if stored.in_a_row:
        for state in stored.states()[:, None]:
            with torch.no_grad(), stored.skip(layers, 1, state):
                logits.append(module(**target.inputs)[0][0, row])
    if not logits or (logits[-1] - last[row]).abs().max() > _SAME * last[row].abs().max():
        raise ModelError(
            f"The layers of {target.model.name} cannot be read one by one: its blocks do not run "
            "in a row. Choose another kind of model."
        )
    table = torch.stack(logits).double().cpu()
    values, ids = table.topk(k)
    tokenizer: Any = target.model.tokenizer  # not None: it has tokenized the text
    return LogitLens(
        ids=ids,
        logits=values,
        probabilities=table.softmax(-1).gather(1, ids),
        tokens=tuple(tuple(str(tokenizer.decode([token])) for token in line) for line in ids),
    )
