"""Attention flow."""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import maximum_flow
from torch import Tensor

from attnviz.attribution.methods import method
from attnviz.attribution.methods.rollout import weights_of
from attnviz.attribution.target import Score

_UNIT = 10**6  # scipy computes flows of whole numbers


@method("attention-flow")
def attention_flow(score: Score) -> Tensor:
    """Return the largest flow from each token to the explained position through all layers.

    The capacity of an edge is the mean weight of the heads, half of each the identity, as in
    rollout.

    Source: Abnar & Zuidema 2020, arXiv:2005.00928.
    """
    T, layers = score.ids.shape[1], len(score.result.records)
    identity = np.eye(T)
    starts, ends, capacities = [], [], []
    for layer, weights in enumerate(weights_of(score)):
        mean = (weights.mean(0).double().cpu().numpy() + identity) / 2
        queries, keys = np.nonzero(mean)
        starts.append((layer + 1) * T + queries)
        ends.append(layer * T + keys)
        capacities.append(np.round(mean[queries, keys] * _UNIT).astype(np.int32))
    top, count = (layers + 1) * T, (layers + 1) * T + 1
    read = np.array(score.readout.positions)
    starts.append(np.full(len(read), top))
    ends.append(layers * T + read)
    capacities.append(np.full(len(read), _UNIT, dtype=np.int32))
    edges = np.concatenate(starts), np.concatenate(ends)
    graph = coo_array((np.concatenate(capacities), edges), shape=(count, count)).tocsr()
    flows = [maximum_flow(graph, top, token).flow_value / _UNIT for token in range(T)]
    return torch.tensor(flows, dtype=torch.float64, device="cpu")
