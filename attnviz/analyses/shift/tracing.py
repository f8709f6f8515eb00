"""Trace the attention of any model through one run, with gradients from its first block on.

No model is known by name. A `TorchFunctionMode` follows each attention from the softmax, through
functions that keep the weights as they are, to the product with the values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attnviz.errors import ModelError
from attnviz.runtime.compat import outside_function_modes

MATRICES = {"matmul", "__matmul__", "bmm"}
WEIGHT_PRESERVING = {  # functions that keep attention weights as they are
    "dropout", "to", "type", "type_as", "contiguous", "clone", "float", "half", "bfloat16", "view",
    "reshape", "flatten", "unflatten", "masked_fill",
}  # fmt: skip
_RECENT = 8  # weights that may not have met their values yet
_ACTIVATIONS = ("transformers.activations", "torch.nn.modules.activation")


@dataclass(frozen=True, eq=False)
class TracedAttention:
    """One attention: weights (runs, H, m, n), values (runs, H, n, d_v).

    mixed : their product in the graph and the shape of the model, for gradients.
    """

    weights: Tensor
    values: Tensor
    mixed: Tensor

    @classmethod
    def of(cls, weights: Tensor, values: Tensor, mixed: Tensor, *, runs: int) -> TracedAttention:
        """Return it with a dimension for the heads, which some models fold into the batch."""
        return cls(by_head(weights, runs), by_head(values, runs), mixed)


def by_head(x: Tensor, runs: int) -> Tensor:
    """Return (runs, H, m, n) for a tensor that may be (runs · H, m, n)."""
    return x.reshape(runs, -1, *x.shape[1:]) if x.dim() == 3 else x


def is_among(value: object, tensors: Sequence[Tensor]) -> bool:
    """Whether an object is one of some tensors, by identity."""
    return any(value is tensor for tensor in tensors)


class AttentionTracer(TorchFunctionMode):
    """Follows attention weights while a model runs; subclasses override `softmax` and `mix`."""

    def __init__(self) -> None:
        super().__init__()
        self._weights: list[Tensor] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Dispatch a torch function to the method that handles it."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "softmax":
            weights = self.softmax(
                lambda scores: func(scores, *args[1:], **kwargs), args[0], kwargs
            )
            self._weights = [*self._weights[-_RECENT:], weights]  # earlier ones have been mixed
            return weights
        if name in WEIGHT_PRESERVING and args and self.is_weights(args[0]):
            self._weights.append(weights := func(*args, **kwargs))
            return weights
        if name in MATRICES and self.is_weights(args[0]):
            return self.mix(args[0], args[1])
        if name == "baddbmm" and len(args) == 3 and self.is_weights(args[1]):
            bias, weights, values = args
            mixed = self.mix(weights, values) * kwargs.get("alpha", 1)
            return bias * kwargs.get("beta", 1) + mixed
        return self.other(name, func, args, kwargs)

    def is_weights(self, value: object) -> bool:
        """Whether a value is the output of a softmax."""
        return is_among(value, self._weights)

    def softmax(
        self, original: Callable[[Tensor], Tensor], scores: Tensor, options: Mapping[str, Any]
    ) -> Tensor:
        """Return the softmax of scores. `original` is the model's call, `options` its keywords."""
        return original(scores)

    def mix(self, weights: Tensor, values: Tensor) -> Tensor:
        """Return the product of weights and values."""
        return weights @ values

    def other(self, name: str, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Return the result of any other function."""
        return func(*args, **kwargs)


@contextmanager
def activations(
    module: nn.Module, apply: Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]
) -> Iterator[None]:
    """Call `apply(activation, x)` for every activation, also one made of several functions."""
    candidates = [m for m in module.modules() if type(m).__module__ in _ACTIVATIONS]
    elementwise = [m for m in candidates if not isinstance(m, nn.Softmax | nn.MultiheadAttention)]

    def replacement(original: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def forward(x: Tensor) -> Tensor:
            with outside_function_modes():
                return apply(original, x)

        return forward

    for activation in elementwise:
        activation.forward = replacement(activation.forward)
    try:
        yield
    finally:
        for activation in elementwise:
            del activation.forward


@dataclass(frozen=True, eq=False)
class TracedRun:
    """The two ends of a run, connected by the graph of its gradients.

    start : (N, T, d), the input of the first block. end : (N, T, d), the last hidden state.
    """

    start: Tensor
    end: Tensor


def trace_run(
    module: nn.Module, inputs: Mapping[str, Tensor], mode: TorchFunctionMode
) -> TracedRun:
    """Run a model under a mode, with gradients from its first block on and not of parameters.

    Raises
    ------
    ModelError
        The model has no list of blocks.
    """
    starts: list[Tensor] = []

    def start_here(_: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        if starts:  # a block that serves several times starts once
            return args, kwargs
        hidden = args[0] if args else kwargs["hidden_states"]
        starts.append(hidden.detach().requires_grad_())
        if args:
            return (starts[0], *args[1:]), kwargs
        return args, kwargs | {"hidden_states": starts[0]}

    base: nn.Module = getattr(module, "base_model", module)
    hook = first_block(base).register_forward_pre_hook(start_here, with_kwargs=True)
    trainable = [p for p in module.parameters() if p.requires_grad]
    try:
        for parameter in trainable:
            parameter.requires_grad_(False)
        with torch.enable_grad(), mode:
            end = base(**inputs)[0]
    finally:
        hook.remove()
        for parameter in trainable:
            parameter.requires_grad_(True)
    return TracedRun(starts[0], end)


def first_block(base: nn.Module) -> nn.Module:
    """Return the first block of the list that holds most of a model's parameters."""
    lists = [m for m in base.modules() if isinstance(m, nn.ModuleList) and len(m)]
    if not lists:
        raise ModelError(
            f"Expected a model of blocks in a row, but {type(base).__name__} has none. Its shift "
            "cannot be decomposed."
        )
    blocks = max(lists, key=lambda blocks: sum(p.numel() for p in blocks.parameters()))
    return blocks[0]
