"""What moved a word between two runs, split exactly over layers, heads and sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from attnviz.analyses.shift.decomposition import ShiftDecomposition
from attnviz.analyses.shift.deeplift_rules import elementwise
from attnviz.analyses.shift.surrogate import Secants
from attnviz.analyses.shift.tracing import (
    Mix,
    activations,
    by_head,
    run,
)


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
