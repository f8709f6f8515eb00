"""From the statistics of all texts to each head: means, tests and roles; how far maps are apart.

Intervals and sign flips are sums over a stream of texts, in memory that does not grow with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnviz.analyses.survey.measure import TextStatistics, random_numbers
from attnviz.heads import STATISTICS, Statistic, followed_rules
from attnviz.runtime import say
from attnviz.runtime.libraries import release_unused

FLIPS = 2048  # of the signs of all texts; all that differ for up to _EXACT texts
_EXACT = 12
_ROUNDING = 1e-6  # smaller differences are rounding
_EQUAL, _SYMMETRIC = 1e-12, 1e-6  # a smaller variance (of a square) or skewness is none
_TIE = 1e-9  # statistics that differ by less are tied
Floats = NDArray[np.float64]
_ROLE_P_VALUE = 0.01
# The fewest texts on which 2 of all 2^n flips, the texts themselves and their opposite, reach it.
MIN_HELD_OUT = 1 + math.floor(1 - math.log2(_ROLE_P_VALUE))


def aggregate(
    parts: Iterable[TextStatistics],
    heads: int,
    *,
    seed: int = 0,
    statistics: Sequence[Statistic] = STATISTICS,
    device: torch.device | str = "cpu",
) -> tuple[dict[str, Any], Floats, int]:
    """Sum up the parts of a survey on a device, in their order; `seed` of flips and of halves.

    Returns fields of a `SurveyResult`, the largest difference of each head from the statistics of
    the model's own weights, (K,), and how many texts confirm roles: the other half.
    """
    shape = heads, len(statistics)
    value, *means = (Moments(*shape, device=device) for _ in range(5))
    above_shuffled, above_even, other_half = (SignFlips(*shape, device=device) for _ in range(3))
    no_baseline = torch.tensor([not one.even_baseline for one in statistics], device=device)
    differences = np.full(heads, -np.inf)
    texts = tokens = compared = held_out = 0
    for part in parts:
        missing = part.value.isnan().to(device)
        measured = ~missing.flatten(1).all(1)
        # If a text does not have a statistic, its baselines are NaN too.
        values = part.value, part.even, part.shuffled_keys, part.shuffled
        masks = missing, missing | no_baseline, missing | no_baseline, missing
        ours, even, keys, shuffled = (
            one.to(device).masked_fill(left_out, torch.nan)[measured].double()
            for one, left_out in zip(values, masks, strict=True)
        )
        kept = measured.cpu().numpy()
        numbers = np.array(part.numbers)[kept]
        # Heads get their roles on half of the texts: a random one of each two neighbors.
        drawn = [Random(f"half {seed} {number // 2}").random() < 0.5 for number in numbers.tolist()]
        in_half = torch.tensor(np.array(drawn, bool) == (numbers % 2 == 0), device=device)
        signs, above_keys = draw_signs(numbers, seed).to(device), difference(ours, keys)
        value.add(ours)
        above_shuffled.add(signs, difference(ours, shuffled))
        above_even.add(signs, above_keys)
        other_half.add(signs[~in_half], above_keys[~in_half])
        averaged = even, shuffled, (ours - even)[in_half], above_keys[~in_half]
        for mean, one in zip(means, averaged, strict=True):
            mean.add(one)
        texts += len(numbers)
        held_out += int((~in_half).sum())
        tokens += int(np.array(part.tokens)[kept].sum())
        compared += part.compared
        differences = np.maximum(differences, part.differences.double().numpy())
        release_unused()
    say("estimating")
    even_mean, shuffled_mean, excess, held_out_mean = (one.estimates().mean for one in means)
    numbers = vars(bounded(value.estimates(), statistics)) | {
        "even": even_mean,
        "shuffled": shuffled_mean,
        "p_even": above_even.p_values(),
        "p_shuffled": above_shuffled.p_values(),
    }
    p_held_out = np.where(held_out_mean > 0, other_half.p_values(), 1.0)
    fields: dict[str, Any] = {name: torch.from_numpy(one) for name, one in numbers.items()}
    fields["roles"] = assign_roles(excess, p_held_out, statistics)
    fields |= {"texts": texts, "tokens": tokens, "compared": compared}
    return fields, differences, held_out


def bounded(estimates: Estimates, statistics: Sequence[Statistic] = STATISTICS) -> Estimates:
    """Return estimates (K, S) with the intervals of shares from 0 to 1."""
    shares = np.array([one.limit is None for one in statistics])
    low, high = (np.where(shares, np.clip(x, 0, 1), x) for x in (estimates.low, estimates.high))
    return replace(estimates, low=low, high=high)


def assign_roles(
    excess: Floats, p_held_out: Floats, statistics: Sequence[Statistic] = STATISTICS
) -> tuple[str, ...]:
    """Return the role of each head, or "".

    It is that of the rule that the head follows on half of the texts, by the mean difference from
    even weights, `excess` (K, S), if its statistic exceeds shuffled keys significantly on the other
    half, by `p_held_out` (K, S): 1 if the mean is not positive.
    """
    followed = followed_rules(excess, statistics, p_held_out < _ROLE_P_VALUE)
    return tuple(statistics[n].role if n >= 0 else "" for n in followed)


def divergence(P: Tensor, Q: Tensor) -> Tensor:
    """Return the Jensen–Shannon divergence of each two rows over n keys, in bits, 0 to 1.

    H((P + Q) / 2) - (H(P) + H(Q)) / 2 (Lin 1991).
    """
    M = (P + Q) / 2
    negative_entropy = (torch.special.xlogy(P, P) + torch.special.xlogy(Q, Q)) / 2
    bits: Tensor = (negative_entropy - torch.special.xlogy(M, M)).sum(-1) / math.log(2)
    return bits.clamp(min=0)


@dataclass(frozen=True, eq=False)
class Estimates:
    """The means of numbers over texts that are assumed to be independent."""

    mean: Floats
    low: Floats  # where the 95 % interval begins; NaN for fewer than ten texts
    high: Floats  # where it ends
    count: NDArray[np.int64]  # the number of texts


class Moments:
    """Sums over texts, from which the `Estimates` of numbers of any shape follow."""

    def __init__(self, *shape: int, device: torch.device | str = "cpu") -> None:
        # Of x: the first number, for small variances.
        self._origin = torch.full(shape, torch.nan, dtype=torch.double, device=device)
        self._sums = self._origin.new_zeros(4, *shape)  # of 1, x, x² and x³

    def add(self, values: Tensor) -> None:
        """Add n texts, (n, …), NaN if missing."""
        if not len(values):
            return
        present = ~values.isnan()
        first = values.gather(0, present.byte().argmax(0, keepdim=True))[0]
        self._origin = self._origin.where(~self._origin.isnan(), first)
        x = (values - self._origin).masked_fill(~present, 0.0)
        self._sums += torch.stack([power.sum(0) for power in (present, x, x * x, x * x * x)])

    def estimates(self) -> Estimates:
        """Return the estimates from all texts that were added.

        The interval is Student's t, corrected for the skewness γ of the numbers: with quantiles of
        t in w + γw²/3 + γ²w³/27 + γ/6n, where w is the error in standard deviations (Hall 1992, On
        the removal of skewness by transformation).
        """
        from scipy.stats import t

        origin, sums = self._origin.cpu().numpy(), self._sums.cpu().numpy()
        count = sums[0]
        with np.errstate(divide="ignore", invalid="ignore"):
            mean, square, cube = sums[1:] / count
            variance = square - mean**2
            varies = variance > _EQUAL * square
            deviation = np.sqrt(np.where(varies, variance, 0.0) * count / (count - 1))
            third = cube - 3 * mean * square + 2 * mean**3
            skew = np.where(varies, third / deviation**3, 0.0)
            skew = np.where(np.abs(skew) < _SYMMETRIC, _SYMMETRIC, skew)
            edge = t.ppf(0.975, count - 1) / np.sqrt(count)
            ends = (
                origin
                + mean
                - deviation * 3 / skew * (np.cbrt(1 + skew * (w - skew / (6 * count))) - 1)
                for w in (edge, -edge)
            )
            low, high = (np.where(count >= 10, end, np.nan) for end in ends)
        return Estimates(origin + mean, low, high, count.astype(np.int64))


class SignFlips:
    """Sums over texts with flipped signs, from which p-values of numbers against 0 follow.

    If each number is a difference of two that can be exchanged, such as the value of a text and
    that of its shuffled tokens, then its sign is arbitrary under the null hypothesis, and so are
    the signs of all numbers of a text together (Fisher 1935). The test is then exact for any number
    of texts and any distribution. The values of a text may depend on each other in any way.
    """

    def __init__(self, *shape: int, device: torch.device | str = "cpu") -> None:
        self._texts, self._shape = 0, shape
        self._squares = torch.zeros(math.prod(shape), dtype=torch.double, device=device)
        self._flipped = self._squares.new_zeros(FLIPS, len(self._squares))
        self._first: list[Tensor] = []  # while all flips can be tried

    def add(self, signs: Tensor, values: Tensor) -> None:
        """Add n texts: signs (n, flips) from `draw_signs`, values (n, …), NaN if missing."""
        known = values.nan_to_num(0.0).flatten(1)
        self._texts += len(known)
        self._squares += (known * known).sum(0)
        self._flipped += signs.T @ known
        self._first = [*self._first, known] if self._texts <= _EXACT else []

    def p_values(self) -> Floats:
        """Return the p-values: two-sided, corrected for the number of tests.

        The statistic of a number is |Σ x| / √(Σ x²), which increases with |t| and is at most √n.
        Each number is compared with the largest statistic in each flip, among the numbers that are
        not larger than itself: step-down max-T (Westfall & Young 1993). Up to twelve texts are
        flipped in all 2^n ways. Of more, one of the flips is the texts themselves, so that
        p = (1 + b) / (1 + B) of B random flips (Phipson & Smyth 2010). 1 for a number that is 0 in
        all texts.
        """
        flipped = self._flipped.cpu().numpy()
        if 0 < self._texts <= _EXACT:
            flipped = _all_signs(self._texts).T @ torch.cat(self._first).cpu().numpy()
        size = self._squares.sqrt().cpu().numpy()
        p_values = np.ones(len(size))
        tested = np.flatnonzero(size)
        order = tested[np.argsort(-np.abs(flipped[0, tested]) / size[tested], kind="stable")]
        first = np.abs(flipped[0, order]) / size[order]
        above = np.zeros(len(order))
        for block in np.array_split(flipped, -(-len(flipped) // 256)):  # less memory at once
            sizes = np.abs(block[:, order]) / size[order]
            largest = np.maximum.accumulate(sizes[:, ::-1], axis=1)[:, ::-1]
            above += (largest >= first * (1 - _TIE)).sum(0)
        p_values[order] = np.maximum.accumulate(above / len(flipped))
        return p_values.reshape(self._shape)


def draw_signs(numbers: NDArray[np.int64], seed: int) -> Tensor:
    """Return the sign of each text in each flip, (n, flips), by its number; all are 1 in flip 0."""
    texts = ((number, 0, FLIPS // 2) for number in numbers.tolist())
    drawn = np.array([*random_numbers(seed, texts)], "<u8")
    negative = drawn.view("<u4").reshape(len(numbers), FLIPS) >> 31  # the first bit of each half
    signs = 1 - 2 * torch.from_numpy(negative.astype(np.float64))
    signs[:, 0] = 1
    return signs


def _all_signs(texts: int) -> Floats:
    """Return all signs of n texts, (n, 2^(n - 1)): without the opposites, and all 1 in flip 0."""
    bits = np.arange(2 ** (texts - 1)) >> np.arange(texts)[:, None]
    return 1 - 2 * (bits & 1).astype(np.float64)


def difference(values: Tensor, others: Tensor) -> Tensor:
    """Return values - others, and 0 where they differ only by rounding."""
    between = values - others
    return between.masked_fill(between.abs() <= _ROUNDING * values.abs().clamp(min=1), 0.0)
