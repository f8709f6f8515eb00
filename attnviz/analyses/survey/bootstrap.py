"""Means with intervals and tests from a stream of texts, in memory that does not grow with it.

Every text has a random number for each resample, made from its number in the corpus alone. So a
bootstrap is sums over texts that can be taken in any order, in parts, and in several places.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 1000
_CONFIDENCE = 0.95
# What must be known for a number to have an interval, and for a bootstrap to test it: of how many
# texts, and of how many that count (n over the kurtosis: 1 where one differs from all others).
_TEXTS, _EFFECTIVE = 10, 8.0
_ROUNDING = 1e-6  # a deviation between texts that is no more than this is rounding
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Estimates:
    """Of K numbers: mean, interval of it, and how sure it is that the mean is not 0.

    low, high : 95 %, NaN of less than ten texts. count : of how many texts. p_value : two-sided,
    corrected for K tests. It is twice the smaller of two, so that either may tell: the bootstrap of
    t about the mean, which asks for no symmetry, by the largest |t| of each resample (Westfall &
    Young 1993; Romano & Wolf 2005), 1 / (resamples + 1) or more, where no few texts make all the
    difference; and of shares, K times Hoeffding's bound. Else 1. Texts are taken to be independent.
    """

    mean: Floats
    low: Floats
    high: Floats
    p_value: Floats
    count: NDArray[np.int64]


class Estimator:
    """Sums over texts, from which `Estimates` of K numbers follow.

    shares : (K,), which of them can be no more than 1 and no less than -1, whatever the text.
    """

    def __init__(self, shares: NDArray[np.bool_]) -> None:
        self._shares, width = shares, len(shares)
        self._moments = np.zeros((5, width))  # Σ x⁰ … Σ x⁴
        # Poisson bootstrap: each text counts 0, 1, 2, … times (Hanley & MacGibbon 2006).
        self._booted = np.zeros((3, RESAMPLES, width))  # Σ w x⁰ … Σ w x²

    def add(self, times: Floats, values: Floats) -> None:
        """Add n texts, of which K values (n, K) are given, NaN for none; `times` is of `draw`."""
        there = ~np.isnan(values)
        known = np.where(there, values, 0.0)
        squares = known * known
        powers = there, known, squares, squares * known, squares * squares
        self._moments += [power.sum(0) for power in powers]
        # Most numbers are there of the same texts as others: of all heads, or of all texts.
        bits = np.packbits(there, axis=0)
        _, first, kind = np.unique(bits, axis=1, return_index=True, return_inverse=True)
        self._booted[0] += (times.T @ there[:, first])[:, kind.ravel()]
        self._booted[1] += times.T @ known
        self._booted[2] += times.T @ squares

    def joined(self, other: Estimator) -> Estimator:
        """Return the sums over the texts of both."""
        both = Estimator(self._shares)
        both._moments = self._moments + other._moments
        both._booted = self._booted + other._booted
        return both

    def estimates(self) -> Estimates:
        """Return what follows from all texts that were added."""
        count, width = self._moments[0], self._moments.shape[1]
        low, high, p_value = np.full(width, np.nan), np.full(width, np.nan), np.ones(width)
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = self._moments[1] / count
            told = count >= _TEXTS
            if told.any():
                weight, total, squares = self._booted[:, :, told]
                booted = np.where(weight > 0, total / weight, mean[told])
                edge = (1 - _CONFIDENCE) / 2
                low[told], high[told] = np.quantile(booted, [edge, 1 - edge], axis=0)
                error = _error(count, mean, self._moments[2] / count)
                t = np.abs(mean) / error
                # A resample that misses what makes texts differ would have hardly any error.
                errors = np.maximum(_error(weight, booted, squares / weight), error[told] / 2)
                moved = np.abs(booted - mean[told]) / errors
                p_value[told] = self._bound(mean)[told]
                sure = self._is_tested(mean)
                if sure.any():
                    largest = np.sort(np.nan_to_num(moved[:, sure[told]]).max(axis=1))
                    above = RESAMPLES - np.searchsorted(largest, t[sure], side="left")
                    p_value[sure] = np.fmin(p_value[sure], (1 + above) / (1 + RESAMPLES))
                p_value = np.fmin(2 * p_value, 1.0)
        return Estimates(mean, low, high, p_value, count.astype(np.int64))

    def _is_tested(self, mean: Floats) -> NDArray[np.bool_]:
        """Return of which numbers a bootstrap tells: not all is owed to a few of the texts."""
        count = self._moments[0]
        _, first, second, third, fourth = self._moments / count
        variance = second - first**2
        spread = fourth - 4 * first * third + 6 * first**2 * second - 3 * first**4
        tested: NDArray[np.bool_] = (count >= _TEXTS) & (variance > _ROUNDING**2)
        tested &= count * variance**2 >= _EFFECTIVE * spread
        return tested

    def _bound(self, mean: Floats) -> Floats:
        """Return p-values of means of shares, which hold for any distribution (Hoeffding 1963)."""
        p_value = 2 * len(mean) * np.exp(-self._moments[0] * mean**2 / 2)
        return np.where(self._shares, np.fmin(p_value, 1.0), 1.0)


def _error(count: Floats, mean: Floats, squares: Floats) -> Floats:
    """Return the standard error of means."""
    return np.sqrt(np.maximum(squares - mean**2, _ROUNDING**2) / count)


class Mean:
    """The mean of K numbers over texts that come in parts, NaN left out."""

    def __init__(self, width: int) -> None:
        self._sum, self._count = np.zeros(width), np.zeros(width)

    def add(self, values: Floats) -> None:
        """Add n texts, of which K values (n, K) are given."""
        self._sum += np.nansum(values, axis=0)
        self._count += (~np.isnan(values)).sum(0)

    def mean(self) -> Floats:
        """Return the means, (K,)."""
        with np.errstate(invalid="ignore"):
            return self._sum / self._count


def draw(numbers: NDArray[np.int64], seed: int) -> Floats:
    """Return how often each text counts in each resample, (n, resamples), by its number."""
    random = (np.random.Generator(np.random.Philox(key=[seed, n])) for n in numbers.tolist())
    return np.array([each.poisson(1.0, RESAMPLES) for each in random], np.float64)
