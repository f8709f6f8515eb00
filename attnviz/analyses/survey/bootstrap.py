"""Means with intervals and tests from a stream of texts, in memory that does not grow with it.

The random numbers of a text follow from its number in the corpus alone. So a bootstrap is a sum
over texts that can be taken in any order, in parts, and on several machines.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 1000
_CONFIDENCE = 0.95
# A number needs so many texts for an interval. For a bootstrap test it also needs an effective
# number of texts: n over the kurtosis, which is 1 where one text differs from all others.
_MIN_TEXTS, _MIN_EFFECTIVE = 10, 8.0
_ROUNDING = 1e-6  # a deviation between texts that is no larger is rounding
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Estimates:
    """The means of K numbers, with intervals and tests against 0.

    Texts are taken to be independent.

    Attributes
    ----------
    mean : ndarray
        (K,).
    low, high : ndarray
        The 95 % interval; NaN for fewer than ten texts.
    p_value : ndarray
        Two-sided, corrected for K tests: twice the smaller of two p-values, so that either test may
        reject. One is the bootstrap of t about the mean, which needs no symmetry, by the largest
        |t| of each resample (Westfall & Young 1993; Romano & Wolf 2005), at least
        1 / (resamples + 1); it is 1 where a few texts make the whole difference. The other, for
        shares, is K times Hoeffding's bound.
    count : ndarray
        Of how many texts.
    """

    mean: Floats
    low: Floats
    high: Floats
    p_value: Floats
    count: NDArray[np.int64]


class Estimator:
    """Sums over texts, from which the `Estimates` of K numbers follow.

    Parameters
    ----------
    shares : ndarray
        (K,), which numbers lie between -1 and 1, whatever the text.
    """

    def __init__(self, shares: NDArray[np.bool_]) -> None:
        self._shares, width = shares, len(shares)
        self._moments = np.zeros((5, width))  # Σ x⁰ … Σ x⁴
        # Poisson bootstrap: each text counts 0, 1, 2, … times (Hanley & MacGibbon 2006).
        self._resampled = np.zeros((3, RESAMPLES, width))  # Σ w x⁰ … Σ w x²

    def add(self, weights: Floats, values: Floats) -> None:
        """Add n texts.

        Parameters
        ----------
        weights : ndarray
            (n, resamples), from `draw`.
        values : ndarray
            (n, K), NaN for missing ones.
        """
        present = ~np.isnan(values)
        known = np.where(present, values, 0.0)
        squares = known * known
        powers = present, known, squares, squares * known, squares * squares
        self._moments += [power.sum(0) for power in powers]
        # Many numbers are missing in the same texts: those of all heads, or none at all.
        bits = np.packbits(present, axis=0)
        _, first, kind = np.unique(bits, axis=1, return_index=True, return_inverse=True)
        self._resampled[0] += (weights.T @ present[:, first])[:, kind.ravel()]
        self._resampled[1] += weights.T @ known
        self._resampled[2] += weights.T @ squares

    def joined(self, other: Estimator) -> Estimator:
        """Return the sums over the texts of both."""
        both = Estimator(self._shares)
        both._moments = self._moments + other._moments
        both._resampled = self._resampled + other._resampled
        return both

    def estimates(self) -> Estimates:
        """Return what follows from all texts that were added."""
        count, width = self._moments[0], self._moments.shape[1]
        low, high, p_value = np.full(width, np.nan), np.full(width, np.nan), np.ones(width)
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = self._moments[1] / count
            enough = count >= _MIN_TEXTS
            if enough.any():
                weight, total, squares = self._resampled[:, :, enough]
                means = np.where(weight > 0, total / weight, mean[enough])
                edge = (1 - _CONFIDENCE) / 2
                low[enough], high[enough] = np.quantile(means, [edge, 1 - edge], axis=0)
                error = _standard_error(count, mean, self._moments[2] / count)
                t = np.abs(mean) / error
                # A resample without the texts that differ would have hardly any error.
                errors = _standard_error(weight, means, squares / weight)
                errors = np.maximum(errors, error[enough] / 2)
                resampled_t = np.abs(means - mean[enough]) / errors
                p_value[enough] = self._hoeffding(mean)[enough]
                testable = self._is_testable(mean)
                if testable.any():
                    largest = np.sort(np.nan_to_num(resampled_t[:, testable[enough]]).max(axis=1))
                    above = RESAMPLES - np.searchsorted(largest, t[testable], side="left")
                    bootstrap = (1 + above) / (1 + RESAMPLES)
                    p_value[testable] = np.fmin(p_value[testable], bootstrap)
                p_value = np.fmin(2 * p_value, 1.0)
        return Estimates(mean, low, high, p_value, count.astype(np.int64))

    def _is_testable(self, mean: Floats) -> NDArray[np.bool_]:
        """Return which numbers a bootstrap can test: those that do not hang on a few texts."""
        count = self._moments[0]
        _, first, second, third, fourth = self._moments / count
        variance = second - first**2
        spread = fourth - 4 * first * third + 6 * first**2 * second - 3 * first**4
        testable: NDArray[np.bool_] = (count >= _MIN_TEXTS) & (variance > _ROUNDING**2)
        testable &= count * variance**2 >= _MIN_EFFECTIVE * spread
        return testable

    def _hoeffding(self, mean: Floats) -> Floats:
        """Return p-values of means of shares that hold for any distribution (Hoeffding 1963)."""
        p_value = 2 * len(mean) * np.exp(-self._moments[0] * mean**2 / 2)
        return np.where(self._shares, np.fmin(p_value, 1.0), 1.0)


def _standard_error(count: Floats, mean: Floats, squares: Floats) -> Floats:
    """Return the standard error of means."""
    return np.sqrt(np.maximum(squares - mean**2, _ROUNDING**2) / count)


class Mean:
    """The mean of K numbers over texts that come in parts; NaN is left out."""

    def __init__(self, width: int) -> None:
        self._sum, self._count = np.zeros(width), np.zeros(width)

    def add(self, values: Floats) -> None:
        """Add n texts, (n, K)."""
        self._sum += np.nansum(values, axis=0)
        self._count += (~np.isnan(values)).sum(0)

    def mean(self) -> Floats:
        """Return the means, (K,)."""
        with np.errstate(invalid="ignore"):
            return self._sum / self._count


def draw(numbers: NDArray[np.int64], seed: int) -> Floats:
    """Return how often each text counts in each resample, (n, resamples), by its number."""
    generators = (np.random.Generator(np.random.Philox(key=[seed, n])) for n in numbers.tolist())
    return np.array([random.poisson(1.0, RESAMPLES) for random in generators], np.float64)
