"""How unlike two heads are: the Jensen–Shannon divergence of what they give to the same keys."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from attnviz.records import AttentionRecord

_AT_ONCE = 2**22  # weights of pairs


def distances(texts: Sequence[Sequence[AttentionRecord]]) -> Tensor:
    """Return the distance of each two heads of a model, (K, K): 0 alike, 1 nothing in common.

    The square root of the divergence, in bits, averaged over the rows of all texts; rows of special
    tokens are left out, as are weights that go to sinks, which are no keys.

    texts : the records of each text, the same attentions in the same order.
    """
    total, rows = torch.zeros(()), 0
    for records in texts:
        real = ~torch.tensor(records[0].query_axis.special)
        weights = torch.cat([record.weights().float()[:, real].cpu() for record in records])
        total = total + torch.stack([_to_all(head, weights) for head in weights])
        rows += int(real.sum())
    mean = (total / max(1, rows)).clamp(0, 1)
    return mean.sqrt().fill_diagonal_(0.0)


def _to_all(head: Tensor, weights: Tensor) -> Tensor:
    """Return the divergence of one head (m, n) from each of K, summed over rows, (K,)."""
    step = max(1, _AT_ONCE // head.numel())
    own = torch.special.xlogy(head, head)
    found = []
    for some in torch.split(weights, step):
        mean = (head + some) / 2
        between = (own + torch.special.xlogy(some, some)) / 2 - torch.special.xlogy(mean, mean)
        found.append(between.sum((1, 2)) / math.log(2))
    return torch.cat(found)
