"""The plane of each head in which its queries and keys meet."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import pad

from attnviz.analyses.explore.result import QueryKeyPlane
from attnviz.results import AttentionRecord

_POINTS = 40  # queries, and keys, of a plane


def planes_of(
    records: Sequence[AttentionRecord], numbers: Sequence[int] = ()
) -> list[QueryKeyPlane]:
    """Return a plane for each head of an attention: from the scores of queries and keys.

    The scores, centered for each query, are the inner products of places, as far as two dimensions
    allow (a biplot of their singular value decomposition, Gabriel 1971).

    numbers : of the images of the records, whose patches are drawn.
    """
    sides: list[tuple[torch.Tensor, tuple[str, ...], tuple[tuple[int, int], ...]]] = []
    for side in ("query", "key"):
        vectors: list[torch.Tensor] = []
        labels: list[str] = []
        places: list[tuple[int, int]] = []
        for index, record in enumerate(records):
            axis, X = getattr(record, f"{side}_axis"), getattr(record, side).double().cpu()
            ordinary = [n for n, special in enumerate(axis.special) if not special]
            vectors.append(X.repeat_interleave(record.heads // len(X), dim=0)[:, ordinary])
            labels += [axis.labels[n] for n in ordinary]
            if numbers and axis.patches is not None:
                places += [(numbers[index], n) for n in ordinary]
        chosen = torch.linspace(0, len(labels) - 1, min(_POINTS, len(labels)), device="cpu").long()
        of_chosen = tuple(labels[n] for n in chosen.tolist())
        where = tuple(places[n] for n in chosen.tolist() if places)
        sides.append((torch.cat(vectors, dim=1)[:, chosen], of_chosen, where))
    (Q, query_labels, query_places), (K, key_labels, key_places) = sides
    scores = (Q @ K.mT) * records[0].scale
    centered = scores - scores.mean(-1, keepdim=True)
    U, S, V = torch.linalg.svd(centered, full_matrices=False)
    planes = []
    for u, s, v in zip(U, S, V, strict=True):
        size = s[:2].sqrt()
        lacking = (0, 2 - len(size))  # dimensions, where there is a single query or key
        planes.append(
            QueryKeyPlane(
                tokens=query_labels,
                queries=pad(u[:, :2] * size, lacking),
                keys=pad(v[:2].mT * size, lacking),
                explained=float((s[:2] ** 2).sum() / (s**2).sum().clamp(min=1e-300)),
                key_tokens=() if key_labels == query_labels else key_labels,
                query_places=query_places,
                key_places=() if key_places == query_places else key_places,
            )
        )
    return planes
