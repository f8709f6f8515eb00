"""Decompose the difference of two runs exactly, by DeepLIFT multipliers.

A multiplier is the slope of a function between its values in both runs. In place of derivatives,
multipliers make the chain rule exact for differences of any size.

Source: DeepLIFT (Shrikumar et al. 2017, arXiv:1704.02685).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.autograd import Function

from attnviz.analyses.shift.decomposition import ShiftDecomposition
from attnviz.analyses.shift.tracing import (
    MATRICES,
    AttentionTracer,
    TracedAttention,
    activations,
    by_head,
    trace_run,
)

_HIDDEN = -1e30  # masked scores are below
_CLOSE = 1e-4  # relative difference below which the mean derivative is more exact


def elementwise(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply a function to every number. Its multiplier is (f(x₁) - f(x₀)) / (x₁ - x₀).

    >>> x = torch.tensor([[1.0], [3.0]], requires_grad=True)
    >>> torch.autograd.grad(elementwise(torch.square, x)[1].sum(), x)[0]
    tensor([[0.],
            [4.]])
    """
    output: Tensor = _Elementwise.apply(x, f)  # type: ignore[no-untyped-call]
    return output


def product(a: Tensor, b: Tensor) -> Tensor:
    """Multiply two tensors number by number, broadcasting: Δ(ab) = ā Δb + b̄ Δa.

    >>> a = torch.tensor([[1.0], [3.0]], requires_grad=True)
    >>> b = torch.tensor([[2.0], [6.0]], requires_grad=True)
    >>> torch.autograd.grad(product(a, b)[1].sum(), [a, b])
    (tensor([[0.],
            [4.]]), tensor([[0.],
            [2.]]))
    """
    output: Tensor = _Product.apply(a, b)  # type: ignore[no-untyped-call]
    return output


def matrix_product(a: Tensor, b: Tensor) -> Tensor:
    """Multiply matrices (2, …, m, k) and (2, …, k, n): Δ(AB) = Ā ΔB + ΔA B̄."""
    output: Tensor = _MatrixProduct.apply(a, b)  # type: ignore[no-untyped-call]
    return output


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
    weights: Tensor = _Softmax.apply(scores, on_opened)  # type: ignore[no-untyped-call]
    return weights


def normalize(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Return the layer norm over the last dimension: γ (x - mean) / σ + β.

    Its multiplier follows from its parts: Δ(c/σ) = mean(1/σ) Δc + c̄ Δ(1/σ), for centered c.
    """
    centered = x - x.mean(-1, keepdim=True)
    variance = elementwise(torch.square, centered).mean(-1, keepdim=True)
    output = product(centered, elementwise(torch.rsqrt, variance + eps))
    output = output if weight is None else output * weight
    return output if bias is None else output + bias


class _Elementwise(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            y = f(leaf)
            (derivative,) = torch.autograd.grad(y.sum(), leaf)
        y = y.detach()
        (x0, x1), (y0, y1) = _split_runs(x), _split_runs(y)
        step, size = x1 - x0, torch.maximum(x0.abs(), x1.abs())
        close = step.abs() <= _CLOSE * size
        slope = (y1 - y0) / torch.where(close, 1.0, step)
        ctx.save_for_backward(torch.where(close, _mean(derivative), slope))
        return y

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> Any:
        (slope,) = ctx.saved_tensors
        return _for_run_1(_split_runs(gradient[0])[1] * slope), None


class _Product(Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(_mean(a), _mean(b))
        return a * b

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> Any:
        a, b = ctx.saved_tensors
        g = _split_runs(gradient[0])[1]
        return _for_run_1((g * b).sum_to_size(a.shape)), _for_run_1((g * a).sum_to_size(b.shape))


class _MatrixProduct(Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(_mean(a), _mean(b))
        return a @ b

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> Any:
        a, b = ctx.saved_tensors
        g = _split_runs(gradient[0])[1]
        return _for_run_1(g @ b.mT), _for_run_1(a.mT @ g)


class _Softmax(Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, on_opened: Callable[[Tensor], None] | None) -> Tensor:
        weights = scores.softmax(-1)
        (before, after), (hidden, hidden_after) = (
            _split_runs(weights),
            _split_runs(scores <= _HIDDEN),
        )
        # log_softmax is finite where a weight underflows.
        logs_before, logs_after = _split_runs(scores.log_softmax(-1))
        logs = (logs_after - logs_before).masked_fill(hidden | hidden_after, 0.0)
        close = logs.abs() <= _CLOSE
        mean = torch.where(close, _mean(weights), (after - before) / torch.where(close, 1.0, logs))
        # The logarithmic mean with 0 is 0.
        mean = mean.masked_fill(hidden | hidden_after, 0.0)
        ctx.save_for_backward(mean, torch.where(hidden, after, 0.0))
        ctx.on_opened = on_opened
        return weights

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> Any:
        mean, opened = ctx.saved_tensors
        g = _split_runs(gradient[0])[1]
        tiny = torch.finfo(mean.dtype).tiny  # where no key is visible in both runs
        relative = g - (mean * g).sum(-1, keepdim=True) / mean.sum(-1, keepdim=True).clamp(min=tiny)
        if ctx.on_opened is not None:
            ctx.on_opened(opened * relative)
        return _for_run_1(mean * relative), None


def _split_runs(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the halves of run 0 and of run 1, each (1 or more, …)."""
    if x.shape[0] % 2:
        raise ValueError(f"expected two runs in the first dimension, got {tuple(x.shape)}")
    before, after = x.chunk(2)
    return before, after


def _mean(x: Tensor) -> Tensor:
    before, after = _split_runs(x)
    return (before + after) / 2


def _for_run_1(gradient: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(gradient), gradient])


_ELEMENTWISE = {
    "gelu", "silu", "relu", "leaky_relu", "mish", "softplus", "tanh", "sigmoid", "erf", "exp",
    "log", "sqrt", "rsqrt", "reciprocal", "square", "abs", "pow", "__pow__", "clamp",
}  # fmt: skip
_MULTIPLY = {"mul", "__mul__", "__rmul__", "multiply", "__imul__", "mul_"}
_DIVIDE = {"div", "true_divide", "__truediv__", "__itruediv__", "div_"}


class DeepLift(AttentionTracer):
    """Replaces derivatives by the multipliers between two runs, while a model computes both.

    Attributes
    ----------
    cut : bool
        Whether gradients end at the output of each attention.
    gate : Tensor or None
        The keys that each query may attend to in run 0, (T, T). None for all.
    mixes : list of TracedAttention
        The attentions, in the order of execution.
    opened : list of Tensor
        The effect of each key that was opened, by attention in backward order.
    """

    def __init__(self, *, cut: bool, gate: Tensor | None = None) -> None:
        super().__init__()
        self.cut, self.gate = cut, gate
        self.mixes: list[TracedAttention] = []
        self.opened: list[Tensor] = []

    def softmax(
        self, original: Callable[[Tensor], Tensor], scores: Tensor, options: Mapping[str, Any]
    ) -> Tensor:
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
        self.mixes.append(TracedAttention.of(weights.detach(), values.detach(), mixed, runs=2))
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
            return _layer_norm(*args, **kwargs)
        return func(*args, **kwargs)


def moves(value: object) -> TypeGuard[Tensor]:
    """Whether a tensor depends on the tokens, and so may differ between the runs."""
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
    return normalize(x, weight, bias, eps)


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

    Parameters
    ----------
    module : Module
        The model.
    inputs : mapping of str to Tensor
        What the model takes, (2, T) each: the reference, then the text.
    rows : sequence of int
        The positions of the pieces of the word. Their mean is explained.
    direction : Tensor, optional
        The direction along which the difference is measured, (d,). By default its own.
    gate : Tensor, optional
        The keys that each query may attend to in the reference, (T, T). By default all. With a
        gate, credit goes to the keys that it opens; without, to tokens that differ at the start.

    Raises
    ------
    ValueError
        No attention could be traced.
    """
    mode = DeepLift(cut=True, gate=gate)
    with activations(module, elementwise):
        traced = trace_run(module, inputs, mode)
    if not mode.mixes:
        raise ValueError("no attention was traced")
    rows = list(rows)
    end = traced.end[:, rows].mean(1)
    delta = (end[1] - end[0]).detach()
    length = delta.norm().clamp(min=torch.finfo(delta.dtype).tiny)
    u = delta / length if direction is None else (direction / direction.norm()).to(delta)
    mixed = [mix.mixed for mix in mode.mixes]
    start_gradient, *carried = torch.autograd.grad((end[1] * u).sum(), [traced.start, *mixed])
    parts = [_parts(mix, g, rows) for mix, g in zip(mode.mixes, carried, strict=True)]
    value, routing = (torch.stack(part).double() for part in zip(*parts, strict=True))
    start = (start_gradient[1, rows] * (traced.start[1, rows] - traced.start[0, rows])).sum()
    return ShiftDecomposition(
        value=value.cpu(),
        routing=routing.cpu(),
        start=start.item(),
        credit=_credit(module, inputs, rows, u, gate).double().cpu(),
        total=(delta * u).sum().item(),
        length=length.item(),
        direction=u.cpu(),
    )


def _parts(mix: TracedAttention, carried: Tensor, rows: list[int]) -> tuple[Tensor, Tensor]:
    """Return the value and the routing part of each head and source, (H, n) each."""
    g = by_head(carried, 2)[1][:, rows]
    (w0, w1), (v0, v1) = mix.weights[:, :, rows], mix.values
    value = (w0 + w1) / 2 * (g @ (v1 - v0).mT)
    routing = (w1 - w0) * (g @ ((v0 + v1) / 2).mT)
    return value.sum(1), routing.sum(1)


def _credit(
    module: nn.Module, inputs: Mapping[str, Tensor], rows: list[int], u: Tensor, gate: Tensor | None
) -> Tensor:
    """Return the contribution of each source over all paths, (T,)."""
    mode = DeepLift(cut=False, gate=gate)
    with activations(module, elementwise):
        traced = trace_run(module, inputs, mode)
    end = (traced.end[1, rows].mean(0) * u).sum()
    (start_gradient,) = torch.autograd.grad(end, traced.start)
    from_start = (start_gradient[1] * (traced.start[1] - traced.start[0])).sum(-1).detach()
    opened = [effect.reshape(-1, effect.shape[-1]).sum(0) for effect in mode.opened]
    return from_start + sum(opened, torch.zeros_like(from_start))
