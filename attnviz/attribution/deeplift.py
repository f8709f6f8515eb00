"""DeepLIFT multipliers: the slopes of functions between their values in two runs.

In place of derivatives, multipliers make the chain rule exact for differences of any size.

Source: DeepLIFT (Shrikumar et al. 2017, arXiv:1704.02685).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd import Function

from attnviz.attribution import tracing
from attnviz.attribution.target import Place, Readout
from attnviz.attribution.tracing import Elementwise, by_head, moves

Multiply: TypeAlias = Callable[[Tensor], tuple[Tensor, ...]]

_ELEMENTWISE = {
    "gelu", "silu", "relu", "leaky_relu", "mish", "softplus", "tanh", "sigmoid", "erf", "exp",
    "log", "sqrt", "rsqrt", "reciprocal", "square", "abs", "pow", "__pow__", "clamp",
}  # fmt: skip
_IN_PLACE = {f"{name}_" for name in _ELEMENTWISE}
_MULTIPLY = {"mul", "__mul__", "__rmul__", "multiply", "__imul__", "mul_"}
_DIVIDE = {"div", "true_divide", "__truediv__", "__itruediv__", "div_"}
_HIDDEN = -1e30  # masked scores are below
_CLOSE = 1e-4  # relative difference below which the mean derivative is more exact


class _Multiplied(Function):
    """Computes both runs by a rule, which also says how gradients of run 1 go back to inputs."""

    @staticmethod
    def forward(ctx: Any, rule: Callable[..., tuple[Tensor, Multiply]], *inputs: Tensor) -> Tensor:
        output, ctx.multiply = rule(*inputs)
        ctx.dim, *ctx.dims = map(_run_dim, (output, *inputs))
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        carried = zip(ctx.multiply(gradients[0].chunk(2, ctx.dim)[1]), ctx.dims, strict=True)
        return None, *(torch.cat([torch.zeros_like(one), one], dim) for one, dim in carried)


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


def bilinear(f: Callable[[Tensor, Tensor], Tensor], a: Tensor, b: Tensor) -> Tensor:
    """Apply a product of two tensors, also of matrices: Δf(a, b) = f(ā, Δb) + f(Δa, b̄).

    >>> a = torch.tensor([[1.0], [3.0]], requires_grad=True)
    >>> b = torch.tensor([[2.0], [6.0]], requires_grad=True)
    >>> torch.autograd.grad(bilinear(torch.mul, a, b)[1].sum(), [a, b])
    (tensor([[0.],
            [4.]]), tensor([[0.],
            [2.]]))
    """

    def rule(a: Tensor, b: Tensor) -> tuple[Tensor, Multiply]:
        means = _mean(a).requires_grad_(), _mean(b).requires_grad_()

        def multiply(gradient: Tensor) -> tuple[Tensor, ...]:
            with torch.enable_grad():
                return torch.autograd.grad(f(*means), means, gradient)

        return f(a, b), multiply

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


def along(x: Tensor, y: Tensor) -> Tensor:
    """Return y (n, e), any function of x (n, d). Its multiplier is Δy Δxᵀ / |Δx|²."""

    def rule(x: Tensor) -> tuple[Tensor, Multiply]:
        (x0, x1), (y0, y1) = _split_runs(x), _split_runs(y)
        step = x1 - x0
        unit = step / step.square().sum(-1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
        return y.clone(), lambda g: ((g * (y1 - y0)).sum(-1, keepdim=True) * unit,)

    return _apply(rule, x)


def _are_experts(module: nn.Module) -> bool:
    """Whether a module takes tokens, their experts, and the weights of these."""
    names = list(inspect.signature(inspect.unwrap(type(module).forward)).parameters)[2:]
    return len(names) == 2 and "ind" in names[0] and "weights" in names[1]


def _mixture(experts: nn.Module, x: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """Compute every expert for every token: a token may have others in the other run.

    The router chooses, so its weights are no smooth function: their multiplier is along x.
    """
    alone, one = inspect.unwrap(type(experts).forward), torch.ones_like(top_k_weights[:, :1])
    count, tokens = 1 + int(top_k_index.max()), x.flatten(0, -2)  # the last one may stand for none
    weights = top_k_weights.new_zeros(len(tokens), count)
    weights = along(tokens, weights.scatter(1, top_k_index, top_k_weights).detach())
    mixed = torch.zeros_like(tokens)
    for number in range(count):
        index = torch.full_like(top_k_index[:, :1], number)
        try:
            output = alone(experts, x, index, one.detach())
        except ValueError:  # some code needs two experts: the other one has no weight
            index = torch.cat([index, (index + 1) % count], 1)
            output = alone(experts, x, index, torch.cat([one, 0 * one], 1).detach())
        mixed = mixed + bilinear(torch.mul, output.flatten(0, -2), weights[:, number, None])
    return mixed.view_as(output)


def _split_runs(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the halves of run 0 and of run 1, each (1 or more, …)."""
    if x.shape[dim := _run_dim(x)] % 2:
        raise ValueError("it computes some tokens apart from the others")
    before, after = x.chunk(2, dim)
    return before, after


def _run_dim(x: Tensor) -> int:
    """Return which dimension has the runs: the second in some models, such as (T, N, d)."""
    runs = tracing.RUNS_SECOND.get()
    return int(x.dim() > 1 and x.shape[0] != runs == x.shape[1])


def _mean(x: Tensor) -> Tensor:
    before, after = _split_runs(x)
    return (before + after) / 2


class DeepLift(tracing.AttentionTracer):
    """Replaces derivatives by the multipliers between two runs, while a model computes both.

    cut : whether gradients end at the output of each attention. gate : as in `decompose`, or of
    several references, (N, T, T).
    """

    def __init__(self, readout: Readout, gate: Tensor | None, *, cut: bool = False) -> None:
        super().__init__(readout)
        self.cut, self.gate = cut, gate
        experts = {m: partial(_mixture, m) for m in readout.module.modules() if _are_experts(m)}
        self.computed = tracing.activations(readout.module, elementwise) | experts
        self.mixes: list[tracing.TracedAttention] = []  # in the order of execution
        self.opened: list[Tensor] = []  # by attention, that of each opened key, (T,)

    def softmax(self, original: Elementwise, scores: Tensor, options: Mapping[str, Any]) -> Tensor:
        """Return the softmax; in run 0 only over the keys that the gate allows."""
        if not moves(scores):
            return original(scores)
        scores = scores.to(options.get("dtype") or scores.dtype)
        if self.gate is None or (gate := self.gate_over(self.gate, scores)) is None:
            return softmax(scores)
        hidden = torch.cat([~gate, torch.zeros_like(gate)])
        gated = by_head(scores, len(hidden)).masked_fill(hidden, -torch.inf).reshape_as(scores)
        return softmax(gated, partial(self._record, self.opened, self.place, self.gate.shape[-1]))

    @staticmethod  # the graph of gradients holds it, and would hold a tracer that holds the graph
    def _record(opened: list[Tensor], place: Place, T: int, effect: Tensor) -> None:
        by_key = effect.reshape(-1, effect.shape[-1]).sum(0)[: len(range(T)[place.keys])]
        opened.append(place.spread(by_key, T))

    def mix(self, weights: Tensor, values: Tensor) -> Tensor:
        """Return the product of weights and values, and record it."""
        if not (moves(weights) and moves(values)):
            return weights @ values
        mixed = bilinear(torch.matmul, weights, values)
        if self.cut:
            mixed = mixed.detach().requires_grad_()
        weights, values = by_head(weights.detach(), 2), by_head(values.detach(), 2)
        self.mixes.append(tracing.TracedAttention(weights, values, mixed, self.place))
        return mixed.clone()  # the model may change it in place

    def other(self, name: str, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Return the result of any other function, with its multiplier as derivative."""
        moving = [value for value in (*args, *kwargs.values()) if moves(value)]
        if not moving:
            return func(*args, **kwargs)
        if name in _ELEMENTWISE:
            return elementwise(lambda x: func(x, *args[1:], **kwargs), args[0])
        if name in _IN_PLACE:
            changed = elementwise(lambda x: func(x.clone(), *args[1:], **kwargs), args[0].clone())
            return args[0].copy_(changed)
        if name in _MULTIPLY and len(moving) == 2:
            return bilinear(torch.mul, *moving)
        if name in _DIVIDE and moves(args[1]):
            inverse = elementwise(torch.reciprocal, args[1])
            return bilinear(torch.mul, args[0], inverse) if moves(args[0]) else args[0] * inverse
        if name == "einsum" and len(moving) == 2:
            return bilinear(partial(torch.einsum, args[0]), *moving)
        if name in tracing.MATRICES and len(moving) == 2:
            return bilinear(torch.matmul, *moving)
        if name == "layer_norm":
            return self.normalize(*args, **kwargs)
        return func(*args, **kwargs)
