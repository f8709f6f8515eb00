"""Split the difference between two runs exactly over layers, heads and source tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from attnviz.attribution import tracing
from attnviz.attribution.deeplift import DeepLift, elementwise
from attnviz.attribution.target import Readout, token_ids
from attnviz.results.base import Savable

_TINY = 1e-30


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

    @property
    def relative_error(self) -> float:
        """The larger completeness error, as a share of all parts: the length itself may be 0."""
        start = torch.tensor([self.start], dtype=torch.float64, device="cpu")
        return max(
            abs(parts.sum().item() - self.total) / max(parts.abs().sum().item(), _TINY)
            for parts in (self.credit, torch.cat([self.table.flatten(), start]))
        )


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
    mode = DeepLift(cut=True, gate=gate, places=readout.places)
    with tracing.activations(readout.module, elementwise):
        (*_, start), end = tracing.trace_run(readout, inputs, mode)
    tracing.expect_gradients(end)
    rows, T = list(readout.rows), token_ids(inputs).shape[1]
    mixes = [mix for mix in mode.mixes if readout.reads(mix.place)]
    if not mixes:
        raise ValueError("no attention was traced")
    if any(mix.values.shape[-2] != len(range(T)[mix.place.keys]) for mix in mixes):
        raise ValueError("its attention reads the text in windows")
    delta = (end[1] - end[0]).detach()
    length, unit = measure_along(delta, direction)
    mixed = [mix.mixed for mix in mixes]
    start_gradient, *gradients = torch.autograd.grad((end[1] * unit).sum(), [start, *mixed])
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
    mode = DeepLift(cut=False, gate=gate, places=readout.places)
    with tracing.activations(readout.module, elementwise):
        starts, end = tracing.trace_run(readout, inputs, mode)
    gradients = torch.autograd.grad((end.chunk(2)[1] * unit.to(end)).sum(), starts)
    from_start = []
    for gradient, start in zip(gradients, starts, strict=True):
        before, after = start.chunk(2)
        from_start.append((gradient.chunk(2)[1] * (after - before)).sum((0, -1)).detach())
    return sum(mode.opened, torch.cat(from_start))
