"""The exact split of the difference from a reference without context (DeepLIFT multipliers)."""

from __future__ import annotations

from torch import Tensor

from attnviz.attribution.decomposition import credits
from attnviz.attribution.methods import method
from attnviz.attribution.target import Score


@method("split")
def split(score: Score) -> Tensor:
    """Return the contribution of each token over all paths. They add up to the difference.

    In the reference every token may attend only to itself, to special tokens and to the sink.
    """
    return credits(score.readout, score.twice, score.direction, score.gate)
