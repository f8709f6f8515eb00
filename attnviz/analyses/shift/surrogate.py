"""A model run twice at once, with every function replaced by one that knows its secant.

What is linear needs no replacing, since the derivative of a linear map is its secant. A function
that is not known to be one of the few in `rules` keeps its derivative; then the parts do not add up
to the whole, and the completeness error, which every result carries, shows it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeGuard

import torch
from torch import Tensor

from attnviz.analyses.shift.deeplift_rules import (
    elementwise,
    matrix_product,
    normalise,
    product,
    softmax,
)
from attnviz.analyses.shift.tracing import (
    MATRICES,
    Mix,
    Watch,
    by_head,
)

_ONE_NUMBER = {
    "gelu", "silu", "relu", "leaky_relu", "mish", "softplus", "tanh", "sigmoid", "erf", "exp",
    "log", "sqrt", "rsqrt", "reciprocal", "square", "abs", "pow", "__pow__", "clamp",
}  # fmt: skip
_TIMES = {"mul", "__mul__", "__rmul__", "multiply", "__imul__", "mul_"}
_OVER = {"div", "true_divide", "__truediv__", "__itruediv__", "div_"}


class Secants(Watch):
    """While a model runs on two texts, gives autograd the secants between them.

    cut : whether what an attention mixed stands by itself, so that gradients end there.
    gate : (T, T), which keys each query may read in run 0; None for all.
    mixes : the attentions, in the order of execution.
    opened : of every attention in backward order, how much each key moved by being opened.
    """

    def __init__(self, *, cut: bool, gate: Tensor | None = None) -> None:
        super().__init__()
        self.cut, self.gate = cut, gate
        self.mixes: list[Mix] = []
        self.opened: list[Tensor] = []

    def softmax(self, own: Callable[[Tensor], Tensor], scores: Tensor, said: Any) -> Tensor:
        """Take the softmax; in run 0 only over what the gate leaves open."""
        if not moves(scores):
            return own(scores)
        scores = scores.to(said.get("dtype") or scores.dtype)
        if self.gate is None or scores.shape[-2:] != self.gate.shape:
            return softmax(scores)
        hidden = torch.stack([~self.gate, torch.zeros_like(self.gate)])[:, None]
        gated = by_head(scores, 2).masked_fill(hidden, -torch.inf).reshape_as(scores)
        return softmax(gated, self.opened.append)

    def mix(self, weights: Tensor, values: Tensor) -> Tensor:
        """Mix the values, and keep what was mixed."""
        if not (moves(weights) and moves(values)):
            return weights @ values
        made = matrix_product(weights, values)
        if self.cut:
            made = made.detach().requires_grad_()
        self.mixes.append(Mix.of(weights.detach(), values.detach(), made, runs=2))
        return made.clone()  # which the model may change in place

    def other(self, name: str, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Compute anything else, with a secant in place of its derivative."""
        moving = [each for each in (*args, *kwargs.values()) if moves(each)]
        if not moving:
            return func(*args, **kwargs)
        if name in _ONE_NUMBER:
            return elementwise(lambda x: func(x, *args[1:], **kwargs), args[0])
        if name in _TIMES and len(moving) == 2:
            return product(*moving)
        if name in _OVER and moves(args[1]):
            inverse = elementwise(torch.reciprocal, args[1])
            return product(args[0], inverse) if moves(args[0]) else args[0] * inverse
        if name in MATRICES and len(moving) == 2:
            return matrix_product(*moving)
        if name == "baddbmm":
            return _add_product(*args, **kwargs)
        if name == "layer_norm":
            return _layer_norm(*args, **kwargs)
        return func(*args, **kwargs)


def moves(value: object) -> TypeGuard[Tensor]:
    """Whether a tensor depends on what was read, and so may differ between the runs."""
    return isinstance(value, Tensor) and value.requires_grad


def _add_product(
    bias: Tensor, batch1: Tensor, batch2: Tensor, beta: float = 1, alpha: float = 1
) -> Tensor:
    return bias * beta + matrix_product(batch1, batch2) * alpha


def _layer_norm(
    x: Tensor,
    shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    return normalise(x, weight, bias, eps)
