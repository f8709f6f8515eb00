"""Raw attention: the weights of the last layer."""

from __future__ import annotations

from torch import Tensor

from attnviz.attribution.methods import method
from attnviz.attribution.target import Score


@method("raw-attention")
def raw_attention(score: Score) -> Tensor:
    """Return the attention weights of the last layer, averaged over heads."""
    return score.result.records[-1].weights().mean(0)[score.rows].mean(0)
