"""Scores by word, and how far two rankings of words agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnviz.results.base import Result
from attnviz.results.text import numbered

_FEWEST = 3  # numbers that can be ranked
RANKABLE = 6  # words, or heads: ρ of fewer is no statistic


class WordResult(Result):
    """Base of results that give numbers to each of the W words of a text, also by changing it."""

    words: tuple[str, ...]
    positions: tuple[tuple[int, ...], ...]
    causal: Mapping[str, Tensor]

    @property
    def sources(self) -> list[int]:
        """The indices of the words that are ranked."""
        raise NotImplementedError

    @property
    def names(self) -> tuple[str, ...]:
        """The words, with a number where one occurs several times: the#1 and the#2."""
        return numbered(self.words)

    def by_word(self, parts: Tensor) -> Tensor:
        """Sum parts (…, T) over the pieces of each word, (…, W)."""
        return sum_pieces(parts, self.positions)

    @property
    def _nothing(self) -> Tensor:
        """NaN for each word, (W,)."""
        return torch.full((len(self.words),), torch.nan, dtype=torch.float64, device="cpu")

    @property
    def consensus(self) -> Tensor:
        """The mean of interventions, each scaled to their mean deviation, (W,); NaN without any."""
        return consensus(self.causal, self.sources) if self.causal else self._nothing


def sum_pieces(parts: Tensor, positions: Sequence[Sequence[int]]) -> Tensor:
    """Sum parts (…, T) over the pieces of each word, (…, W)."""
    pieces = [piece for of_word in positions for piece in of_word]
    words = [word for word, of_word in enumerate(positions) for _ in of_word]
    sums = parts.new_zeros(*parts.shape[:-1], len(positions))
    return sums.index_add_(-1, torch.tensor(words, device=parts.device), parts[..., pieces])


def spread(numbers: Tensor, words: list[int], count: int) -> Tensor:
    """Return numbers (…, n) of some words at their places among `count`, NaN elsewhere."""
    shape = *numbers.shape[:-1], count
    placed = torch.full(shape, torch.nan, dtype=torch.float64, device="cpu")
    placed[..., words] = numbers.double()
    return placed


def consensus(effects: Mapping[str, Tensor], rows: list[int]) -> Tensor:
    """Return the mean of effects (…, W), each scaled to their mean deviation over some words.

    Each then counts alike in the ranks, and the mean keeps their unit.
    """
    stacked = torch.stack(torch.broadcast_tensors(*effects.values()))  # type: ignore[no-untyped-call]
    if not rows:
        return stacked.mean(0)
    deviation = stacked[..., rows].std(-1, correction=0, keepdim=True)
    scale = deviation.mean(0) / deviation
    return (stacked * torch.where(deviation > 0, scale, 1.0)).mean(0)


def spearman(a: Tensor, b: Tensor) -> float | None:
    """Return Spearman's rank correlation; None for fewer than three numbers, or if all tie."""
    rho = float(correlate_ranks(a, b[None])[0]) if len(a) >= _FEWEST else np.nan
    return None if np.isnan(rho) else rho


def correlate_ranks(scores: Tensor, draws: Tensor) -> np.ndarray[Any, Any]:
    """Return Spearman's ρ of scores (W,) or (N, W) with each of N draws (N, W); NaN if all tie."""
    from scipy.stats import rankdata

    ranks = (rankdata(numbers.numpy(), axis=-1) for numbers in (scores, draws))
    ours, others = (rank - rank.mean(-1, keepdims=True) for rank in ranks)
    norms = np.linalg.norm(others, axis=-1) * np.linalg.norm(ours, axis=-1)
    rhos: np.ndarray[Any, Any] = np.full(len(others), np.nan)
    np.divide((others * ours).sum(-1), norms, out=rhos, where=norms > 0)
    return rhos.clip(-1, 1)  # rounding may exceed 1
