"""Direct attribution: what the heads wrote at the explained position, read off at the end."""

from __future__ import annotations

import torch
from torch import Tensor

from attnviz.attribution.methods import method
from attnviz.attribution.residual_stream import FrozenNonlinearities
from attnviz.attribution.target import Score
from attnviz.attribution.tracing import activations, by_head, trace_run


@method("direct-attribution")
def direct_attribution(score: Score) -> Tensor:
    """Return what each token adds to the score through one head, without later MLPs and heads.

    For a logit this is direct logit attribution: Σ α_ij v_j W_O over layers and heads, through the
    final norm with its scale fixed, along the unembedding.

    Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits".
    """
    mode = _DirectPaths()
    with activations(score.readout.module, mode.gated):
        _, numbers = trace_run(score.readout, score.inputs, mode)
    leaves = [mix.mixed for mix in mode.mixes]
    gradients = torch.autograd.grad(score.project(numbers), leaves, allow_unused=True)
    total = torch.zeros(score.ids.shape[1], dtype=torch.float64, device="cpu")
    for mix, gradient in zip(mode.mixes, gradients, strict=True):
        if gradient is not None:
            g = by_head(gradient, 1)[0][:, score.rows]
            parts = mix.weights[0][:, score.rows] * (g @ mix.values[0].mT)
            total += parts.sum((0, 1)).double().cpu()
    return total


class _DirectPaths(FrozenNonlinearities):
    """Also cuts the paths through MLPs."""

    def gated(self, f: object, x: Tensor) -> Tensor:
        """Return the activation without a gradient."""
        return super().gated(f, x.detach())  # type: ignore[arg-type]
