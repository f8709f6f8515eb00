"""What heads are named by what they do most, and which are alike."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attnviz.analyses.survey.bootstrap import Estimates, Floats

ROLES = {
    "self": "own token",
    "previous": "previous token",
    "next": "next token",
    "same token": "same token",
    "induction": "induction",
    "punctuation": "punctuation",
}
RESTS = {"first": "rests on the first token", "separators": "rests on special tokens"}
_LEAST = 0.25  # of its weight, above what even weights give: what a head is named for
_RESTING = 0.5  # the same, of where it rests when it has nothing to say
_SURE = 0.01


def name_roles(statistics: list[str], excess: Floats, tested: Estimates) -> list[str]:
    """Return the role of each head, or "".

    A head is named for the share of its weight that exceeds what even weights would give by most,
    on one half of the texts, and keeps that name if the excess is sure on the other half. Where it
    rests is named only if it does nothing else.

    Parameters
    ----------
    excess : (K, S), the mean excess on the first half. tested : of the excess on the other half,
        K · S numbers, head by head.
    """
    low, p_value = (each.reshape(excess.shape) for each in (tested.low, tested.p_value))
    named = []
    for head, row in enumerate(np.nan_to_num(excess, nan=-np.inf)):
        found = ""
        for names, least in ((ROLES, _LEAST), (RESTS, _RESTING)):
            at = max(map(statistics.index, names), key=row.__getitem__)
            sure = low[head, at] > 0 and p_value[head, at] < _SURE
            if not found and row[at] >= least and sure:
                found = names[statistics[at]]
        named.append(found)
    return named


def cluster(distances: Floats, most: int = 8) -> NDArray[np.int64]:
    """Return which heads are alike, the largest cluster first.

    By Ward's method, for the distances are Euclidean (Endres & Schindelin 2003); average linkage
    would set one head apart from all others. Of 2 to `most` clusters the number with the largest
    silhouette.

    distances : (K, K), between heads.
    """
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform
    from sklearn.metrics import silhouette_score

    best, found = -np.inf, np.zeros(len(distances), np.int64)
    if len(distances) < 3:
        return found
    tree = linkage(squareform(distances, checks=False), "ward")
    for count in range(2, min(most, len(distances) - 1) + 1):
        labels = fcluster(tree, count, "maxclust") - 1
        if labels.any():  # heads that are all the same make one
            score = silhouette_score(distances, labels, metric="precomputed")
            if score > best:
                best, found = score, labels
    order = np.argsort(-np.bincount(found), kind="stable")
    return np.argsort(order)[found]
