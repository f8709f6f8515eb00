"""Decompose the shift from the static to the contextual vector over the residual stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from attnviz.attribution import tracing
from attnviz.attribution.decomposition import measure_along
from attnviz.attribution.target import Places, Readout, base_of
from attnviz.results.base import Savable

_NORM_FUNCTIONS = {"rsqrt", "sqrt", "pow", "__pow__", "square", "reciprocal"}
_ACTIVATIONS = {"gelu", "silu", "relu", "leaky_relu", "mish", "softplus", "tanh", "sigmoid"}
_SHAPE_FUNCTIONS = tracing.WEIGHT_PRESERVING | {"transpose", "permute"}
_MULTIPLY = {"mul", "__mul__", "__rmul__", "multiply"}


@dataclass(frozen=True, eq=False)
class ResidualStream(Savable):
    """What was added to the residual stream of one position, from its static vector to the end.

    Attention weights, the scales of norms and the gates of activations are fixed at their values.
    The network is then affine, and every part is propagated to the end. Numbers are as in
    `Decomposition`.
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


def decompose_residual_stream(
    readout: Readout, inputs: Mapping[str, Tensor], *, direction: Tensor | None = None
) -> ResidualStream:
    """Decompose the shift of one word between the first block and the end, or a prediction.

    A prediction, such as a logit, is decomposed as a whole, through the final norm and the
    unembedding.

    With attention weights, the deviations of norms and the gates of activations (gelu(z) = z Φ(z))
    frozen, the network is affine. The end is then a sum of what every head and every MLP added, the
    biases, and the propagated static vector. This says what was added where. It does not say what
    would have happened otherwise (see `decompose`).

    The arguments are those of `decompose`, but `inputs` are those of the text alone, (1, T).
    """
    mode = FrozenNonlinearities()
    with tracing.activations(readout.module, mode.gated):
        (start,), ends = tracing.trace_run(readout, inputs, mode)
    rows = list(readout.rows)
    end, static = ends[0], start[0, rows].detach()
    is_state = readout.module is base_of(readout.module)
    origin = static.mean(0) if is_state else torch.zeros_like(end)
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

    def __init__(self, places: Places | None = None) -> None:
        super().__init__(places)
        self.mixes: list[tracing.TracedAttention] = []
        self.mlps: list[Tensor] = []  # the output of each MLP, without its bias
        self.biases: list[Tensor] = []
        self._activated: list[Tensor] = []
        self._mixed: list[Tensor] = []

    def softmax(
        self, original: tracing.Elementwise, scores: Tensor, options: Mapping[str, Any]
    ) -> Tensor:
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
        if not any(tracing.moves(value) for value in (*args, *kwargs.values())):
            return func(*args, **kwargs)
        if name in _NORM_FUNCTIONS or (
            name in tracing.MATRICES and tracing.moves(args[0]) and tracing.moves(args[1])
        ):
            return func(*(x.detach() if tracing.moves(x) else x for x in args), **kwargs)
        if name in _ACTIVATIONS:
            return self.gated(lambda x: func(x, *args[1:], **kwargs), args[0])
        if name in _MULTIPLY and tracing.moves(args[0]) and tracing.moves(args[1]):
            return self._multiply(args[0], args[1])
        if name == "layer_norm":
            return self.normalize(*args, **kwargs)
        if name in tracing.MATRICES:  # a linear map written as a product
            is_linear = tracing.moves(args[0]) and args[1].dim() == 2
            return self._linear(args[0], args[1].mT) if is_linear else func(*args, **kwargs)
        if name == "linear":
            return self._linear(*args, **kwargs)
        if name == "addmm":
            return self._linear(args[1], args[2].mT, args[0])
        return func(*args, **kwargs)

    def gated(self, f: tracing.Elementwise, x: Tensor) -> Tensor:
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

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        output = linear(x, weight)
        if tracing.is_among(x, self._activated):
            self.mlps.append(output.detach().requires_grad_())
            output = self.mlps[-1].clone()
        return output if bias is None else self.add_bias(output, bias)

    def add_bias(self, output: Tensor, bias: Tensor) -> Tensor:
        """Return an output with its bias, as a leaf of the graph."""
        self.biases.append(bias.detach().requires_grad_())
        return output + self.biases[-1]
