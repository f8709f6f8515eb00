"""Value zeroing."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from attnviz.attribution.methods import method
from attnviz.attribution.methods.weights import multiply_layers
from attnviz.attribution.target import Score, base_of, copies_of
from attnviz.attribution.tracing import AttentionTracer, blocks_of, by_head
from attnviz.errors import ModelError


@method("value-zeroing")
def value_zeroing(score: Score) -> Tensor:
    """Return how far the output of each layer moves without the value of a token, multiplied.

    In each layer the values of one token are set to zero, and the cosine distance of every output
    is measured. Rows are normalized to sum to 1 and multiplied through the layers.

    Source: Mohebbi et al. 2023, arXiv:2301.12971.
    """
    if score.readout.stacks:
        raise ModelError("it has an encoder and a decoder, and the method is that of one stack")
    T = score.ids.shape[1]
    distances: list[Tensor] = []

    def restore(_: object, args: Any, kwargs: Any) -> Any:
        """Give all copies the input of the first, so that each layer is changed by itself."""
        if args:
            return (args[0][:1].expand_as(args[0]), *args[1:]), kwargs
        states = kwargs["hidden_states"]
        return args, kwargs | {"hidden_states": states[:1].expand_as(states)}

    def measure(_: object, __: object, output: Tensor | Sequence[Tensor]) -> None:
        states = output if isinstance(output, Tensor) else output[0]
        cosine = torch.cosine_similarity(states[1:].double(), states[:1].double(), dim=-1)
        distances.append((1 - cosine.T).clamp(min=0))  # queries × keys

    with ExitStack() as hooks:
        for block in blocks_of(base_of(score.readout.module)):
            hooks.enter_context(block.register_forward_pre_hook(restore, with_kwargs=True))
            hooks.enter_context(block.register_forward_hook(measure))
        with torch.no_grad(), _ZeroedValues(T):
            score.readout.module(**copies_of(score.inputs, T + 1))
    shares = []
    for distance in distances:
        total = distance.sum(-1, keepdim=True)
        shares.append(torch.where(total > 0, distance / total.clamp(min=1e-300), 0.0))
    return multiply_layers(share[None] for share in shares)[score.rows].mean(0)


class _ZeroedValues(AttentionTracer):
    """Sets the values of token j to zero in copy j + 1 of a text of T tokens."""

    def __init__(self, T: int) -> None:
        super().__init__()
        self.nonzero = torch.ones(T + 1, 1, T, 1, dtype=torch.bool)
        self.nonzero[1:].diagonal(dim1=0, dim2=2).fill_(False)

    def mix(self, weights: Tensor, values: Tensor) -> Tensor:
        by_text = by_head(values, len(self.nonzero)) * self.nonzero.to(values)
        return weights @ by_text.reshape_as(values)
