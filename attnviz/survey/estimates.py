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
    """Sums over texts, from which `Estimates` follow."""

    def __init__(self, width: int, *, resamples: int = RESAMPLES, seed: int = 0) -> None:
        self._seed, self._resamples = seed, resamples
        self._count = np.zeros(width, np.int64)
        self._sum, self._squares = np.zeros(width), np.zeros(width)
        # Poisson bootstrap: each text counts 0, 1, 2, … times (Hanley & MacGibbon 2006).
        self._booted, self._weight = (np.zeros((resamples, width)) for _ in range(2))
        self._flipped = np.zeros((resamples, width))

    def add(self, numbers: NDArray[np.int64], values: Floats) -> None:
        """Add n texts: their numbers in the corpus (n,), and K values of each, NaN for none."""
        there = ~np.isnan(values)
        known = np.where(there, values, 0.0)
        times, signs = self._draws(numbers)
        self._count += there.sum(0)
        self._sum += known.sum(0)
        self._squares += (known**2).sum(0)
        self._booted += times.T @ known
        self._weight += times.T @ there.astype(np.float64)
        self._flipped += signs.T @ known

    def _draws(self, numbers: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Return how often each text counts in each resample, and its sign, (n, resamples)."""
        times, signs = [], []
        for number in numbers.tolist():
            random = np.random.Generator(np.random.Philox(key=[self._seed, number]))
            times.append(random.poisson(1.0, self._resamples))
            signs.append(random.integers(0, 2, self._resamples) * 2 - 1)
        return np.array(times, np.float64), np.array(signs, np.float64)

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
        above = (largest[:, None] >= t[None]).sum(0)
        return Estimates(mean, low, high, (1 + above) / (1 + self._resamples), self._count)
