"""Scores by word, and how far two rankings of words agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

_FEWEST = 3  # numbers that can be ranked
RANKABLE = 6  # words, or heads: ρ of fewer is no statistic


def sum_pieces(parts: Tensor, positions: Sequence[Sequence[int]]) -> Tensor:
    """Sum parts (…, T) over the pieces of each word, (…, W)."""
    return torch.stack([parts[..., list(pieces)].sum(-1) for pieces in positions], dim=-1)


def consensus(effects: Mapping[str, Tensor], rows: list[int]) -> Tensor:
    """Return the mean of effects (W,), each in units of its deviation over some words."""
    scaled = []
    for effect in effects.values():
        deviation = effect[rows].std(correction=0) if rows else effect.new_zeros(())
        scaled.append(effect / deviation if deviation > 0 else effect)
    return torch.stack(scaled).mean(0)


def spearman(a: Tensor, b: Tensor) -> float | None:
    """Return Spearman's rank correlation; None for fewer than three numbers, or if all tie.

    >>> spearman(torch.tensor([1.0, 2.0, 3.0, 3.0]), torch.tensor([0.0, 5.0, 6.0, 6.0]))
    1.0
    """
    if len(a) < _FEWEST or any(not numbers.max() > numbers.min() for numbers in (a, b)):
        return None
    from scipy.stats import spearmanr

    return float(spearmanr(a.numpy(), b.numpy()).statistic)
