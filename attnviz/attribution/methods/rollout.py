"""Attention rollout: weights multiplied through the layers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from attnviz.attribution.methods import method
from attnviz.attribution.target import Score


@method("rollout")
def rollout(score: Score) -> Tensor:
    """Return the attention rollout."""
    positions = list(score.readout.positions)
    return multiply_layers(weights_of(score))[positions].mean(0)


def weights_of(score: Score) -> Iterator[Tensor]:
    """Yield the weights of each attention between all tokens, (H, T, T), from the first layer on.

    In an encoder–decoder those of the encoder come first, then the self-attention and the
    cross-attention of each layer of the decoder.
    """
    stacks = score.readout.stacks
    if stacks is None:
        yield from (record.weights() for record in score.result)
        return
    for record in score.result:
        yield stacks.place(record.path).embed(record.weights(), score.ids.shape[1])


def multiply_layers(weights: Iterable[Tensor]) -> Tensor:
    """Return the product over layers of the mean weights, half of each the identity, (T, T).

    The identity stands for the residual stream. Values, norms and MLPs are ignored.
    weights : the weights of each layer from the first, (H, T, T).

    Source: attention rollout (Abnar & Zuidema 2020, arXiv:2005.00928).

    >>> multiply_layers([torch.tensor([[[1.0, 0.0], [1.0, 0.0]]])])
    tensor([[1.0000, 0.0000],
            [0.5000, 0.5000]])
    """
    means = [layer.mean(0) for layer in weights]
    identity = torch.eye(means[0].shape[-1], dtype=means[0].dtype, device=means[0].device)
    flow = identity
    for mean in means:
        flow = (mean + identity) / 2 @ flow
    return flow
