"""The mean of three methods, whose errors differ."""

from __future__ import annotations

import torch
from torch import Tensor

from attnviz.attribution.methods import METHODS, method
from attnviz.attribution.target import Score

MEMBERS = "split", "gradient-attention", "direct-attribution"


@method("ensemble")
def ensemble(score: Score) -> Tensor:
    """Return the mean of split, gradient × attention and direct attribution.

    Each is divided by the sum of its absolute values over the tokens that are ranked, so that all
    count alike. On next tokens of SmolLM2 the mean ranks words more like interventions than each
    of the three does.
    """
    ranked = [
        row
        for row, special in enumerate(score.special)
        if not special and row != score.sink and row not in score.readout.positions
    ]
    total = torch.zeros(score.ids.shape[1], dtype=torch.float64, device="cpu")
    for name in MEMBERS:
        attribution = METHODS[name](score).detach().double().cpu()
        size = attribution[ranked].abs().sum()
        total += attribution / (size if size > 0 else 1.0) / len(MEMBERS)
    return total
