"""Measure how well senses are separated: nearest centroids, permutation tests, silhouettes.

Everything follows from the Gram matrix of the vectors, so that thousands of shuffled senses are
classified at once, exactly like the true senses.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attnviz.analyses.senses.result import SenseScore

SHUFFLES = 2000  # permutations of the senses, and bootstrap resamples of the sentences
_TIE = 1e-6  # cosines that differ by less are tied
_BATCH = 2_000_000  # numbers of shuffled memberships at once


@dataclass(frozen=True, eq=False)
class PermutationDesign:
    """The sense and the sentence of each occurrence, and permutations of the senses.

    Attributes
    ----------
    senses : Tensor
        The sense of each occurrence, (N,), from 0 to k - 1.
    sentences : Tensor
        The sentence of each occurrence, (N,), from 0 to S - 1.
    shuffled : Tensor
        The senses, permuted between whole sentences, (P, N).
    """

    senses: Tensor
    sentences: Tensor
    shuffled: Tensor

    @classmethod
    def of(
        cls, senses: list[int], sentences: list[int], *, shuffles: int = SHUFFLES
    ) -> PermutationDesign:
        """Return the design with its permutations, which are the same every time."""
        labels, places = torch.tensor(senses), torch.tensor(sentences)
        of_sentence = torch.zeros(int(places.max()) + 1, dtype=torch.long)
        of_sentence[places] = labels
        generator = torch.Generator().manual_seed(0)
        order = torch.rand(shuffles, len(of_sentence), generator=generator).argsort(1)
        return cls(labels, places, of_sentence[order][:, places])


def nearest(vectors: Tensor, labels: Tensor, sentences: Tensor, *, centered: bool = True) -> Tensor:
    """Return whether the nearest centroid of each occurrence is that of its own sense, by cosine.

    The centroids, and the mean on which vectors are centered, are computed without its sentence. If
    vectors do not depend on the sense, the accuracy is therefore that of guessing.

    Parameters
    ----------
    vectors : Tensor
        The vectors, (N, d).
    labels : Tensor
        Assignments of senses, (P, N). In each, every sense has at least two sentences.
    sentences : Tensor
        The sentence of each occurrence, (N,).
    centered : bool, default True
        Whether to center the vectors, which lie in a narrow cone (Ethayarajh 2019,
        arXiv:1909.00512).

    Returns
    -------
    Tensor
        (P, N): 1 for the own sense, 0 for another, 1 / t if t senses tie.
    """
    k, n = int(labels.max()) + 1, len(vectors)
    same = (sentences[:, None] == sentences).double()
    gram = vectors.double() @ vectors.double().T
    size = max(1, _BATCH // (n * k))
    parts = [labels[start : start + size] for start in range(0, len(labels), size)]
    return torch.cat([_classify(gram, part, same, k, centered=centered) for part in parts])


def _classify(gram: Tensor, labels: Tensor, same: Tensor, k: int, *, centered: bool) -> Tensor:
    """Classify occurrences by the nearest centroid for each row of `labels`, (P, N)."""
    member = torch.nn.functional.one_hot(labels, k).double()  # (P, N, k)
    others, n = 1 - same, len(gram)
    summed, mine = gram @ member, (gram * same) @ member  # x · S_s, and the part of its sentence
    count = member.sum(1, keepdim=True) - same @ member
    dot = (summed - mine) / count
    square = (member * summed).sum(1, keepdim=True) - 2 * same @ (member * summed)
    square = (square + same @ (member * mine)) / count**2  # |centroid|², without its sentence
    own = gram.diagonal()[:, None].clone()
    if centered:
        rest = others.sum(1, keepdim=True)
        to_rest = gram.sum(0) - same @ gram  # (i, j): x_j · the sum of all but i's sentence
        middle = (others * to_rest).sum(1, keepdim=True) / rest**2  # |mean|²
        at = (others * gram).sum(1, keepdim=True) / rest  # x · mean
        cross = (others * to_rest) @ member / count / rest  # centroid · mean
        dot = dot - at - cross + middle
        square = square - 2 * cross + middle
        own = own - 2 * at + middle
    smallest = 1e-12 * gram.diagonal().mean().clamp(min=1e-300)
    length = (square.clamp(min=0) * own.clamp(min=0)).sqrt()
    defined = (square > smallest) & (own > smallest)  # a vector at the mean has no direction
    cosine = torch.where(defined, dot / length.clamp(min=1e-300), 0.0)
    tied = cosine >= cosine.amax(-1, keepdim=True) - _TIE
    hit = tied.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    assert hit.shape == (len(labels), n)
    return hit / tied.sum(-1)


def classify(
    vectors: Tensor, design: PermutationDesign, *, centered: bool = True
) -> tuple[Tensor, Tensor]:
    """Return the correctness of each occurrence (N,), and the accuracy of each permutation (P,)."""
    sentences = design.sentences
    right = nearest(vectors, design.senses[None], sentences, centered=centered)[0]
    return right, nearest(vectors, design.shuffled, sentences, centered=centered).mean(1)


def score(
    vectors: Tensor, design: PermutationDesign, right: Tensor, shuffled: Tensor
) -> SenseScore:
    """Return the score of one kind of vector from the output of `classify`."""
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
    """Return the p-value of a permutation test; never 0 (Phipson & Smyth 2010).

    >>> p_value(0.9, torch.tensor([0.5, 0.4, 0.9]))
    0.5
    """
    return (1 + int((shuffled >= accuracy - 1e-9).sum())) / (1 + len(shuffled))


def interval(right: Tensor, sentences: Tensor, *, resamples: int = SHUFFLES) -> tuple[float, float]:
    """Return the 95% interval of an accuracy: a percentile bootstrap over sentences.

    If all or none are right, every resample is the same. The interval is then the exact one of a
    binomial (Clopper & Pearson 1934).
    """
    total = int(sentences.max()) + 1
    hits = torch.zeros(total, dtype=torch.double).index_add_(0, sentences, right.double())
    count = torch.bincount(sentences, minlength=total)
    bound = 0.025 ** (1 / total)
    if hits.sum() in (0, len(right)):
        return (bound, 1.0) if hits.any() else (0.0, 1 - bound)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(total, (resamples, total), generator=generator)
    accuracies = hits[drawn].sum(1) / count[drawn].sum(1)
    low, high = accuracies.quantile(torch.tensor([0.025, 0.975], dtype=torch.double)).tolist()
    return low, high


def silhouette(vectors: Tensor, labels: Tensor) -> float:
    """Return the mean silhouette of centered vectors by cosine distance (Rousseeuw 1987)."""
    from sklearn.metrics import silhouette_score

    centered = vectors - vectors.mean(0)
    return float(silhouette_score(centered.numpy(), labels.numpy(), metric="cosine"))


def main_plane(vectors: Tensor) -> tuple[Tensor, tuple[float, float]]:
    """Return the first two principal components (N, 2), and the share of variance of each.

    The senses are not used.
    """
    centered = vectors - vectors.mean(0)
    U, S, _ = torch.linalg.svd(centered, full_matrices=False)
    total = S.square().sum().clamp(min=1e-300)
    places = torch.zeros(len(vectors), 2, dtype=vectors.dtype)
    places[:, : min(2, len(S))] = (U * S)[:, :2]
    shares = torch.zeros(2, dtype=vectors.dtype)
    shares[: len(S)] = (S.square() / total)[:2]
    return places, (shares[0].item(), shares[1].item())


def align(planes: Tensor, start: int) -> Tensor:
    """Rotate or mirror each plane (…, N, 2) to fit its neighbor, from `start` to both ends.

    Orthogonal Procrustes (Schönemann 1966). Distances within a plane do not change.
    """
    aligned = planes.clone()
    for order in (range(start + 1, len(planes)), range(start - 1, -1, -1)):
        for state in order:
            neighbor = aligned[state - 1 if state > start else state + 1]
            U, _, V = torch.linalg.svd(planes[state].T @ neighbor)
            aligned[state] = planes[state] @ (U @ V)
    return aligned
