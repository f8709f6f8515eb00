"""Decompose the difference of two runs exactly, by DeepLIFT multipliers.

A multiplier is the slope of a function between its values in both runs. In place of derivatives,
multipliers make the chain rule exact for differences of any size. No model is known by name:
`AttentionTracer` follows each attention from the softmax, through functions that keep the weights
as they are, to the product with the values.

Source: DeepLIFT (Shrikumar et al. 2017, arXiv:1704.02685).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeGuard

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.overrides import TorchFunctionMode

from attnviz.analyses.shift.result import ShiftDecomposition
from attnviz.errors import ModelError
from attnviz.runtime.compat import outside_function_modes

Elementwise: TypeAlias = Callable[[Tensor], Tensor]
Multiply: TypeAlias = Callable[[Tensor], tuple[Tensor, ...]]

MATRICES = {"matmul", "__matmul__", "bmm"}
WEIGHT_PRESERVING = {  # functions that keep attention weights as they are
    "dropout", "to", "type", "type_as", "contiguous", "clone", "float", "half", "bfloat16", "view",
    "reshape", "flatten", "unflatten", "masked_fill",
}  # fmt: skip
_ELEMENTWISE = {
    "gelu", "silu", "relu", "leaky_relu", "mish", "softplus", "tanh", "sigmoid", "erf", "exp",
    "log", "sqrt", "rsqrt", "reciprocal", "square", "abs", "pow", "__pow__", "clamp",
}  # fmt: skip
_MULTIPLY = {"mul", "__mul__", "__rmul__", "multiply", "__imul__", "mul_"}
_DIVIDE = {"div", "true_divide", "__truediv__", "__itruediv__", "div_"}
_ACTIVATIONS = ("transformers.activations", "torch.nn.modules.activation")
_RECENT = 8  # weights that may not have met their values yet
_HIDDEN = -1e30  # masked scores are below
_CLOSE = 1e-4  # relative difference below which the mean derivative is more exact


class _Multiplied(Function):
    """Computes a function of both runs, and carries gradients of run 1 by its multipliers.

    The rule of the function returns its output, and how the gradient of run 1 goes back to each
    input.
    """

    @staticmethod
    def forward(ctx: Any, rule: Callable[..., tuple[Tensor, Multiply]], *inputs: Tensor) -> Tensor:
        output, ctx.multiply = rule(*inputs)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        carried = ctx.multiply(_split_runs(gradients[0])[1])
        return None, *(torch.cat([torch.zeros_like(gradient), gradient]) for gradient in carried)


def _apply(rule: Callable[..., tuple[Tensor, Multiply]], *inputs: Tensor) -> Tensor:
    output: Tensor = _Multiplied.apply(rule, *inputs)  # type: ignore[no-untyped-call]
    return output


def elementwise(f: Elementwise, x: Tensor) -> Tensor:
    """Apply a function to every number. Its multiplier is (f(x₁) - f(x₀)) / (x₁ - x₀).

    >>> x = torch.tensor([[1.0], [3.0]], requires_grad=True)
    >>> torch.autograd.grad(elementwise(torch.square, x)[1].sum(), x)[0]
    tensor([[0.],
            [4.]])
    """

    def rule(x: Tensor) -> tuple[Tensor, Multiply]:
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            y = f(leaf)
            (derivative,) = torch.autograd.grad(y.sum(), leaf)
        y = y.detach()
        (x0, x1), (y0, y1) = _split_runs(x), _split_runs(y)
        step = x1 - x0
        close = step.abs() <= _CLOSE * torch.maximum(x0.abs(), x1.abs())
        secant = (y1 - y0) / torch.where(close, 1.0, step)
        slope = torch.where(close, _mean(derivative), secant)
        return y, lambda gradient: (gradient * slope,)

    return _apply(rule, x)


def product(a: Tensor, b: Tensor) -> Tensor:
    """Multiply two tensors number by number, broadcasting: Δ(ab) = ā Δb + b̄ Δa.

    >>> a = torch.tensor([[1.0], [3.0]], requires_grad=True)
    >>> b = torch.tensor([[2.0], [6.0]], requires_grad=True)
    >>> torch.autograd.grad(product(a, b)[1].sum(), [a, b])
    (tensor([[0.],
            [4.]]), tensor([[0.],
            [2.]]))
    """

    def rule(a: Tensor, b: Tensor) -> tuple[Tensor, Multiply]:
        mean_a, mean_b = _mean(a), _mean(b)

        def multiply(gradient: Tensor) -> tuple[Tensor, ...]:
            to_a, to_b = gradient * mean_b, gradient * mean_a
            return to_a.sum_to_size(mean_a.shape), to_b.sum_to_size(mean_b.shape)

        return a * b, multiply

    return _apply(rule, a, b)


def matrix_product(a: Tensor, b: Tensor) -> Tensor:
    """Multiply matrices (2, …, m, k) and (2, …, k, n): Δ(AB) = Ā ΔB + ΔA B̄."""

    def rule(a: Tensor, b: Tensor) -> tuple[Tensor, Multiply]:
        mean_a, mean_b = _mean(a), _mean(b)
        return a @ b, lambda gradient: (gradient @ mean_b.mT, mean_a.mT @ gradient)

    return _apply(rule, a, b)


def softmax(scores: Tensor, on_opened: Callable[[Tensor], None] | None = None) -> Tensor:
    """Return the softmax over the last dimension. Its multiplier is the logarithmic mean λ.

    A key that is masked in run 0 only was opened between the runs, which no change of scores
    describes. The backward pass calls `on_opened` with the effect of each opened key, (…, m, n).

    >>> s = torch.tensor([[[0.0, 0.0]], [[1.0, 0.0]]], requires_grad=True)
    >>> w = softmax(s)
    >>> (slope,) = torch.autograd.grad(w[1, 0, 0], s)
    >>> torch.allclose((slope[1] * (s[1] - s[0])).sum(), w[1, 0, 0] - w[0, 0, 0])
    True
    """

    def rule(scores: Tensor) -> tuple[Tensor, Multiply]:
        weights = scores.softmax(-1)
        before, after = _split_runs(weights)
        hidden_before, hidden_after = _split_runs(scores <= _HIDDEN)
        hidden = hidden_before | hidden_after
        # log_softmax is finite where a weight underflows.
        logs_before, logs_after = _split_runs(scores.log_softmax(-1))
        logs = (logs_after - logs_before).masked_fill(hidden, 0.0)
        close = logs.abs() <= _CLOSE
        mean = torch.where(close, _mean(weights), (after - before) / torch.where(close, 1.0, logs))
        mean = mean.masked_fill(hidden, 0.0)  # the logarithmic mean with 0 is 0
        opened = torch.where(hidden_before, after, 0.0)
        tiny = torch.finfo(mean.dtype).tiny  # where no key is visible in both runs
        total = mean.sum(-1, keepdim=True).clamp(min=tiny)

        def multiply(gradient: Tensor) -> tuple[Tensor, ...]:
            relative = gradient - (mean * gradient).sum(-1, keepdim=True) / total
            if on_opened is not None:
                on_opened(opened * relative)
            return (mean * relative,)

        return weights, multiply

    return _apply(rule, scores)


def normalize(
    x: Tensor,
    shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Return the layer norm over the last dimension: γ (x - mean) / σ + β.

    Its multiplier follows from its parts: Δ(c/σ) = mean(1/σ) Δc + c̄ Δ(1/σ), for centered c.
    """
    centered = x - x.mean(-1, keepdim=True)
    variance = elementwise(torch.square, centered).mean(-1, keepdim=True)
    output = product(centered, elementwise(torch.rsqrt, variance + eps))
    output = output if weight is None else output * weight
    return output if bias is None else output + bias


def _split_runs(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the halves of run 0 and of run 1, each (1 or more, …)."""
    if x.shape[0] % 2:
        raise ValueError(f"expected two runs in the first dimension, got {tuple(x.shape)}")
    before, after = x.chunk(2)
    return before, after


def _mean(x: Tensor) -> Tensor:
    before, after = _split_runs(x)
    return (before + after) / 2


@dataclass(frozen=True, eq=False)
class TracedAttention:
    """One attention: weights (runs, H, m, n), values (runs, H, n, d_v).

    mixed : their product in the graph and the shape of the model, for gradients.
    """

    weights: Tensor
    values: Tensor
    mixed: Tensor


def by_head(x: Tensor, runs: int) -> Tensor:
    """Return (runs, H, m, n) for a tensor that may be (runs · H, m, n)."""
    return x.reshape(runs, -1, *x.shape[1:]) if x.dim() == 3 else x


def moves(value: object) -> TypeGuard[Tensor]:
    """Whether a tensor depends on the tokens, and so may differ between the runs."""
    return isinstance(value, Tensor) and value.requires_grad


def is_among(value: object, tensors: Sequence[Tensor]) -> bool:
    """Whether an object is one of some tensors, by identity."""
    return any(value is tensor for tensor in tensors)


class AttentionTracer(TorchFunctionMode):
    """Follows attention weights while a model runs. Subclasses override the methods."""

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
        if name in WEIGHT_PRESERVING and args and is_among(args[0], self._weights):
            self._weights.append(weights := func(*args, **kwargs))
            return weights
        if name in MATRICES and is_among(args[0], self._weights):
            return self.mix(args[0], args[1])
        if name == "baddbmm" and len(args) == 3 and is_among(args[1], self._weights):
            bias, weights, values = args
            mixed = self.mix(weights, values) * kwargs.get("alpha", 1)
            return bias * kwargs.get("beta", 1) + mixed
        return self.other(name, func, args, kwargs)

    def softmax(self, original: Elementwise, scores: Tensor, options: Mapping[str, Any]) -> Tensor:
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
    module: nn.Module, apply: Callable[[Elementwise, Tensor], Tensor]
) -> Iterator[None]:
    """Call `apply(activation, x)` for every activation, also one made of several functions."""

    def run(original: Elementwise, x: Tensor) -> Tensor:
        with outside_function_modes():
            return apply(original, x)

    replaced = [
        m
        for m in module.modules()
        if type(m).__module__ in _ACTIVATIONS
        and not isinstance(m, nn.Softmax | nn.MultiheadAttention)
    ]
    for activation in replaced:
        activation.forward = partial(run, activation.forward)
    try:
        yield
    finally:
        for activation in replaced:
            del activation.forward


def base_of(module: nn.Module) -> nn.Module:
    """Return a model without its head."""
    base: nn.Module = getattr(module, "base_model", module)
    return base


def trace_run(
    module: nn.Module, inputs: Mapping[str, Tensor], mode: AbstractContextManager[Any]
) -> tuple[Tensor, Tensor]:
    """Run a model under a mode, and return the input of its first block and the last hidden state.

    Both are (N, T, d), connected by the graph of gradients. Parameters have no gradients.
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

    base = base_of(module)
    hook = _first_block(base).register_forward_pre_hook(start_here, with_kwargs=True)
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
    return starts[0], end


def _first_block(base: nn.Module) -> nn.Module:
    """Return the first block of the list that holds most of a model's parameters."""
    lists = [m for m in base.modules() if isinstance(m, nn.ModuleList) and len(m)]
    if not lists:
        raise ModelError(
            f"{type(base).__name__} has no list of blocks, so its shift cannot be decomposed. "
            "Choose a model with blocks in a row."
        )
    return max(lists, key=lambda blocks: sum(p.numel() for p in blocks.parameters()))[0]


class DeepLift(AttentionTracer):
    """Replaces derivatives by the multipliers between two runs, while a model computes both.

    cut : whether gradients end at the output of each attention.
    gate : the keys that each query may attend to in run 0, (T, T). None for all.
    """

    def __init__(self, *, cut: bool, gate: Tensor | None = None) -> None:
        super().__init__()
        self.cut, self.gate = cut, gate
        self.mixes: list[TracedAttention] = []  # in the order of execution
        self.opened: list[Tensor] = []  # the effect of each opened key, in backward order

    def softmax(self, original: Elementwise, scores: Tensor, options: Mapping[str, Any]) -> Tensor:
        """Return the softmax; in run 0 only over the keys that the gate allows."""
        if not moves(scores):
            return original(scores)
        scores = scores.to(options.get("dtype") or scores.dtype)
        if self.gate is None or scores.shape[-2:] != self.gate.shape:
            return softmax(scores)
        hidden = torch.stack([~self.gate, torch.zeros_like(self.gate)])[:, None]
        gated = by_head(scores, 2).masked_fill(hidden, -torch.inf).reshape_as(scores)
        return softmax(gated, self.opened.append)

    def mix(self, weights: Tensor, values: Tensor) -> Tensor:
        """Return the product of weights and values, and record it."""
        if not (moves(weights) and moves(values)):
            return weights @ values
        mixed = matrix_product(weights, values)
        if self.cut:
            mixed = mixed.detach().requires_grad_()
        weights, values = by_head(weights.detach(), 2), by_head(values.detach(), 2)
        self.mixes.append(TracedAttention(weights, values, mixed))
        return mixed.clone()  # the model may change it in place

    def other(self, name: str, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Return the result of any other function, with its multiplier as derivative."""
        moving = [value for value in (*args, *kwargs.values()) if moves(value)]
        if not moving:
            return func(*args, **kwargs)
        if name in _ELEMENTWISE:
            return elementwise(lambda x: func(x, *args[1:], **kwargs), args[0])
        if name in _MULTIPLY and len(moving) == 2:
            return product(*moving)
        if name in _DIVIDE and moves(args[1]):
            inverse = elementwise(torch.reciprocal, args[1])
            return product(args[0], inverse) if moves(args[0]) else args[0] * inverse
        if name in MATRICES and len(moving) == 2:
            return matrix_product(*moving)
        if name == "baddbmm":
            return _add_product(*args, **kwargs)
        if name == "layer_norm":
            return normalize(*args, **kwargs)
        return func(*args, **kwargs)


def _add_product(
    bias: Tensor, batch1: Tensor, batch2: Tensor, beta: float = 1, alpha: float = 1
) -> Tensor:
    return bias * beta + matrix_product(batch1, batch2) * alpha


def measure_along(delta: Tensor, direction: Tensor | None) -> tuple[float, Tensor]:
    """Return the length of a difference, and the unit vector along which it is measured.

    direction : the direction (d,), or None for that of the difference.
    """
    length = delta.norm().clamp(min=torch.finfo(delta.dtype).tiny)
    unit = delta / length if direction is None else (direction / direction.norm()).to(delta)
    return length.item(), unit


def decompose_shift(
    module: nn.Module,
    inputs: Mapping[str, Tensor],
    *,
    rows: Sequence[int],
    direction: Tensor | None = None,
    gate: Tensor | None = None,
) -> ShiftDecomposition:
    """Decompose the difference of two runs at one word over layers, heads and source tokens.

    With a bar for the mean of both runs, head h of layer l contributes from source j
    ᾱ_ij Δv_j (the value part) + Δα_ij v̄_j (the routing part), propagated to the end through the
    later W^O, norms and MLPs of the word's own position by their multipliers. These parts and the
    difference at the start add up to the difference at the end. A second pass follows all paths,
    also through other positions, and gives the credit of each source.

    inputs : those of the model, (2, T) each: the reference, then the text.
    rows : the positions of the pieces of the word. Their mean is explained.
    direction : where the difference is measured, (d,). By default along itself.
    gate : the keys that each query may attend to in the reference, (T, T). By default all. With a
        gate, credit goes to the keys that it opens; without, to tokens that differ at the start.
    """
    mode = DeepLift(cut=True, gate=gate)
    with activations(module, elementwise):
        start, states = trace_run(module, inputs, mode)
    if not mode.mixes:
        raise ValueError("no attention was traced")
    rows = list(rows)
    end = states[:, rows].mean(1)
    delta = (end[1] - end[0]).detach()
    length, unit = measure_along(delta, direction)
    mixed = [mix.mixed for mix in mode.mixes]
    start_gradient, *gradients = torch.autograd.grad((end[1] * unit).sum(), [start, *mixed])
    parts = [_parts(mix, g, rows) for mix, g in zip(mode.mixes, gradients, strict=True)]
    value, routing = (torch.stack(part).double() for part in zip(*parts, strict=True))
    return ShiftDecomposition(
        value=value.cpu(),
        routing=routing.cpu(),
        start=(start_gradient[1, rows] * (start[1, rows] - start[0, rows])).sum().item(),
        credit=_credit(module, inputs, rows, unit, gate).double().cpu(),
        total=(delta * unit).sum().item(),
        length=length,
        direction=unit.cpu(),
    )


def _parts(mix: TracedAttention, gradient: Tensor, rows: list[int]) -> tuple[Tensor, Tensor]:
    """Return the value and the routing part of each head and source, (H, n) each."""
    g = by_head(gradient, 2)[1][:, rows]
    (w0, w1), (v0, v1) = mix.weights[:, :, rows], mix.values
    value = (w0 + w1) / 2 * (g @ (v1 - v0).mT)
    routing = (w1 - w0) * (g @ ((v0 + v1) / 2).mT)
    return value.sum(1), routing.sum(1)


def _credit(
    module: nn.Module,
    inputs: Mapping[str, Tensor],
    rows: list[int],
    unit: Tensor,
    gate: Tensor | None,
) -> Tensor:
    """Return the contribution of each source over all paths, (T,)."""
    mode = DeepLift(cut=False, gate=gate)
    with activations(module, elementwise):
        start, states = trace_run(module, inputs, mode)
    end = (states[1, rows].mean(0) * unit).sum()
    (gradient,) = torch.autograd.grad(end, start)
    from_start = (gradient[1] * (start[1] - start[0])).sum(-1).detach()
    opened = [effect.reshape(-1, effect.shape[-1]).sum(0) for effect in mode.opened]
    return from_start + sum(opened, torch.zeros_like(from_start))
