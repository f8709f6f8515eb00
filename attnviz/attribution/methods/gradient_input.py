"""Gradient × input."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor

from attnviz.attribution.methods import method
from attnviz.attribution.target import Score
from attnviz.attribution.tracing import trace_run


@method("gradient-input")
def gradient_input(score: Score) -> Tensor:
    """Return gradient × input: x · ∂y/∂x for the vector x of each token before the first layer.

    Source: Shrikumar et al. 2016, arXiv:1605.01713.
    """
    starts, numbers = trace_run(score.readout, score.inputs, nullcontext())
    gradients = torch.autograd.grad(score.project(numbers), starts)
    parts = zip(gradients, starts, strict=True)
    return torch.cat([(gradient * start.detach())[0].sum(-1) for gradient, start in parts])
