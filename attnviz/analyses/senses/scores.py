"""How far senses lie apart: nearest centroids, what chance can do, and silhouettes.

All follows from the products of the vectors with each other, so that thousands of shuffled senses
are judged at once, exactly as the true ones are.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attnviz.analyses.senses.result import SenseScore

SHUFFLES = 2000  # of the senses, and as many resamplings of the sentences
_SAME = 1e-6  # cosines that differ by less are a tie
_AT_ONCE = 2_000_000  # numbers of shuffled memberships


@dataclass(frozen=True, eq=False)
class Design:
    """Which occurrence has which sense, and which stand in one sentence.

    senses : (N,) from 0 to k - 1. sentences : (N,) from 0 to S - 1. shuffled : (P, N), the senses
    of whole sentences dealt out anew.
    """

    senses: Tensor
    sentences: Tensor
    shuffled: Tensor

    @classmethod
    def of(cls, senses: list[int], sentences: list[int], *, shuffles: int = SHUFFLES) -> Design:
        """Return the design with its shuffles, the same each time."""
        labels, places = torch.tensor(senses), torch.tensor(sentences)
        of_sentence = torch.zeros(int(places.max()) + 1, dtype=torch.long)
        of_sentence[places] = labels
        generator = torch.Generator().manual_seed(0)
        order = torch.rand(shuffles, len(of_sentence), generator=generator).argsort(1)
        return cls(labels, places, of_sentence[order][:, places])


def nearest(vectors: Tensor, labels: Tensor, sentences: Tensor, *, centred: bool = True) -> Tensor:
    """Tell for each occurrence whether the centroid of its own sense is the nearest, by cosine.

    The centroids, and the mean of all that the space is centred on, are made without its sentence.
    Nothing of what is judged enters the judgement, and without senses to find the outcome is that
    of a guess. (Centred on a mean of all, or by distance, it would be worse than that.)

    Parameters
    ----------
    vectors : (N, d). labels : (P, N), one row for each way to give out the senses; in each way
        every sense has two sentences at least. sentences : (N,).
    centred : whether cosines are taken around the mean, as the vectors of a model lie in a narrow
        cone around it (Ethayarajh 2019, arXiv:1909.00512).

    Returns
    -------
    (P, N), 1 for its own sense, 0 for another, 1 / t where t senses tie.
    """
    k, n = int(labels.max()) + 1, len(vectors)
    same = (sentences[:, None] == sentences).double()
    gram = vectors.double() @ vectors.double().T
    size = max(1, _AT_ONCE // (n * k))
    parts = [labels[start : start + size] for start in range(0, len(labels), size)]
    return torch.cat([_judge(gram, part, same, k, centred=centred) for part in parts])


def _judge(gram: Tensor, labels: Tensor, same: Tensor, k: int, *, centred: bool) -> Tensor:
    """Judge occurrences i = 1 … N by centroids of sense s, for each row of `labels`: (P, N)."""
    member = torch.nn.functional.one_hot(labels, k).double()  # (P, N, k)
    others, n = 1 - same, len(gram)
    summed, mine = gram @ member, (gram * same) @ member  # x · S_s, and the part of its sentence
    count = member.sum(1, keepdim=True) - same @ member
    dot = (summed - mine) / count
    square = (member * summed).sum(1, keepdim=True) - 2 * same @ (member * summed)
    square = (square + same @ (member * mine)) / count**2  # |centroid|², without its sentence
    own = gram.diagonal()[:, None].clone()
    if centred:
        rest = others.sum(1, keepdim=True)
        to_rest = gram.sum(0) - same @ gram  # (i, j): x_j · the sum of all but i's sentence
        middle = (others * to_rest).sum(1, keepdim=True) / rest**2  # |mean|²
        at = (others * gram).sum(1, keepdim=True) / rest  # x · mean
        cross = (others * to_rest) @ member / count / rest  # centroid · mean
        dot = dot - at - cross + middle
        square = square - 2 * cross + middle
        own = own - 2 * at + middle
    least = 1e-12 * gram.diagonal().mean().clamp(min=1e-300)
    length = (square.clamp(min=0) * own.clamp(min=0)).sqrt()
    there = (square > least) & (own > least)  # a vector that is the mean points nowhere
    cosine = torch.where(there, dot / length.clamp(min=1e-300), 0.0)
    tied = cosine >= cosine.amax(-1, keepdim=True) - _SAME
    hit = tied.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    assert hit.shape == (len(labels), n)
    return hit / tied.sum(-1)


def judge(vectors: Tensor, design: Design, *, centred: bool = True) -> tuple[Tensor, Tensor]:
    """Return what is right of the true senses (N,), and the accuracy of each shuffle (P,)."""
    how = design.sentences
    right = nearest(vectors, design.senses[None], how, centred=centred)[0]
    return right, nearest(vectors, design.shuffled, how, centred=centred).mean(1)


def score(vectors: Tensor, design: Design, right: Tensor, shuffled: Tensor) -> SenseScore:
    """Return the score of one kind of vector from what `judge` found."""
    low, high = interval(right, design.sentences)
    return SenseScore(
        accuracy=right.mean().item(),
        low=low,
        high=high,
        p_value=p_value(right.mean().item(), shuffled),
        shuffled=shuffled.quantile(0.95).item(),
        recalls=tuple(
            right[design.senses == sense].mean().item()
            for sense in range(int(design.senses.max()) + 1)
        ),
        silhouette=silhouette(vectors, design.senses),
    )


def p_value(accuracy: float, shuffled: Tensor) -> float:
    """Return how often shuffled senses do as well; never 0 (Phipson & Smyth 2010).

    >>> p_value(0.9, torch.tensor([0.5, 0.4, 0.9]))
    0.5
    """
    return (1 + int((shuffled >= accuracy - 1e-9).sum())) / (1 + len(shuffled))


def interval(right: Tensor, sentences: Tensor, *, resamples: int = SHUFFLES) -> tuple[float, float]:
    """Return the 95 % interval of an accuracy: a percentile bootstrap over sentences.

    Where all are right, or none, every resample agrees, and the bootstrap would claim certainty:
    there the end is the exact one of a binomial (Clopper & Pearson 1934).
    """
    total = int(sentences.max()) + 1
    hits = torch.zeros(total, dtype=torch.double).index_add_(0, sentences, right.double())
    count = torch.bincount(sentences, minlength=total)
    bound = 0.025 ** (1 / total)
    if hits.sum() in (0, len(right)):
        return (bound, 1.0) if hits.any() else (0.0, 1 - bound)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(total, (resamples, total), generator=generator)
    found = hits[drawn].sum(1) / count[drawn].sum(1)
    low, high = found.quantile(torch.tensor([0.025, 0.975], dtype=torch.double)).tolist()
    return low, high


def silhouette(vectors: Tensor, labels: Tensor) -> float:
    """Return the mean silhouette by cosine distance around the mean (Rousseeuw 1987)."""
    from sklearn.metrics import silhouette_score

    around = vectors - vectors.mean(0)
    return float(silhouette_score(around.numpy(), labels.numpy(), metric="cosine"))


def main_plane(vectors: Tensor) -> tuple[Tensor, tuple[float, float]]:
    """Return (N, 2) places along the two main directions, and the share of variance of each.

    Principal components of the centred vectors (N, d): they do not know the senses.
    """
    around = vectors - vectors.mean(0)
    U, S, _ = torch.linalg.svd(around, full_matrices=False)
    total = S.square().sum().clamp(min=1e-300)
    places = torch.zeros(len(vectors), 2, dtype=vectors.dtype)
    places[:, : min(2, len(S))] = (U * S)[:, :2]
    shares = torch.zeros(2, dtype=vectors.dtype)
    shares[: len(S)] = (S.square() / total)[:2]
    return places, (shares[0].item(), shares[1].item())


def align(planes: Tensor, start: int) -> Tensor:
    """Turn each plane (…, N, 2) to its neighbour, from `start` outwards to both ends.

    Rotated, or mirrored, so that the same occurrences lie nearest to where they lay (orthogonal
    Procrustes; Schönemann 1966). Distances within a plane stay.
    """
    turned = planes.clone()
    for order in (range(start + 1, len(planes)), range(start - 1, -1, -1)):
        for at in order:
            before = turned[at - 1 if at > start else at + 1]
            U, _, V = torch.linalg.svd(planes[at].T @ before)
            turned[at] = planes[at] @ (U @ V)
    return turned
