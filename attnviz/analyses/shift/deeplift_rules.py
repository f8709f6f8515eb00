r"""What a function made of the *difference* of two runs: exact slopes between two points.

Where a network is run twice, on a reference (0) and on a text (1), a derivative tells what a small
change would do; a secant tells what the change from 0 to 1 did. For a product, with a bar for the
mean of both runs, Δ(ab) = ā Δb + b̄ Δa; for a function of one number Δg = (Δg/Δz) Δz; for a softmax
Δα_j = λ_j (Δs_j - Σ_k λ_k Δs_k / Σ_k λ_k) with λ = Δα / Δ ln α. Each is exact, so sums of them are
(secants are the multipliers of DeepLIFT; Shrikumar et al. 2017, arXiv:1704.02685).

Each function here takes tensors whose first dimension holds the two runs one after the other (2, or
twice the heads or positions where a model folds these in). It computes what it is named after, and
where autograd asks for a gradient it hands back the secant: gradients with respect to
*differences*, which stand in the place of run 1. Those of run 0 stay 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

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
