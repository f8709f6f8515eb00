"""The parts of sentences about numbers: of titles, captions, headlines and lines of a terminal.

What would make a sentence untrue is asked here, once for all that say it: did the model read the
word, or an unknown token in its place? Do the rows sum to 1? Are special tokens left out of the
weights? Is it one head, or the mean of several?
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from attnviz.results import AxisGeometry, Special
from attnviz.results.text import literal

LOGARITHMIC_FROM = 48  # keys: among so many, most weights are too small for a linear scale
SIGNED = "linear attention: weights are signed, and rows need not sum to 1"
ON_LOGARITHMIC_SCALE = "colors on a logarithmic scale"
_MOST_OF_A_ROW = 1.01  # what the weights of a query sum to, with rounding


def is_logarithmic(keys: int) -> bool:
    """Return whether weights of a number of keys have a logarithmic scale."""
    return keys >= LOGARITHMIC_FROM


def quoted(word: str, longest: int = 24) -> str:
    """Return a word of a text in quotation marks, as it can be drawn."""
    return f"“{literal(word, longest)}”"


def were_read(side: AxisGeometry, *places: int) -> bool:
    """Return whether the model read these words, and no unknown tokens in their place."""
    return not any(any(side.unknown[place : place + 1]) for place in places)


def other_sums(weights: Tensor) -> str:
    """Return what rows of weights (…, n) sum to, "0.5 to 4"; "" where shares of them sum to 1."""
    sums = weights.float().sum(-1)
    if not sums.max() > _MOST_OF_A_ROW:
        return ""
    least, most = (f"{float(end):.3g}" for end in sums[sums > 0].aminmax())
    return least if least == most else f"{least} to {most}"


def of_attention(share: float, whose: str = "their", special: Special = "keep") -> str:
    """Return a share as "47% of their attention", and whether special tokens are left out of it."""
    return f"{share:.0%} of {whose} attention{', special tokens aside' * (special == 'remove')}"


def whose(layers: Sequence[int], heads: Sequence[int]) -> str:
    """Return "this head's", or "these heads'" for a mean."""
    return "this head's" if len(layers) * len(heads) == 1 else "these heads'"
