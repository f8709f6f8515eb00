"""What moved one position between two runs, split exactly over layers, heads and sources."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from attnviz.attribution.rules import elementwise
from attnviz.attribution.surrogate import Mix, Secants, activations, run
from attnviz.records import Secant


def secant(
    module: nn.Module,
    inputs: Mapping[str, Tensor],
    *,
    row: int,
    direction: Tensor | None = None,
    gate: Tensor | None = None,
) -> Secant:
    """Split the difference of two runs at one position over all that it came from.

    With a bar for the mean of both runs, what head h of layer l takes from source j is
    ᾱ_ij Δv_j (its value part) + Δα_ij v̄_j (its routing part), carried to the end by what the
    position itself goes through later: W^O, norms and MLPs, each as its secant. These parts and the
    difference at the start add up to the difference at the end. A second pass follows all paths
    back, also through other positions: the credit of each source.

    Parameters
    ----------
    inputs : of the model, (2, T) each: the reference and the text.
    row : the position that is explained.
    direction : (d,), along which the difference is measured; by default its own.
    gate : (T, T), the keys that each query may read in the reference; None for all. Then what the
        opened keys bring is their credit; else that of what differs at the start.

    Source: secants are the multipliers of DeepLIFT (Shrikumar et al. 2017, arXiv:1704.02685).
    """
    mode = Secants(cut=True, gate=gate)
    with activations(module, elementwise):
        found = run(module, inputs, mode)
    end = found.end[:, row]
    delta = (end[1] - end[0]).detach()
    length = delta.norm().clamp(min=torch.finfo(delta.dtype).tiny)
    u = delta / length if direction is None else (direction / direction.norm()).to(delta)
    mixed = [mix.mixed for mix in mode.mixes]
    at_start, *carried = torch.autograd.grad((end[1] * u).sum(), [found.start, *mixed])
    parts = [_parts(mix, g, row) for mix, g in zip(mode.mixes, carried, strict=True)]
    value, routing = (torch.stack(each).double() for each in zip(*parts, strict=True))
    moved = (at_start[1, row] * (found.start[1, row] - found.start[0, row])).sum()
    return Secant(
        value=value.cpu(),
        routing=routing.cpu(),
        start=moved.item(),
        credit=_credit(module, inputs, row, u, gate).double().cpu(),
        total=(delta * u).sum().item(),
        length=length.item(),
        direction=u.cpu(),
    )


def _parts(mix: Mix, carried: Tensor, row: int) -> tuple[Tensor, Tensor]:
    """Return the value and the routing part of each head and source, (H, n) each."""
    g = mix.by_head(carried)[1, :, row]
    (w0, w1), (v0, v1) = mix.weights[:, :, row], mix.values
    along = torch.einsum("hd,hnd->hn", g, (v1 - v0).expand(len(g), -1, -1))
    mean = torch.einsum("hd,hnd->hn", g, ((v0 + v1) / 2).expand(len(g), -1, -1))
    return (w0 + w1) / 2 * along, (w1 - w0) * mean


def _credit(
    module: nn.Module, inputs: Mapping[str, Tensor], row: int, u: Tensor, gate: Tensor | None
) -> Tensor:
    """Return what each source brought over all paths, (T,)."""
    mode = Secants(cut=False, gate=gate)
    with activations(module, elementwise):
        found = run(module, inputs, mode)
    (at_start,) = torch.autograd.grad((found.end[1, row] * u).sum(), found.start)
    by_start = (at_start[1] * (found.start[1] - found.start[0])).sum(-1).detach()
    opened = [each.reshape(-1, each.shape[-1]).sum(0) for each in mode.opened]
    return by_start + sum(opened, torch.zeros_like(by_start))
