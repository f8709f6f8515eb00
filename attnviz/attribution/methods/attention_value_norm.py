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
    for record in score.result:
        values = record.value.repeat_interleave(record.heads // record.key_heads, 0)
        parts.append(record.weights() * values.norm(dim=-1)[:, None])
    return torch.stack([part[:, score.rows].sum(0).mean(0) for part in parts]).sum(0)
