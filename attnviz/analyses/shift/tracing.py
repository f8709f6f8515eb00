"""Following a model through one run: where its blocks begin, and what its attentions mix.

Nothing here knows a model. Attention is followed as torch is asked for it (`TorchFunctionMode`):
from a softmax, through whatever leaves weights what they are, to the product with the values.
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
CARRIES = {  # what leaves weights what they are
    "dropout", "to", "type", "type_as", "contiguous", "clone", "float", "half", "bfloat16", "view",
    "reshape", "flatten", "unflatten", "masked_fill",
}  # fmt: skip
_RECENT = 8  # weights that may still have to be mixed
_ACTIVATIONS = ("transformers.activations", "torch.nn.modules.activation")


@dataclass(frozen=True, eq=False)
class Mix:
    """One attention: weights (runs, H, m, n), values (runs, H, n, d_v).

    mixed : their product as the model has it, with which a gradient can be asked for.
    """

    weights: Tensor
    values: Tensor
    mixed: Tensor

    @classmethod
    def of(cls, weights: Tensor, values: Tensor, mixed: Tensor, *, runs: int) -> Mix:
        """Return it with one dimension for the heads, also where a model folds these away."""
        return cls(by_head(weights, runs), by_head(values, runs), mixed)


def by_head(x: Tensor, runs: int) -> Tensor:
    """Return (runs, H, m, n) of what a model may have as (runs · H, m, n)."""
    return x.reshape(runs, -1, *x.shape[1:]) if x.dim() == 3 else x


def is_one(given: object, known: Sequence[Tensor]) -> bool:
    """Whether this is one of some tensors, the object itself."""
    return any(given is each for each in known)


class Watch(TorchFunctionMode):
    """While a model runs, follows its weights; subclasses say what becomes of softmax and mix."""

    def __init__(self) -> None:
        super().__init__()
        self._weights: list[Tensor] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Compute what was asked for, as the subclass has it."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "softmax":
            made = self.softmax(lambda scores: func(scores, *args[1:], **kwargs), args[0], kwargs)
            self._weights = [*self._weights[-_RECENT:], made]  # those before have been mixed
            return made
        if name in CARRIES and args and self.is_weights(args[0]):
            self._weights.append(made := func(*args, **kwargs))
            return made
        if name in MATRICES and self.is_weights(args[0]):
            return self.mix(args[0], args[1])
        if name == "baddbmm" and len(args) == 3 and self.is_weights(args[1]):
            bias, weights, values = args
            mixed = self.mix(weights, values) * kwargs.get("alpha", 1)
            return bias * kwargs.get("beta", 1) + mixed
        return self.other(name, func, args, kwargs)

    def is_weights(self, given: object) -> bool:
        """Whether this came out of a softmax."""
        return is_one(given, self._weights)

    def softmax(self, own: Callable[[Tensor], Tensor], scores: Tensor, said: Any) -> Tensor:
        """Take the softmax of scores: `own` as the model asks for it, with the options `said`."""
        return own(scores)

    def mix(self, weights: Tensor, values: Tensor) -> Tensor:
        """Mix the values by the weights."""
        return weights @ values

    def other(self, name: str, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Compute anything else."""
        return func(*args, **kwargs)


@contextmanager
def activations(
    module: nn.Module, take: Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]
) -> Iterator[None]:
    """Hand every activation whole to `take`, also one that is written as several functions."""
    found = [m for m in module.modules() if type(m).__module__ in _ACTIVATIONS]
    simple = [m for m in found if not isinstance(m, nn.Softmax | nn.MultiheadAttention)]

    def whole(own: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def forward(x: Tensor) -> Tensor:
            with outside_function_modes():
                return take(own, x)

        return forward

    for activation in simple:
        activation.forward = whole(activation.forward)
    try:
        yield
    finally:
        for activation in simple:
            del activation.forward


@dataclass(frozen=True, eq=False)
class Run:
    """What can be followed through a run, of all positions.

    start : (N, T, d), what enters the first block. end : (N, T, d), the last hidden state.
    """

    start: Tensor
    end: Tensor


def run(module: nn.Module, inputs: Mapping[str, Tensor], mode: TorchFunctionMode) -> Run:
    """Run a model's blocks under a mode, with gradients from its start on and none of parameters.

    Raises
    ------
    ModelError : the model has no blocks in a row.
    """
    starts: list[Tensor] = []

    def start_here(_: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        if starts:  # a block that serves several times starts once
            return args, kwargs
        given = args[0] if args else kwargs["hidden_states"]
        starts.append(given.detach().requires_grad_())
        if args:
            return (starts[0], *args[1:]), kwargs
        return args, kwargs | {"hidden_states": starts[0]}

    base: nn.Module = getattr(module, "base_model", module)
    hook = first_block(base).register_forward_pre_hook(start_here, with_kwargs=True)
    learning = [p for p in module.parameters() if p.requires_grad]
    try:
        for parameter in learning:
            parameter.requires_grad_(False)
        with torch.enable_grad(), mode:
            end = base(**inputs)[0]
    finally:
        hook.remove()
        for parameter in learning:
            parameter.requires_grad_(True)
    return Run(starts[0], end)


def first_block(base: nn.Module) -> nn.Module:
    """Return the first of the blocks that a model stacks: of the list that holds most of it."""
    lists = [m for m in base.modules() if isinstance(m, nn.ModuleList) and len(m)]
    if not lists:
        raise ModelError(
            f"Expected a model of blocks in a row, but {type(base).__name__} has none. Its shift "
            "cannot be decomposed."
        )
    blocks = max(lists, key=lambda blocks: sum(p.numel() for p in blocks.parameters()))
    return blocks[0]
