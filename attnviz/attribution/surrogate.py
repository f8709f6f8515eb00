"""A model run twice at once, with every function replaced by one that knows its secant.

Nothing here knows a model: functions are replaced as torch is asked for them (`TorchFunctionMode`).
What is linear needs no replacing, since the derivative of a linear map is its secant. A function
that is not known to be one of the few in `rules` keeps its derivative; then the parts do not add up
to the whole, and the completeness error, which every result carries, shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attnviz.attribution.rules import elementwise, matrix_product, normalise, product, softmax
from attnviz.errors import ModelError

_ONE_NUMBER = {
    "gelu", "silu", "relu", "leaky_relu", "mish", "softplus", "tanh", "sigmoid", "erf", "exp",
    "log", "sqrt", "rsqrt", "reciprocal", "square", "abs", "pow", "__pow__", "clamp",
}  # fmt: skip
_TIMES = {"mul", "__mul__", "__rmul__", "multiply", "__imul__", "mul_"}
_OVER = {"div", "true_divide", "__truediv__", "__itruediv__", "div_"}
MATRICES = {"matmul", "__matmul__", "bmm"}
CARRIES = {  # what leaves weights what they are
    "dropout", "to", "type", "type_as", "contiguous", "clone", "float", "half", "bfloat16", "view",
    "reshape", "flatten", "unflatten", "masked_fill",
}  # fmt: skip
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
    def of(cls, weights: Tensor, values: Tensor, mixed: Tensor, *, runs: int = 2) -> Mix:
        """Return it with one dimension for the heads, also where a model folds these away."""
        return cls(_by_head(weights, runs), _by_head(values, runs), mixed)

    def by_head(self, of_mixed: Tensor, *, runs: int = 2) -> Tensor:
        """Return what has the shape of `mixed`, a gradient, as (runs, H, m, d_v)."""
        return _by_head(of_mixed, runs)


@dataclass(eq=False)
class Secants(TorchFunctionMode):
    """While a model runs on two texts, gives autograd the secants between them.

    cut : whether what an attention mixed stands by itself, so that gradients end there.
    gate : (T, T), which keys each query may read in run 0; None for all.
    mixes : the attentions, in the order of execution.
    opened : of every attention in backward order, how much each key moved by being opened.
    """

    cut: bool
    gate: Tensor | None = None
    mixes: list[Mix] = field(default_factory=list)
    opened: list[Tensor] = field(default_factory=list)
    _weights: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Become a mode of torch."""
        super().__init__()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Compute what was asked for, with a secant in place of its derivative."""
        kwargs = kwargs or {}
        moving = [each for each in (*args, *kwargs.values()) if moves(each)]
        name = getattr(func, "__name__", "")
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
            return self._mix(*moving)
        if name == "baddbmm":
            return self._add_product(*args, **kwargs)
        if name == "softmax":
            return self._softmax(args[0], kwargs.get("dtype"))
        if name == "layer_norm":
            return _layer_norm(*args, **kwargs)
        made = func(*args, **kwargs)
        if name in CARRIES and any(args[0] is each for each in self._weights):
            self._weights.append(made)
        return made

    def _softmax(self, scores: Tensor, dtype: torch.dtype | None) -> Tensor:
        scores = scores if dtype is None else scores.to(dtype)
        if self.gate is None or scores.shape[-2:] != self.gate.shape:
            made = softmax(scores)
        else:
            hidden = torch.stack([~self.gate, torch.zeros_like(self.gate)])[:, None]
            made = softmax(scores.masked_fill(hidden, -torch.inf), self.opened.append)
        self._weights.append(made)
        return made

    def _add_product(
        self, bias: Tensor, batch1: Tensor, batch2: Tensor, beta: float = 1, alpha: float = 1
    ) -> Tensor:
        return bias * beta + self._mix(batch1, batch2) * alpha

    def _mix(self, a: Tensor, b: Tensor) -> Tensor:
        made = matrix_product(a, b)
        if not any(a is each for each in self._weights):
            return made
        if self.cut:
            made = made.detach().requires_grad_()
        self.mixes.append(Mix.of(a.detach(), b.detach(), made))
        return made.clone()  # which the model may change in place


def _by_head(x: Tensor, runs: int) -> Tensor:
    return x.reshape(runs, -1, *x.shape[1:]) if x.dim() == 3 else x


def moves(value: object) -> TypeGuard[Tensor]:
    """Whether a tensor depends on what was read, and so may differ between the runs."""
    return isinstance(value, Tensor) and value.requires_grad


def _layer_norm(
    x: Tensor,
    shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    return normalise(x, weight, bias, eps)


@contextmanager
def activations(
    module: nn.Module, take: Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]
) -> Iterator[None]:
    """Hand every activation whole to `take`, also one that is written as several functions."""
    found = [m for m in module.modules() if type(m).__module__ in _ACTIVATIONS]
    simple = [m for m in found if not isinstance(m, nn.Softmax | nn.MultiheadAttention)]

    def whole(own: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def forward(x: Tensor) -> Tensor:
            with torch._C.DisableTorchFunction():
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
