"""What moved a word between two runs, split exactly over layers, heads and sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.autograd import Function

from attnviz.analyses.shift.decomposition import ShiftDecomposition
from attnviz.analyses.shift.tracing import (
    MATRICES,
    Mix,
    Watch,
    activations,
    by_head,
    run,
)

_HIDDEN = -1e30  # what masks put for -∞ is below
_CLOSE = 1e-4  # relative distance of two points below which the mean derivative is more exact


def elementwise(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Apply a function to every number; its slope is (f(x₁) - f(x₀)) / (x₁ - x₀).

    >>> x = torch.tensor([[1.0], [3.0]], requires_grad=True)
    >>> torch.autograd.grad(elementwise(torch.square, x)[1].sum(), x)[0]
    tensor([[0.],
            [4.]])
    """
    made: Tensor = _Elementwise.apply(x, f)  # type: ignore[no-untyped-call]
    return made


def product(a: Tensor, b: Tensor) -> Tensor:
    """Multiply two tensors number by number, broadcasting: Δ(ab) = ā Δb + b̄ Δa.

    >>> a = torch.tensor([[1.0], [3.0]], requires_grad=True)
    >>> b = torch.tensor([[2.0], [6.0]], requires_grad=True)
    >>> torch.autograd.grad(product(a, b)[1].sum(), [a, b])
    (tensor([[0.],
            [4.]]), tensor([[0.],
            [2.]]))
    """
    made: Tensor = _Product.apply(a, b)  # type: ignore[no-untyped-call]
    return made


def matrix_product(a: Tensor, b: Tensor) -> Tensor:
    """Multiply matrices (2, …, m, k) and (2, …, k, n): Δ(AB) = Ā ΔB + ΔA B̄."""
    made: Tensor = _MatrixProduct.apply(a, b)  # type: ignore[no-untyped-call]
    return made


def softmax(scores: Tensor, opened: Callable[[Tensor], None] | None = None) -> Tensor:
    """Take the softmax over the last dimension; its secant is the logarithmic mean λ.

    A key that is hidden in run 0 alone was opened between the runs. What that does is no matter of
    scores: `opened` is told, in the backward pass, how much it moved for every key, (…, m, n).

    >>> s = torch.tensor([[[0.0, 0.0]], [[1.0, 0.0]]], requires_grad=True)
    >>> made = softmax(s)
    >>> (slope,) = torch.autograd.grad(made[1, 0, 0], s)
    >>> torch.allclose((slope[1] * (s[1] - s[0])).sum(), made[1, 0, 0] - made[0, 0, 0])
    True
    """
    made: Tensor = _Softmax.apply(scores, opened)  # type: ignore[no-untyped-call]
    return made


def normalise(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Take the layer norm over the last dimension: γ (x - mean) / σ + β.

    Its secant is that of its parts: Δ(c/σ) = mean(1/σ) Δc + c̄ Δ(1/σ), for centred c.
    """
    centred = x - x.mean(-1, keepdim=True)
    variance = elementwise(torch.square, centred).mean(-1, keepdim=True)
    made = product(centred, elementwise(torch.rsqrt, variance + eps))
    made = made if weight is None else made * weight
    return made if bias is None else made + bias


class _Elementwise(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
        with torch.enable_grad():
            free = x.detach().requires_grad_()
            y = f(free)
            (derivative,) = torch.autograd.grad(y.sum(), free)
        y = y.detach()
        (x0, x1), (y0, y1) = _runs(x), _runs(y)
        step, size = x1 - x0, torch.maximum(x0.abs(), x1.abs())
        close = step.abs() <= _CLOSE * size
        secant = (y1 - y0) / torch.where(close, 1.0, step)
        ctx.save_for_backward(torch.where(close, _mean(derivative), secant))
        return y

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> Any:
        (slope,) = ctx.saved_tensors
        return _of_run_1(_runs(gradient[0])[1] * slope), None


class _Product(Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(_mean(a), _mean(b))
        return a * b

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> Any:
        a, b = ctx.saved_tensors
        g = _runs(gradient[0])[1]
        return _of_run_1((g * b).sum_to_size(a.shape)), _of_run_1((g * a).sum_to_size(b.shape))


class _MatrixProduct(Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(_mean(a), _mean(b))
        return a @ b

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> Any:
        a, b = ctx.saved_tensors
        g = _runs(gradient[0])[1]
        return _of_run_1(g @ b.mT), _of_run_1(a.mT @ g)


class _Softmax(Function):
    @staticmethod
    def forward(ctx: Any, scores: Tensor, opened: Callable[[Tensor], None] | None) -> Tensor:
        weights = scores.softmax(-1)
        (before, after), (hidden, hidden_after) = _runs(weights), _runs(scores <= _HIDDEN)
        # By log_softmax, which knows the logarithm of a weight too small to be a number.
        logs_before, logs_after = _runs(scores.log_softmax(-1))
        logs = (logs_after - logs_before).masked_fill(hidden | hidden_after, 0.0)
        close = logs.abs() <= _CLOSE
        mean = torch.where(close, _mean(weights), (after - before) / torch.where(close, 1.0, logs))
        # The logarithmic mean of a number and 0 is 0.
        mean = mean.masked_fill(hidden | hidden_after, 0.0)
        ctx.save_for_backward(mean, torch.where(hidden, after, 0.0))
        ctx.opened = opened
        return weights

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> Any:
        mean, new = ctx.saved_tensors
        g = _runs(gradient[0])[1]
        tiny = torch.finfo(mean.dtype).tiny  # where no key is seen in both runs
        relative = g - (mean * g).sum(-1, keepdim=True) / mean.sum(-1, keepdim=True).clamp(min=tiny)
        if ctx.opened is not None:
            ctx.opened(new * relative)
        return _of_run_1(mean * relative), None


def _runs(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return what belongs to run 0 and to run 1, each (1 or more, …)."""
    if x.shape[0] % 2:
        raise ValueError(f"expected two runs in the first dimension, got {tuple(x.shape)}")
    before, after = x.chunk(2)
    return before, after


def _mean(x: Tensor) -> Tensor:
    before, after = _runs(x)
    return (before + after) / 2


def _of_run_1(gradient: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(gradient), gradient])


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


def secant(
    module: nn.Module,
    inputs: Mapping[str, Tensor],
    *,
    rows: Sequence[int],
    direction: Tensor | None = None,
    gate: Tensor | None = None,
) -> ShiftDecomposition:
    """Split the difference of two runs at one word over all that it came from.

    With a bar for the mean of both runs, what head h of layer l takes from source j is
    ᾱ_ij Δv_j (its value part) + Δα_ij v̄_j (its routing part), carried to the end by what the
    position itself goes through later: W^O, norms and MLPs, each as its secant. These parts and the
    difference at the start add up to the difference at the end. A second pass follows all paths
    back, also through other positions: the credit of each source.

    Parameters
    ----------
    inputs : of the model, (2, T) each: the reference and the text.
    rows : the positions that are explained: the pieces of the word, of which the mean is taken.
    direction : (d,), along which the difference is measured; by default its own.
    gate : (T, T), the keys that each query may read in the reference; None for all. Then what the
        opened keys bring is their credit; else that of what differs at the start.

    Source: secants are the multipliers of DeepLIFT (Shrikumar et al. 2017, arXiv:1704.02685).
    """
    mode = Secants(cut=True, gate=gate)
    with activations(module, elementwise):
        found = run(module, inputs, mode)
    if not mode.mixes:
        raise ValueError("no attention was followed")
    at, end = list(rows), found.end[:, list(rows)].mean(1)
    delta = (end[1] - end[0]).detach()
    length = delta.norm().clamp(min=torch.finfo(delta.dtype).tiny)
    u = delta / length if direction is None else (direction / direction.norm()).to(delta)
    mixed = [mix.mixed for mix in mode.mixes]
    at_start, *carried = torch.autograd.grad((end[1] * u).sum(), [found.start, *mixed])
    parts = [_parts(mix, g, at) for mix, g in zip(mode.mixes, carried, strict=True)]
    value, routing = (torch.stack(each).double() for each in zip(*parts, strict=True))
    moved = (at_start[1, at] * (found.start[1, at] - found.start[0, at])).sum()
    return ShiftDecomposition(
        value=value.cpu(),
        routing=routing.cpu(),
        start=moved.item(),
        credit=_credit(module, inputs, at, u, gate).double().cpu(),
        total=(delta * u).sum().item(),
        length=length.item(),
        direction=u.cpu(),
    )


def _parts(mix: Mix, carried: Tensor, at: list[int]) -> tuple[Tensor, Tensor]:
    """Return the value and the routing part of each head and source, (H, n) each."""
    g = by_head(carried, 2)[1][:, at]
    (w0, w1), (v0, v1) = mix.weights[:, :, at], mix.values
    value = (w0 + w1) / 2 * (g @ (v1 - v0).mT)
    routing = (w1 - w0) * (g @ ((v0 + v1) / 2).mT)
    return value.sum(1), routing.sum(1)


def _credit(
    module: nn.Module, inputs: Mapping[str, Tensor], at: list[int], u: Tensor, gate: Tensor | None
) -> Tensor:
    """Return what each source brought over all paths, (T,)."""
    mode = Secants(cut=False, gate=gate)
    with activations(module, elementwise):
        found = run(module, inputs, mode)
    (at_start,) = torch.autograd.grad((found.end[1, at].mean(0) * u).sum(), found.start)
    by_start = (at_start[1] * (found.start[1] - found.start[0])).sum(-1).detach()
    opened = [each.reshape(-1, each.shape[-1]).sum(0) for each in mode.opened]
    return by_start + sum(opened, torch.zeros_like(by_start))
