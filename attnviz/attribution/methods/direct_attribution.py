"""Direct attribution: what the heads wrote at the explained position, read off at the end."""

from __future__ import annotations

import torch
from torch import Tensor

from attnviz.attribution.lens import StoredRun
from attnviz.attribution.methods import method
from attnviz.attribution.residual_stream import FrozenNonlinearities
from attnviz.attribution.target import Places, Score
from attnviz.attribution.tracing import Elementwise, activations, by_head, trace_run


@method("direct-attribution")
def direct_attribution(score: Score) -> Tensor:
    """Return what each token adds to the score through one head, without later MLPs and heads.

    For a logit this is direct logit attribution: Σ α_ij v_j W_O over layers and heads, through the
    final norm with its scale fixed, along the unembedding. A decoder reads the words of a source
    directly through its cross-attention.

    Source: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits".
    """
    module = score.readout.module
    run = StoredRun(score.readout.bases[-1])
    mode = _DirectPaths(run, score.readout.places)
    with run.record(), activations(module, mode.gated):
        _, numbers = trace_run(score.readout, score.inputs, mode)
    leaves = [mix.mixed for mix in mode.mixes]
    gradients = torch.autograd.grad(score.project(numbers), leaves, allow_unused=True)
    T = score.ids.shape[1]
    total = torch.zeros(T, dtype=torch.float64, device="cpu")
    for mix, gradient in zip(mode.mixes, gradients, strict=True):
        if gradient is not None:
            g = by_head(gradient, 1)[0][:, score.rows]
            parts = mix.weights[0][:, score.rows] * (g @ mix.values[0].mT)
            total += mix.place.spread(parts.sum((0, 1)), T).double().cpu()
    return total


class _DirectPaths(FrozenNonlinearities):
    """Also cuts the paths through the MLPs of blocks, but not through the head of the model."""

    def __init__(self, run: StoredRun, places: Places) -> None:
        super().__init__(places)
        self._run = run

    def gated(self, f: Elementwise, x: Tensor) -> Tensor:
        """Return the activation, in a block without a gradient."""
        in_block = self._run.running is not None
        output = super().gated(f, x.detach() if in_block else x)
        if not in_block:
            self._activated.pop()  # what follows is no MLP
        return output
