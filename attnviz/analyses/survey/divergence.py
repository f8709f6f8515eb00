"""How unlike two heads are: the Jensen–Shannon divergence of what they give to the same keys."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from attnviz.results import AttentionRecord

_AT_ONCE = 2**22  # weights of pairs
_ROWS = 64  # of a text


def distances(texts: Sequence[Sequence[AttentionRecord]]) -> Tensor:
    """Return the distance of each two heads of a model, (K, K): 0 alike, 1 nothing in common.

    The square root of the divergence, in bits, averaged over rows of all texts, spread evenly over
    long ones; rows of special tokens are left out, as are weights that go to sinks, which are no
    keys.

    texts : the records of each text, the same attentions in the same order.
    """
    total, rows = torch.zeros(()), 0
    for records in texts:
        real = (~torch.tensor(records[0].query_axis.special)).nonzero().flatten()
        some = real[:: -(-len(real) // _ROWS)]
        weights = torch.cat([record.weights().float()[:, some].cpu() for record in records])
        total = total + torch.stack([_to_all(head, weights) for head in weights])
        rows += len(some)
    mean = (total / max(1, rows)).clamp(0, 1)
    return mean.sqrt().fill_diagonal_(0.0)


def _to_all(head: Tensor, weights: Tensor) -> Tensor:
    """Return the divergence of one head (m, n) from each of K, summed over rows, (K,)."""
    step = max(1, _AT_ONCE // head.numel())
    return torch.cat([divergence(head, some).sum(-1) for some in torch.split(weights, step)])


def divergence(P: Tensor, Q: Tensor) -> Tensor:
    """Return the Jensen–Shannon divergence of each two rows over n keys, in bits, 0 to 1.

    H((P + Q) / 2) - (H(P) + H(Q)) / 2 (Lin 1991).

    >>> divergence(torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([[0.0, 1.0], [0.5, 0.5]]))
    tensor([1., 0.])
    """
    M = (P + Q) / 2
    own = (torch.special.xlogy(P, P) + torch.special.xlogy(Q, Q)) / 2
    bits: Tensor = (own - torch.special.xlogy(M, M)).sum(-1) / math.log(2)
    return bits.clamp(min=0)
