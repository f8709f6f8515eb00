"""Scores by word, and how far two rankings of words agree."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from attnviz.results import Provenance
from attnviz.results.axis import place_words
from attnviz.results.base import Result
from attnviz.results.text import literal, numbered

_FEWEST = 3  # numbers that can be ranked
_NEIGHBORS = 4  # words of a group that a sentence names
RANKABLE = 6  # words, or heads: ρ of fewer is no statistic
PRINTED, ROUNDING = 0.005, 1e-5  # the least that is not printed as 0.00; if nothing was checked


class Shown(NamedTuple):
    """What colors the words of a text, and what is said of it."""

    numbers: list[float]  # (W,)
    says: str
    low: str  # what is said at the ends of the scale
    high: str
    gray: Collection[int]  # words that were not read, or not changed
    least: float = 0.0  # the scale ends there or later
    predicted: str = ""  # what the model predicts, in place of some words or after the text
    filled: Collection[int] = ()  # these words


class WordResult(Result):
    """Base of results that give numbers to each of the W words of a text, also by changing it."""

    words: tuple[str, ...]
    positions: tuple[tuple[int, ...], ...]
    causal: Mapping[str, Tensor]
    stacks: tuple[str, ...] = ()  # in which of two texts each word is
    special: tuple[bool, ...]
    provenance: Provenance

    def shown(self, *, measured: bool | None) -> Shown:
        """Return what colors the words: the effects of changing them, or their contributions."""
        raise NotImplementedError

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

    def group(self, words: Collection[int]) -> str | None:
        """Return "a word of “…”", the neighbors that hold some words; None if they are far apart.

        Neighbors are at most four words, and at most half of those that are ranked.
        """
        low, high = min(words), max(words) + 1
        most = min(_NEIGHBORS, len(self.sources) // 2)
        if high - low > most or any(self.special[low:high]):
            return None
        text = self.provenance.text or ""
        places = [one for one in [*place_words(self.words, text)][low:high] if one is not None]
        whole = " ".join(self.words[low:high])
        if len(places) == high - low:
            whole = text[places[0].start : places[-1].stop]
        return f"a word of “{literal(whole)}”"

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
