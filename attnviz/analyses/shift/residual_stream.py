"""A word's way from its static to its contextual vector, as an account of what was added where."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from attnviz.analyses.shift.decomposition import ResidualStream
from attnviz.analyses.shift.deeplift import moves
from attnviz.analyses.shift.tracing import (
    CARRIES,
    MATRICES,
    Mix,
    Watch,
    activations,
    by_head,
    is_one,
    run,
)

_OF_NORMS = {"rsqrt", "sqrt", "pow", "__pow__", "square", "reciprocal"}
_GATED = {"gelu", "silu", "relu", "leaky_relu", "mish", "softplus", "tanh", "sigmoid"}
_TURNS = {"transpose", "permute"}
_TIMES = {"mul", "__mul__", "__rmul__", "multiply"}


def ledger(
    module: nn.Module,
    inputs: Mapping[str, Tensor],
    *,
    rows: Sequence[int],
    direction: Tensor | None = None,
) -> ResidualStream:
    """Account for the shift of one word between the first block and the end.

    With the attention weights, the deviations of norms and the gates of activations (gelu(z) =
    z Φ(z)) frozen as they were, the network is affine: the end is a sum of what every head brought,
    what every MLP made, the biases, and what became of the static vector. It says what was added
    where; it does not say what would have happened otherwise (see `secant`).

    Parameters
    ----------
    inputs : of the model, (1, T) each.
    rows : the positions of the word's pieces, of which the mean is taken.
    direction : (d,), by default that of the shift itself.
    """
    mode = Frozen()
    with activations(module, mode.gated):
        found = run(module, inputs, mode)
    at, end = list(rows), found.end[0, list(rows)].mean(0)
    starts = found.start[0, at].detach()
    delta = end.detach() - starts.mean(0)
    length = delta.norm().clamp(min=torch.finfo(delta.dtype).tiny)
    u = delta / length if direction is None else (direction / direction.norm()).to(delta)
    mixed = [mix.mixed for mix in mode.mixes]
    leaves = [found.start, *mixed, *mode.mlps, *mode.biases]
    grads = torch.autograd.grad((end * u).sum(), leaves, allow_unused=True)
    leaves = [leaf.detach() for leaf in leaves]
    carried = [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, grads, strict=True)]
    at_start, of_mixes = carried[0], carried[1 : 1 + len(mixed)]
    brought = [(g * x).sum().item() for g, x in zip(carried, leaves, strict=True)]
    of_mlps = brought[1 + len(mixed) :][: len(mode.mlps)]
    return ResidualStream(
        attention=torch.stack(
            [_brought(mix, g, at) for mix, g in zip(mode.mixes, of_mixes, strict=True)]
        )
        .double()
        .cpu(),
        mlp=torch.tensor(of_mlps, dtype=torch.float64),
        bias=sum(brought[1 + len(mixed) + len(mode.mlps) :]),
        own=((at_start[0, at] * starts).sum() - (starts.mean(0) * u).sum()).item(),
        total=(delta * u).sum().item(),
        length=length.item(),
        direction=u.cpu(),
    )


def _brought(mix: Mix, carried: Tensor, at: list[int]) -> Tensor:
    """Return what each head brings from each source, (H, n)."""
    g = by_head(carried, 1)[0][:, at]
    return (mix.weights[0][:, at] * (g @ mix.values[0].mT)).sum(1)


class Frozen(Watch):
    """While a model runs, freezes what is not linear and cuts it into what adds up.

    mixes : the attentions. mlps : what each MLP made, without its bias. biases : what was added.
    """

    def __init__(self) -> None:
        super().__init__()
        self.mixes: list[Mix] = []
        self.mlps: list[Tensor] = []
        self.biases: list[Tensor] = []
        self._activated: list[Tensor] = []
        self._mixed: list[Tensor] = []

    def softmax(self, own: Callable[[Tensor], Tensor], scores: Tensor, said: Any) -> Tensor:
        """Take the weights as they were."""
        return own(scores.detach())

    def mix(self, weights: Tensor, values: Tensor) -> Tensor:
        """Mix the values, and begin anew from what was mixed."""
        made = (weights @ values).detach().requires_grad_()
        self.mixes.append(Mix.of(weights.detach(), values.detach(), made, runs=1))
        self._mixed.append(handed := made.clone())  # which the model may change in place
        return handed

    def other(self, name: str, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Compute anything else, with what is not linear frozen."""
        if name in CARRIES | _TURNS and args:
            made = func(*args, **kwargs)
            for known in (self._activated, self._mixed):
                if is_one(args[0], known):
                    known.append(made)
            return made
        if not any(moves(each) for each in (*args, *kwargs.values())):
            return func(*args, **kwargs)
        if name in _OF_NORMS or (name in MATRICES and moves(args[0]) and moves(args[1])):
            return func(*(x.detach() if moves(x) else x for x in args), **kwargs)
        if name in _GATED:
            return self.gated(lambda x: func(x, *args[1:], **kwargs), args[0])
        if name in _TIMES and moves(args[0]) and moves(args[1]):
            return self._multiply(args[0], args[1])
        if name == "layer_norm":
            return self._normalise(*args, **kwargs)
        if name in MATRICES:  # a linear map that is written as a product
            plain = moves(args[0]) and args[1].dim() == 2
            return self._linear(args[0], args[1].mT) if plain else func(*args, **kwargs)
        if name == "linear":
            return self._linear(*args, **kwargs)
        if name == "addmm":
            return self._linear(args[1], args[2].mT, args[0])
        return func(*args, **kwargs)

    def gated(self, f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Take f(x) as x times a gate that is what it was."""
        with torch.no_grad():
            gate = torch.where(x == 0, 0.5, f(x) / torch.where(x == 0, 1.0, x))
        self._activated.append(made := x * gate)
        return made

    def _multiply(self, a: Tensor, b: Tensor) -> Tensor:
        """Take the activated factor, a gate, as it was."""
        gate, through = (a, b) if is_one(a, self._activated) else (b, a)
        made = gate.detach() * through
        # A gate on what attention gives is no MLP.
        (self._mixed if is_one(through, self._mixed) else self._activated).append(made)
        return made

    def _normalise(
        self,
        x: Tensor,
        shape: Any,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        made = centred * (centred.detach().square().mean(-1, keepdim=True) + eps).rsqrt()
        made = made if weight is None else made * weight
        return made if bias is None else made + self._added(bias)

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        made = linear(x, weight)
        if is_one(x, self._activated):
            self.mlps.append(made.detach().requires_grad_())
            made = self.mlps[-1].clone()
        return made if bias is None else made + self._added(bias)

    def _added(self, bias: Tensor) -> Tensor:
        self.biases.append(bias.detach().requires_grad_())
        return self.biases[-1]
