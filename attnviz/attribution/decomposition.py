"""Split vectors exactly: the difference of two runs over sources, or one run over its parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv1d, linear

from attnviz.attribution import tracing
from attnviz.attribution.deeplift import DeepLift
from attnviz.attribution.target import Readout, Score, Target, base_of, token_ids
from attnviz.attribution.tracing import Elementwise
from attnviz.pipeline import Unrecorded
from attnviz.results import AgreementReport, AnalysisCheck, AttentionResult
from attnviz.results.base import Savable

_COMPLETE = 1e-3  # the largest completeness error of what is verified, in float32
_STEPS = 10  # rounding steps of half precision: three times what BERT and Llama of 2 layers need
_LEAST = 1e-2
_NORM_FUNCTIONS = {"rsqrt", "sqrt", "pow", "__pow__", "square", "reciprocal"}
_ACTIVATIONS = {
    "gelu", "silu", "relu", "leaky_relu", "mish", "softplus", "tanh", "sigmoid", "clamp",
}  # fmt: skip
_SHAPE_FUNCTIONS = tracing.WEIGHT_PRESERVING | {"transpose", "permute"}
_PRODUCTS = tracing.MATRICES | {"einsum"}
_MULTIPLY = {"mul", "__mul__", "__rmul__", "multiply"}


@dataclass(frozen=True, eq=False)
class Decomposition(Savable):
    """The difference between two runs of what is read, split over layers, heads and sources.

    All numbers are lengths along `direction`, in units of what is read: of the hidden state for a
    word's vector, of the logit for a prediction. There are L layers, H heads and T sources.
    """

    value: Tensor  # the part of each head due to different values, (L, H, T)
    routing: Tensor  # the part due to different attention weights, (L, H, T)
    start: float  # the difference at the position itself before the first layer
    credit: Tensor  # of each source over all paths, also through other positions, (T,)
    total: float  # the difference of the runs
    length: float  # its norm in all directions
    direction: Tensor  # of norm 1, (d,)

    def score(
        self, target: Target, result: AttentionResult | Unrecorded, gate: Tensor | None
    ) -> Score:
        """Return the number of a target along the direction, with the split as computed."""
        more: dict[str, Any] = {"direction": self.direction, "computed": {"split": self.credit}}
        return Score(**vars(target), **more, result=result, gate=gate)

    def __repr__(self) -> str:
        L, H, T = self.value.shape
        size = f"{L} layers × {H} heads × {T} tokens"
        return f"Decomposition({size}: {self.total:.2f}, error {self.error:.0e})"

    @property
    def table(self) -> Tensor:
        """The sum of value and routing parts, (L, H, T)."""
        return self.value + self.routing

    @property
    def error(self) -> float:
        """The completeness error of the direct parts, as a share of the length."""
        return abs(self.table.sum().item() + self.start - self.total) / self.length

    @property
    def credit_error(self) -> float:
        """The completeness error of the credits, as a share of the length."""
        return abs(self.credit.sum().item() - self.total) / self.length

    def relative_error(self, number: float) -> float:
        """The larger completeness error, as a share of all parts, or of 1 % of a larger number."""
        start = torch.tensor([self.start], dtype=torch.float64, device="cpu")
        least = _LEAST * max(1.0, abs(number))  # smaller parts are rounding: nothing was read
        return max(
            abs(parts.sum().item() - self.total) / max(parts.abs().sum().item(), least)
            for parts in (self.credit, torch.cat([self.table.flatten(), start]))
        )


def check_sums(report: AgreementReport, error: float) -> AgreementReport:
    """Return a report that covers the largest completeness error of some parts."""
    rounding = _STEPS * torch.finfo(getattr(torch, report.dtype)).eps
    sums = AnalysisCheck("sums of the parts", error, max(_COMPLETE, rounding))
    return replace(report, analysis=(*report.analysis, sums))


def measure_along(delta: Tensor, direction: Tensor | None) -> tuple[float, Tensor]:
    """Return the length of a difference, and a unit vector: its direction, or a given one (d,)."""
    length = delta.norm().clamp(min=torch.finfo(delta.dtype).tiny)
    unit = delta / length if direction is None else (direction / direction.norm()).to(delta)
    return length.item(), unit


def decompose(
    readout: Readout,
    inputs: Mapping[str, Tensor],
    *,
    direction: Tensor | None = None,
    gate: Tensor | None = None,
) -> Decomposition:
    """Decompose the difference of two runs over layers, heads and source tokens.

    With a bar for the mean of both runs, head h of layer l contributes from source j
    ᾱ_ij Δv_j (the value part) + Δα_ij v̄_j (the routing part), propagated to the end through the
    later W^O, norms and MLPs of the word's own position by their multipliers. These parts and the
    difference at the start add up to the difference at the end. A second pass follows all paths,
    also through other positions, and gives the credit of each source.

    In an encoder–decoder, tokens are those of the source and of the target, and the layers are the
    self-attention and the cross-attention of the decoder: its position reads the encoder only
    through the latter.

    inputs : those of the model, (2, T) each: the reference, then the text.
    direction : where the difference is measured, (d,). By default along itself.
    gate : the keys that each query may attend to in the reference, (T, T). By default all. With a
        gate, credit goes to the keys that it opens; without, to tokens that differ at the start.
    """
    mode = DeepLift(readout, gate, cut=True)
    starts, end = tracing.trace_run(readout, inputs, mode)
    tracing.expect_gradients(end)
    rows, T, start = list(readout.rows), token_ids(inputs).shape[1], starts[-1]
    is_state = readout.module is base_of(readout.module)
    if not is_state and (read := sum(one.shape[1] for one in starts)) != T:
        raise ValueError(f"its blocks read {read} positions, and the text has {T} tokens")
    if not (mixes := [mix for mix in mode.mixes if readout.reads(mix.place)]):
        raise ValueError("it multiplies its weights with values in chunks, or in unknown code")
    if any(mix.values.shape[-2] != len(range(T)[mix.place.keys]) for mix in mixes):
        raise ValueError("its attention reads other positions than the tokens of the text")
    delta = (end[1] - end[0]).detach()
    length, unit = measure_along(delta, direction)
    mixed = [mix.mixed for mix in mixes]
    start_gradient, *gradients = torch.autograd.grad(
        (end[1] * unit).sum(), [start, *mixed], materialize_grads=True
    )
    parts = [_parts(mix, g, rows, T) for mix, g in zip(mixes, gradients, strict=True)]
    value, routing = (torch.stack(part).double() for part in zip(*parts, strict=True))
    return Decomposition(
        value=value.cpu(),
        routing=routing.cpu(),
        start=(start_gradient[1, rows] * (start[1, rows] - start[0, rows])).sum().item(),
        credit=credits(readout, inputs, unit, gate).double().cpu(),
        total=(delta * unit).sum().item(),
        length=length,
        direction=unit.cpu(),
    )


def _parts(
    mix: tracing.TracedAttention, gradient: Tensor, rows: list[int], T: int
) -> tuple[Tensor, Tensor]:
    """Return the value and the routing part of each head and source, (H, T) each."""
    g = tracing.by_head(gradient, 2)[1][:, rows]
    (w0, w1), (v0, v1) = mix.weights[:, :, rows], mix.values
    value = (w0 + w1) / 2 * (g @ (v1 - v0).mT)
    routing = (w1 - w0) * (g @ ((v0 + v1) / 2).mT)
    return mix.place.spread(value.sum(1), T), mix.place.spread(routing.sum(1), T)


def credits(
    readout: Readout, inputs: Mapping[str, Tensor], unit: Tensor, gate: Tensor | None
) -> Tensor:
    """Return the contribution of each source token over all paths, (T,).

    inputs : as for `decompose`, or of N references and as many copies of the text, (2N, T) each.
        The contributions are then the sums over the references.
    unit : the direction along which the difference is measured, of norm 1, (d,).
    """
    mode = DeepLift(readout, gate)
    starts, end = tracing.trace_run(readout, inputs, mode)
    gradients = torch.autograd.grad((end.chunk(2)[1] * unit.to(end)).sum(), starts)
    from_start = []
    for gradient, start in zip(gradients, starts, strict=True):
        before, after = start.chunk(2)
        change = (gradient.chunk(2)[1] * (after - before)).flatten(2)  # of several streams
        from_start.append(change.sum((0, -1)).detach())
    T = token_ids(inputs).shape[1]  # no vector of a word reads what a model adds behind them
    return sum(mode.opened, torch.cat(from_start)[:T])


@dataclass(frozen=True, eq=False)
class ResidualStream(Savable):
    """What was added to the residual stream of one position, from its static vector to the end.

    Attention weights, the scales of norms and the gates of activations (gelu(z) = z Φ(z)) are fixed
    at their values. The network is then affine, and every part is propagated to the end. Numbers
    are as in `Decomposition`.
    """

    attention: Tensor  # added by each head from each source, (L, H, T)
    mlp: Tensor  # added by each MLP, (L,)
    bias: float  # added by all biases after the values
    own: float  # the propagated static vector, minus the static vector if a vector is read
    total: float  # the shift, or the prediction, along the direction
    length: float  # its norm in all directions
    direction: Tensor  # of norm 1, (d,)

    def __repr__(self) -> str:
        return (
            f"ResidualStream(attention {self.attention.sum():.2f}, MLPs {self.mlp.sum():.2f}, "
            f"biases {self.bias:.2f}, own {self.own:.2f}: {self.total:.2f}, error {self.error:.0e})"
        )

    @property
    def error(self) -> float:
        """The completeness error, as a share of the length."""
        parts = self.attention.sum().item() + self.mlp.sum().item() + self.bias + self.own
        return abs(parts - self.total) / self.length


def split_stream(
    readout: Readout, inputs: Mapping[str, Tensor], *, direction: Tensor | None = None
) -> ResidualStream:
    """Decompose the shift of one word between the first block and the end, or a prediction.

    A prediction, such as a logit, is decomposed as a whole, through the final norm and the
    unembedding. The parts of a `ResidualStream` say what was added where. They do not say what
    would have happened otherwise (see `decompose`).

    The arguments are those of `decompose`, but `inputs` are those of the text alone, (1, T).
    """
    mode = FrozenNonlinearities(readout)
    (start,), ends = tracing.trace_run(readout, inputs, mode)
    rows = list(readout.rows)
    end, static = ends[0], start[0, rows].detach()
    is_state = readout.module is base_of(readout.module)
    # Of several streams their mean, as of hidden states.
    origin = static.flatten(0, -2).mean(0) if is_state else torch.zeros_like(end)
    delta = end.detach() - origin
    length, unit = measure_along(delta, direction)
    leaves = [start, *(mix.mixed for mix in mode.mixes), *mode.mlps, *mode.biases]
    carried = torch.autograd.grad((end * unit).sum(), leaves, materialize_grads=True)
    contributions = [(g * x.detach()).sum().item() for g, x in zip(carried, leaves, strict=True)]
    mlps, biases = 1 + len(mode.mixes), 1 + len(mode.mixes) + len(mode.mlps)
    attention = []
    for mix, gradient in zip(mode.mixes, carried[1:mlps], strict=True):
        g = tracing.by_head(gradient, 1)[0][:, rows]
        attention.append((mix.weights[0][:, rows] * (g @ mix.values[0].mT)).sum(1))
    return ResidualStream(
        attention=torch.stack(attention).double().cpu(),
        mlp=torch.tensor(contributions[mlps:biases], dtype=torch.float64, device="cpu"),
        bias=sum(contributions[biases:]),
        own=((carried[0][0, rows] * static).sum() - (origin * unit).sum()).item(),
        total=(delta * unit).sum().item(),
        length=length,
        direction=unit.cpu(),
    )


class FrozenNonlinearities(tracing.AttentionTracer):
    """Freezes what is not linear while a model runs, and records the parts that add up."""

    def __init__(self, readout: Readout) -> None:
        super().__init__(readout)
        self.computed = tracing.activations(readout.module, self.gated)
        self.mixes: list[tracing.TracedAttention] = []
        self.mlps: list[Tensor] = []  # the output of each MLP, without its bias
        self.biases: list[Tensor] = []
        self._activated: list[Tensor] = []
        self._mixed: list[Tensor] = []

    def softmax(self, original: Elementwise, scores: Tensor, options: Mapping[str, Any]) -> Tensor:
        """Return the weights, frozen."""
        return original(scores.detach())

    def mix(self, weights: Tensor, values: Tensor) -> Tensor:
        """Return the product of weights and values, as a leaf of the graph."""
        leaf = (weights @ values).detach().requires_grad_()
        weights, values = tracing.by_head(weights.detach(), 1), tracing.by_head(values.detach(), 1)
        self.mixes.append(tracing.TracedAttention(weights, values, leaf, self.place))
        self._mixed.append(mixed := leaf.clone())  # the model may change it in place
        return mixed

    def other(self, name: str, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Return the result of any other function, with what is not linear frozen."""
        if name in _SHAPE_FUNCTIONS and args:
            output = func(*args, **kwargs)
            for tensors in (self._activated, self._mixed):
                if tracing.is_among(args[0], tensors):
                    tensors.append(output)
            return output
        moving = [value for value in (*args, *kwargs.values()) if tracing.moves(value)]
        if not moving:
            return func(*args, **kwargs)
        if name in _NORM_FUNCTIONS or (name in _PRODUCTS and len(moving) == 2):
            return func(*(x.detach() if tracing.moves(x) else x for x in args), **kwargs)
        if name in _ACTIVATIONS:
            return self.gated(lambda x: func(x, *args[1:], **kwargs), args[0])
        if name in _MULTIPLY and len(moving) == 2:
            return self._multiply(args[0], args[1])
        if name == "layer_norm":
            return self.normalize(*args, **kwargs)
        if name in tracing.MATRICES:  # a linear map written as a product
            is_linear = tracing.moves(args[0]) and args[1].dim() == 2
            return self._linear(args[0], args[1].mT) if is_linear else func(*args, **kwargs)
        if name == "linear":
            return self._linear(*args, **kwargs)
        if name == "conv1d":
            return self._convolve(*args, **kwargs)
        if name == "addmm":
            return self._linear(args[1], args[2].mT, args[0])
        if name in ("add", "add_") and len(args) == 2 and not kwargs:
            x, constant = args if tracing.moves(args[0]) else args[::-1]
            size = constant.shape[-1:] if isinstance(constant, Tensor) else ()
            if not tracing.moves(constant) and x.dim() in (2, 3) and size in ((), x.shape[-1:]):
                bias = torch.as_tensor(constant, dtype=x.dtype, device=x.device)
                return self.add_bias(x, bias, func)
        return func(*args, **kwargs)

    def gated(self, f: Elementwise, x: Tensor) -> Tensor:
        """Return f(x) as x times a frozen gate."""
        with torch.no_grad():
            gate = torch.where(x == 0, 0.5, f(x) / torch.where(x == 0, 1.0, x))
        self._activated.append(output := x * gate)
        return output

    def _multiply(self, a: Tensor, b: Tensor) -> Tensor:
        """Return the product with the activated factor, a gate, frozen."""
        gate, through = (a, b) if tracing.is_among(a, self._activated) else (b, a)
        output = gate.detach() * through
        # A gate on the output of attention is no MLP.
        (self._mixed if tracing.is_among(through, self._mixed) else self._activated).append(output)
        return output

    def _linear(
        self, x: Tensor, weight: Tensor, bias: Tensor | None = None, f: Any = linear
    ) -> Tensor:
        output = f(x, weight)
        if tracing.is_among(x, self._activated):
            self.mlps.append(output.detach().requires_grad_())
            output = self.mlps[-1].clone()
        return output if bias is None else self.add_bias(output, bias)

    def _convolve(
        self, input: Tensor, weight: Tensor, bias: Tensor | None = None, *rest: Any, **how: Any
    ) -> Tensor:
        bias = None if bias is None else bias[:, None]
        return self._linear(input, weight, bias, lambda x, w: conv1d(x, w, None, *rest, **how))

    def add_bias(
        self, output: Tensor, bias: Tensor, add: Callable[..., Tensor] = torch.add
    ) -> Tensor:
        """Return an output with its bias, as a leaf of the graph."""
        self.biases.append(bias.detach().requires_grad_())
        return add(output, self.biases[-1])
