"""Whether the rows of the maps are the tokens that their labels name."""

from __future__ import annotations

import torch
from torch import Tensor

from attnviz.results import PositionCheck

# Rounding in batches of different rows, relative to the longest key: replaced tokens move by 0.1.
_MOVED = 1e-3


def check_positions(moved: tuple[Tensor, Tensor] | None, *, causal: bool) -> PositionCheck | None:
    """Return which of the replaced tokens moved their own key most, and none before it if causal.

    moved : the replaced positions (P,), and how far each key moved (P, T); None where not known.
    """
    if moved is None or not len(moved[0]):
        return None
    replaced, distances = moved
    own = distances.gather(1, replaced[:, None])[:, 0]
    agrees = (distances.argmax(1) == replaced) & (own > _MOVED)
    if causal:
        before = torch.arange(distances.shape[1], device="cpu") < replaced[:, None]
        agrees &= (distances.masked_fill(~before, 0.0) < _MOVED).all(1)
    failed = tuple(
        (int(position), int(row.argmax()))
        for position, row, passed in zip(replaced, distances, agrees, strict=True)
        if not passed
    )
    return PositionCheck(len(replaced), failed)
