"""Gradient × attention."""

from __future__ import annotations

import torch
from torch import Tensor

from attnviz.attribution.methods import method
from attnviz.attribution.target import Score
from attnviz.attribution.tracing import AttentionTracer, by_head, trace_run
from attnviz.errors import ModelError


@method("gradient-attention")
def gradient_attention(score: Score) -> Tensor:
    """Return gradient × attention: Σ α · ∂y/∂α over layers, heads and queries, of the score y.

    The weight of a token for itself is left out.
    """
    trace = _WeightTracer()
    _, numbers = trace_run(score.readout, score.inputs, trace)
    if not trace.weights:
        raise ModelError("its attention weights cannot be traced")
    gradients = torch.autograd.grad(score.project(numbers), trace.weights)
    parts = [
        by_head((weights * gradient).detach(), 1)[0].sum(0)
        for weights, gradient in zip(trace.weights, gradients, strict=True)
    ]
    total = torch.stack(parts).sum(0)
    return (total - total.diag().diag()).sum(0)


class _WeightTracer(AttentionTracer):
    """Collects the attention weights of a run, in the graph of its gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: list[Tensor] = []

    def mix(self, weights: Tensor, values: Tensor) -> Tensor:
        self.weights.append(weights)
        return weights @ values
