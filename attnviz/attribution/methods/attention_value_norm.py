"""Attention × value norm."""

from __future__ import annotations

import torch
from torch import Tensor

from attnviz.attribution.methods import method
from attnviz.attribution.target import Score


@method("attention-value-norm")
def attention_value_norm(score: Score) -> Tensor:
    """Return Σ α_ij ‖v_j‖ over layers and heads: the weights, and how much there is to take.

    Source: norms instead of weights (Kobayashi et al. 2020, arXiv:2004.10102), here of the values
    before the output projection.
    """
    parts = []
    for record, place in score.attentions:
        values = record.value.repeat_interleave(record.heads // record.key_heads, 0)
        norms = record.weights() * values.norm(dim=-1)[:, None]
        parts.append(place.spread(norms[:, score.rows].sum(0).mean(0), score.ids.shape[1]))
    return torch.stack(parts).sum(0)
