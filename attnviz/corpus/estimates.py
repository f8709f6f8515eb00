"""Means with intervals and tests from a stream of texts, in memory that does not grow with it.

Every text has a random number for each resample, made from its number in the corpus alone. So a
bootstrap and a permutation test are sums over texts that can be taken in any order, in parts, and
in several places.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 1000
_CONFIDENCE = 0.95
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Estimates:
    """Of K numbers: mean, interval of it, and how sure it is that the mean is not 0.

    count : of how many texts. p_value : two-sided, by flips of signs, corrected for K tests by the
    largest t of each flip (Westfall & Young 1993): as small as 1 / (resamples + 1).
    """

    mean: Floats
    low: Floats
    high: Floats
    p_value: Floats
    count: NDArray[np.int64]


class Estimator:
    """Sums over texts, from which `Estimates` of K numbers follow."""

    def __init__(self, width: int) -> None:
        self._count, self._sum, self._squares = (np.zeros(width) for _ in range(3))
        # Poisson bootstrap: each text counts 0, 1, 2, … times (Hanley & MacGibbon 2006).
        self._booted, self._weight, self._flipped = (np.zeros((RESAMPLES, width)) for _ in range(3))

    def add(self, draws: Draws, values: Floats) -> None:
        """Add n texts, of which K values (n, K) are given, NaN for none."""
        there = ~np.isnan(values)
        known = np.where(there, values, 0.0)
        self._count += there.sum(0)
        self._sum += known.sum(0)
        self._squares += (known**2).sum(0)
        self._booted += draws.times.T @ known
        self._flipped += draws.signs.T @ known
        if there.all():
            self._weight += draws.times.sum(0)[:, None]
        else:
            self._weight += draws.times.T @ there.astype(np.float64)

    def estimates(self) -> Estimates:
        """Return what follows from all texts that were added."""
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = self._sum / self._count
            booted = self._booted / self._weight
            # Flips leave the sum of squares as it is, and so tell each t.
            error = np.sqrt((self._squares / self._count - mean**2) / self._count)
            flipped = self._flipped / self._count
            errors = np.sqrt((self._squares / self._count - flipped**2) / self._count)
            t = np.nan_to_num(np.abs(mean) / error, posinf=np.inf)
            largest = np.nan_to_num(np.abs(flipped) / errors).max(axis=1)
        edge = (1 - _CONFIDENCE) / 2
        low, high = (np.full_like(mean, np.nan) for _ in range(2))
        some = self._count > 0  # and so in some resample
        low[some], high[some] = np.nanquantile(booted[:, some], [edge, 1 - edge], axis=0)
        above = RESAMPLES - np.searchsorted(np.sort(largest), t, side="left")
        return Estimates(mean, low, high, (1 + above) / (1 + RESAMPLES), self._count.astype(int))


@dataclass(frozen=True, eq=False)
class Draws:
    """How often each of n texts counts in each resample, and its sign, (n, resamples)."""

    times: Floats
    signs: Floats

    @classmethod
    def of(cls, numbers: NDArray[np.int64], seed: int) -> Draws:
        """Draw by the number of each text in the corpus."""
        times, signs = [], []
        for number in numbers.tolist():
            random = np.random.Generator(np.random.Philox(key=[seed, number]))
            times.append(random.poisson(1.0, RESAMPLES))
            signs.append(random.integers(0, 2, RESAMPLES) * 2 - 1)
        return cls(np.array(times, np.float64), np.array(signs, np.float64))

    def __getitem__(self, texts: NDArray[np.bool_]) -> Draws:
        """Return those of some texts."""
        return Draws(self.times[texts], self.signs[texts])
