"""Occurrences in two dimensions, so that the planes of all layers can be compared."""

from __future__ import annotations

import torch
from torch import Tensor


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
