"""Gradient × attention."""

from __future__ import annotations

import torch
from torch import Tensor

from attnviz.attribution.methods import method
from attnviz.attribution.target import Place, Places, Score
from attnviz.attribution.tracing import AttentionTracer, by_head, trace_run
from attnviz.errors import ModelError


@method("gradient-attention")
def gradient_attention(score: Score) -> Tensor:
    """Return gradient × attention: Σ α · ∂y/∂α over layers, heads and queries, of the score y.

    The weight of a token for itself is left out.
    """
    trace = _WeightTracer(score.readout.places)
    _, numbers = trace_run(score.readout, score.inputs, trace)
    if not trace.weights:
        raise ModelError("its attention weights cannot be traced")
    weights = [weights for weights, _ in trace.weights]
    gradients = torch.autograd.grad(score.project(numbers), weights)
    parts = []
    for (weight, place), gradient in zip(trace.weights, gradients, strict=True):
        product = by_head((weight * gradient).detach(), 1)[0].sum(0)
        if place.queries == place.keys:
            product = product - product.diag().diag()
        parts.append(place.spread(product.sum(0), score.ids.shape[1]))
    return torch.stack(parts).sum(0)


class _WeightTracer(AttentionTracer):
    """Collects the attention weights of a run, in the graph of its gradients."""

    def __init__(self, places: Places) -> None:
        super().__init__(places)
        self.weights: list[tuple[Tensor, Place]] = []  # with their place among all tokens

    def mix(self, weights: Tensor, values: Tensor) -> Tensor:
        self.weights.append((weights, self.place))
        return weights @ values
