"""Attention rollout: attention multiplied through the layers, as is often done."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def rollout(weights: Iterable[Tensor]) -> Tensor:
    """Return the product over layers of the mean weights, half of each the identity, (T, T).

    The identity stands for the residual stream. What values, norms and MLPs do is not looked at;
    shown beside the exact splits because it is what many have seen.

    Parameters
    ----------
    weights : of each layer from the first, (H, T, T).

    Source: Abnar & Zuidema 2020, arXiv:2005.00928.

    >>> rollout([torch.tensor([[[1.0, 0.0], [1.0, 0.0]]])])
    tensor([[1.0000, 0.0000],
            [0.5000, 0.5000]])
    """
    means = [each.mean(0) for each in weights]
    flow = torch.eye(means[0].shape[-1], dtype=means[0].dtype, device=means[0].device)
    for mean in means:
        flow = (mean + torch.eye(len(mean), dtype=mean.dtype, device=mean.device)) / 2 @ flow
    return flow
