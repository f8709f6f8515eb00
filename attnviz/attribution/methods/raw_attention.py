"""Raw attention: the weights of the last layer."""

from __future__ import annotations

import torch
from torch import Tensor

from attnviz.attribution.methods import method
from attnviz.attribution.target import Score


@method("raw-attention")
def raw_attention(score: Score) -> Tensor:
    """Return the attention weights of the last layer, averaged over heads.

    Those of a decoder with an encoder are to its target, and to its source.
    """
    last = {place.keys.start: (record, place) for record, place in score.attentions}
    parts = [
        place.spread(record.weights().mean(0)[score.rows].mean(0), score.ids.shape[1])
        for record, place in last.values()
    ]
    return torch.stack(parts).sum(0)
