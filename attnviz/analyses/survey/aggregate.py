"""From the statistics of all texts to each head: means, roles, and which heads are alike."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnviz.analyses.survey.bootstrap import Estimates, Estimator, Floats, Mean, draw
from attnviz.analyses.survey.measure import TextStatistics
from attnviz.analyses.survey.statistics import IS_SHARE, STATISTICS
from attnviz.results import AttentionRecord
from attnviz.runtime.memory import release_unused
from attnviz.runtime.progress import say

_ROLE_P_VALUE = 0.01
_PAIR_WEIGHTS = 2**22  # that are compared at once
_SAMPLE_ROWS = 64  # of a text


@dataclass(frozen=True, eq=False)
class CorpusStatistics:
    """The statistics of K heads over a corpus: estimates of K · S numbers, head by head.

    Attributes
    ----------
    value : Estimates
        Of the statistics.
    above_even, above_shuffled : Estimates
        Of their differences from even weights and from shuffled tokens.
    even, shuffled : ndarray
        The means of these baselines, (K, S).
    excess : ndarray
        The mean difference from even weights on a random half of the texts, (K, S).
    held_out : Estimates
        The same on the other half.
    texts, tokens : int
        How many were measured.
    compared : int
        How many texts were compared with the model's own weights.
    differences : ndarray
        The largest difference of each head on these, (K,).
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
    """Sum up the parts of a survey, one after the other.

    Parameters
    ----------
    parts : iterable of TextStatistics
        In the order of the corpus.
    heads : int
        How many heads each part has.
    seed : int
        Of the resamples, and of the half of the texts on which heads get their roles.
    """
    shape = heads, len(STATISTICS)
    width = heads * len(STATISTICS)
    shares = np.tile(IS_SHARE, heads)
    value, above_shuffled, role_half, held_out = [Estimator(shares) for _ in range(4)]
    means = [Mean(width) for _ in range(3)]
    differences = np.full(heads, -np.inf)
    texts = tokens = compared = 0
    for part in parts:
        numbers, lengths, ours, even, shuffled = _measured_texts(part)
        weights, in_half = draw(numbers, seed), _random_half(numbers, seed)
        excess = ours - even
        value.add(weights, ours)
        role_half.add(weights[in_half], excess[in_half])
        held_out.add(weights[~in_half], excess[~in_half])
        above_shuffled.add(weights, ours - shuffled)
        for mean, values in zip(means, (even, shuffled, excess[in_half]), strict=True):
            mean.add(values)
        texts += len(numbers)
        tokens += int(lengths.sum())
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


def _measured_texts(
    part: TextStatistics,
) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats, Floats, Floats]:
    """Return numbers and lengths (N,) of the texts with any statistic, and values (N, K · S).

    Where a text does not have a statistic, its baselines are NaN too.
    """
    missing = part.value.isnan()
    measured = ~missing.flatten(1).all(1)
    even = part.even.clone()
    even[:, :, [not statistic.even_baseline for statistic in STATISTICS]] = torch.nan
    values = (
        values.masked_fill(missing, torch.nan)[measured].double().flatten(1).numpy()
        for values in (part.value, even, part.shuffled)
    )
    ours, even_values, shuffled = values
    keep = measured.numpy()
    return np.array(part.numbers)[keep], np.array(part.tokens)[keep], ours, even_values, shuffled


def _random_half(numbers: NDArray[np.int64], seed: int) -> NDArray[np.bool_]:
    """Return which texts belong to the half on which heads get their roles."""
    return np.array([Random(f"half {seed} {number}").random() < 0.5 for number in numbers.tolist()])


def assign_roles(excess: Floats, held_out: Estimates) -> list[str]:
    """Return the role of each head, or "".

    A head gets the role of the statistic that exceeds even weights by most on one half of the
    texts, if the excess is significant on the other half. Where it rests counts only if it has no
    other role.

    Parameters
    ----------
    excess : ndarray
        (K, S), the mean excess on the first half.
    held_out : Estimates
        Of the excess on the other half, K · S numbers, head by head.
    """
    low, p_value = (values.reshape(excess.shape) for values in (held_out.low, held_out.p_value))
    roles = []
    for head, row in enumerate(np.nan_to_num(excess, nan=-np.inf)):
        role = ""
        for resting in (False, True):
            candidates = [
                column
                for column, statistic in enumerate(STATISTICS)
                if statistic.role and statistic.resting == resting
            ]
            best = max(candidates, key=row.__getitem__)
            significant = low[head, best] > 0 and p_value[head, best] < _ROLE_P_VALUE
            if not role and significant and row[best] >= STATISTICS[best].role_excess:
                role = STATISTICS[best].role
        roles.append(role)
    return roles


def cluster(distances: Floats, most: int = 8) -> NDArray[np.int64]:
    """Return the cluster of each head, the largest cluster first.

    By Ward's method, since the distances are Euclidean (Endres & Schindelin 2003); average linkage
    would set one head apart from all others. Of 2 to `most` clusters, the number with the largest
    silhouette.

    Parameters
    ----------
    distances : ndarray
        (K, K), between heads.
    most : int
        The largest number of clusters.
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

    Parameters
    ----------
    texts : sequence of sequences of AttentionRecord
        The records of each text, the same attentions in the same order.
    """
    total, count = torch.zeros(()), 0
    for records in texts:
        words = (~torch.tensor(records[0].query_axis.special)).nonzero().flatten()
        rows = words[:: -(-len(words) // _SAMPLE_ROWS)]
        weights = torch.cat([record.weights().float()[:, rows].cpu() for record in records])
        total = total + torch.stack([_divergence_from_all(head, weights) for head in weights])
        count += len(rows)
    mean = (total / max(1, count)).clamp(0, 1)
    return mean.sqrt().fill_diagonal_(0.0)


def _divergence_from_all(head: Tensor, weights: Tensor) -> Tensor:
    """Return the divergence of one head (m, n) from each of K, summed over rows, (K,)."""
    step = max(1, _PAIR_WEIGHTS // head.numel())
    return torch.cat([divergence(head, heads).sum(-1) for heads in torch.split(weights, step)])


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
