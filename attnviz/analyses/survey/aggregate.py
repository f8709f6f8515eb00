"""From the statistics of all texts to each head: means, tests, roles, and which heads are alike.

Means come with intervals and tests from a stream of texts, in memory that does not grow with it.
The random numbers of a text follow from its number in the corpus alone. So a bootstrap is a sum
over texts, in any order, in parts, and on several machines.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnviz.analyses.survey.statistics import IS_SHARE, STATISTICS, TextStatistics
from attnviz.results import AttentionRecord
from attnviz.runtime.libraries import release_unused
from attnviz.runtime.progress import say

RESAMPLES = 1000
_CONFIDENCE = 0.95
# The fewest texts for an interval, and for a bootstrap test the smallest effective number of texts:
# n over the kurtosis, which is 1 if one text differs from all others.
_MIN_TEXTS, _MIN_EFFECTIVE = 10, 8.0
_ROUNDING = 1e-6  # smaller deviations between texts are rounding
Floats = NDArray[np.float64]
_ROLE_P_VALUE = 0.01
_ROLE_EXCESS = {False: 0.25, True: 0.5}  # the least weight over even weights, by "resting"
_PAIR_WEIGHTS = 2**22  # that are compared at once
_SAMPLE_ROWS = 64  # of a text


@dataclass(frozen=True, eq=False)
class CorpusStatistics:
    """The statistics of K heads over a corpus: estimates of K · S numbers, head by head.

    above_even, above_shuffled : differences from even weights and from shuffled tokens. even,
    shuffled : (K, S), the means of these baselines. excess : (K, S), the mean difference from even
    weights on a random half of the texts; held_out : the same on the other half. compared : the
    number of texts compared with the model's own weights; differences : (K,), the largest
    difference of each head on these.
    """

    value: Estimates
    above_even: Estimates
    above_shuffled: Estimates
    even: Floats
    shuffled: Floats
    excess: Floats
    held_out: Estimates
    texts: int
    tokens: int
    compared: int
    differences: Floats


def aggregate(parts: Iterable[TextStatistics], heads: int, *, seed: int = 0) -> CorpusStatistics:
    """Sum up the parts of a survey, in the order of the corpus.

    seed : of the resamples, and of the half of the texts on which heads get their roles.
    """
    shape = heads, len(STATISTICS)
    shares = np.tile(IS_SHARE, heads)
    value, above_shuffled, role_half, held_out = [Estimator(shares) for _ in range(4)]
    means = [Mean(len(shares)) for _ in range(3)]
    differences = np.full(heads, -np.inf)
    texts = tokens = compared = 0
    for part in parts:
        missing = part.value.isnan()
        measured = ~missing.flatten(1).all(1)
        no_baseline = torch.tensor(
            [not statistic.even_baseline for statistic in STATISTICS], device="cpu"
        )
        # If a text does not have a statistic, its baselines are NaN too.
        ours, even, shuffled = (
            values.masked_fill(left_out, torch.nan)[measured].double().flatten(1).numpy()
            for values, left_out in (
                (part.value, missing),
                (part.even, missing | no_baseline),
                (part.shuffled, missing),
            )
        )
        numbers = np.array(part.numbers)[measured.numpy()]
        weights = draw(numbers, seed)
        in_half = np.array([Random(f"half {seed} {n}").random() < 0.5 for n in numbers.tolist()])
        excess = ours - even
        value.add(weights, ours)
        role_half.add(weights[in_half], excess[in_half])
        held_out.add(weights[~in_half], excess[~in_half])
        above_shuffled.add(weights, ours - shuffled)
        for mean, values in zip(means, (even, shuffled, excess[in_half]), strict=True):
            mean.add(values)
        texts += len(numbers)
        tokens += int(np.array(part.tokens)[measured.numpy()].sum())
        compared += part.compared
        differences = np.maximum(differences, part.differences.double().numpy())
        release_unused()
    say("estimating")
    even_mean, shuffled_mean, excess_mean = (mean.mean().reshape(shape) for mean in means)
    return CorpusStatistics(
        value=value.estimates(),
        above_even=role_half.joined(held_out).estimates(),
        above_shuffled=above_shuffled.estimates(),
        even=even_mean,
        shuffled=shuffled_mean,
        excess=excess_mean,
        held_out=held_out.estimates(),
        texts=texts,
        tokens=tokens,
        compared=compared,
        differences=differences,
    )


def assign_roles(excess: Floats, held_out: Estimates) -> list[str]:
    """Return the role of each head, or "".

    A head gets the role of the statistic that exceeds even weights by most on one half of the
    texts, if the excess is significant on the other half. Where it rests counts only if it has no
    other role.

    excess : (K, S), the mean on the first half. held_out : the estimates on the other half.
    """
    low, p_value = (values.reshape(excess.shape) for values in (held_out.low, held_out.p_value))
    named = [column for column, statistic in enumerate(STATISTICS) if statistic.role]
    roles = []
    for head, row in enumerate(np.nan_to_num(excess, nan=-np.inf)):
        role = ""
        for resting in (False, True):
            candidates = [column for column in named if STATISTICS[column].resting == resting]
            best = max(candidates, key=row.__getitem__)
            significant = low[head, best] > 0 and p_value[head, best] < _ROLE_P_VALUE
            if not role and significant and row[best] >= _ROLE_EXCESS[resting]:
                role = STATISTICS[best].role
        roles.append(role)
    return roles


def cluster(distances: Floats, most: int = 8) -> NDArray[np.int64]:
    """Return the cluster of each head, the largest cluster first.

    By Ward's method, since the distances are Euclidean (Endres & Schindelin 2003); average linkage
    would set one head apart from all others. Of 2 to `most` clusters, the number with the largest
    silhouette.

    distances : (K, K), between heads.
    """
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform
    from sklearn.metrics import silhouette_score

    best_score, best = -np.inf, np.zeros(len(distances), np.int64)
    if len(distances) < 3:
        return best
    tree = linkage(squareform(distances, checks=False), "ward")
    for count in range(2, min(most, len(distances) - 1) + 1):
        labels = fcluster(tree, count, "maxclust") - 1
        if labels.any():  # heads that are all the same make one
            score = silhouette_score(distances, labels, metric="precomputed")
            if score > best_score:
                best_score, best = score, labels
    order = np.argsort(-np.bincount(best), kind="stable")
    return np.argsort(order)[best]


def head_distances(texts: Sequence[Sequence[AttentionRecord]]) -> Tensor:
    """Return the distance between each two heads of a model, (K, K): 0 alike, 1 disjoint.

    The square root of the Jensen–Shannon divergence of their rows, in bits, averaged over rows of
    all texts, evenly chosen in long ones. Rows of special tokens are left out, and so are the
    weights of attention sinks, which are not keys.

    texts : the records of each text, the same attentions in the same order.
    """
    total, count = torch.zeros((), device="cpu"), 0
    for records in texts:
        special = torch.tensor(records[0].query_axis.special, device="cpu")
        words = (~special).nonzero().flatten()
        rows = words[:: -(-len(words) // _SAMPLE_ROWS)]
        weights = torch.cat([record.weights().float()[:, rows].cpu() for record in records])
        step = max(1, _PAIR_WEIGHTS // weights[0].numel())
        for_each_head = [
            torch.cat([divergence(head, heads).sum(-1) for heads in torch.split(weights, step)])
            for head in weights
        ]
        total = total + torch.stack(for_each_head)
        count += len(rows)
    mean = (total / max(1, count)).clamp(0, 1)
    return mean.sqrt().fill_diagonal_(0.0)


def divergence(P: Tensor, Q: Tensor) -> Tensor:
    """Return the Jensen–Shannon divergence of each two rows over n keys, in bits, 0 to 1.

    H((P + Q) / 2) - (H(P) + H(Q)) / 2 (Lin 1991).

    >>> divergence(torch.tensor([[1.0, 0.0], [0.5, 0.5]]), torch.tensor([[0.0, 1.0], [0.5, 0.5]]))
    tensor([1., 0.])
    """
    M = (P + Q) / 2
    negative_entropy = (torch.special.xlogy(P, P) + torch.special.xlogy(Q, Q)) / 2
    bits: Tensor = (negative_entropy - torch.special.xlogy(M, M)).sum(-1) / math.log(2)
    return bits.clamp(min=0)


@dataclass(frozen=True, eq=False)
class Estimates:
    """The means of K numbers, with intervals and tests against 0.

    The texts are assumed to be independent.

    low, high : the 95 % interval; NaN for fewer than ten texts. p_value : two-sided, corrected for
    K tests: twice the smaller of two p-values, so that either test may reject. One is the bootstrap
    of t about the mean, which needs no symmetry, by the largest |t| of each resample (Westfall &
    Young 1993; Romano & Wolf 2005), at least 1 / (resamples + 1); it is 1 where a few texts make
    the whole difference. The other, for shares, is K times Hoeffding's bound. count : the number of
    texts.
    """

    mean: Floats
    low: Floats
    high: Floats
    p_value: Floats
    count: NDArray[np.int64]


class Estimator:
    """Sums over texts, from which the `Estimates` of K numbers follow.

    shares : (K,), which numbers lie between -1 and 1 for every text.
    """

    def __init__(self, shares: NDArray[np.bool_]) -> None:
        self._shares, width = shares, len(shares)
        self._moments = np.zeros((5, width))  # Σ x⁰ … Σ x⁴
        # Poisson bootstrap: each text counts 0, 1, 2, … times (Hanley & MacGibbon 2006).
        self._resampled = np.zeros((3, RESAMPLES, width))  # Σ w x⁰ … Σ w x²

    def add(self, weights: Floats, values: Floats) -> None:
        """Add n texts: weights (n, resamples) from `draw`, values (n, K), NaN if missing."""
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
        """Return the estimates from all texts that were added."""
        count, width = self._moments[0], self._moments.shape[1]
        low, high, p_value = np.full(width, np.nan), np.full(width, np.nan), np.ones(width)
        with np.errstate(divide="ignore", invalid="ignore"):
            _, mean, second, third, fourth = self._moments / count
            enough = count >= _MIN_TEXTS
            if enough.any():
                weight, total, squares = self._resampled[:, :, enough]
                means = np.where(weight > 0, total / weight, mean[enough])
                edge = (1 - _CONFIDENCE) / 2
                low[enough], high[enough] = np.quantile(means, [edge, 1 - edge], axis=0)
                # Hoeffding's bound holds for shares of any distribution (Hoeffding 1963).
                bound = np.fmin(2 * width * np.exp(-count * mean**2 / 2), 1.0)
                p_value[enough] = np.where(self._shares, bound, 1.0)[enough]
                # A bootstrap can test numbers that do not depend on a few texts.
                variance = second - mean**2
                spread = fourth - 4 * mean * third + 6 * mean**2 * second - 3 * mean**4
                testable = enough & (variance > _ROUNDING**2)
                testable &= count * variance**2 >= _MIN_EFFECTIVE * spread
                if testable.any():
                    error = _standard_error(count, mean, second)
                    # A resample without the texts that differ would have hardly any error.
                    errors = _standard_error(weight, means, squares / weight)
                    errors = np.maximum(errors, error[enough] / 2)
                    resampled_t = (np.abs(means - mean[enough]) / errors)[:, testable[enough]]
                    largest = np.sort(np.nan_to_num(resampled_t).max(axis=1))
                    t = (np.abs(mean) / error)[testable]
                    above = RESAMPLES - np.searchsorted(largest, t, side="left")
                    p_value[testable] = np.fmin(p_value[testable], (1 + above) / (1 + RESAMPLES))
                p_value = np.fmin(2 * p_value, 1.0)
        return Estimates(mean, low, high, p_value, count.astype(np.int64))


def _standard_error(count: Floats, mean: Floats, squares: Floats) -> Floats:
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
