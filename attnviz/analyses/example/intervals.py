"""Matrices that were rounded, and what that can do at most to all that is computed from them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attnviz.formula.attention import masked_scores, softmax


@dataclass(frozen=True, eq=False)
class Rounded:
    """A matrix, how far from each cell the unrounded number can lie, and what was rounded.

    sources : (stage, head) of the printed matrices that it comes from.
    """

    value: Tensor
    slack: Tensor
    sources: frozenset[tuple[str, int]] = frozenset()

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        m, n = self.value.shape
        return m, n

    @property
    def mT(self) -> Rounded:  # noqa: N802
        """The transposed matrix."""
        return Rounded(self.value.mT, self.slack.mT, self.sources)

    def __matmul__(self, other: Rounded) -> Rounded:
        """|(a ± δ)(b ± ε) - ab| is at most |a| ε + δ (|b| + ε)."""
        slack = self.value.abs() @ other.slack + self.slack @ (other.value.abs() + other.slack)
        return Rounded(self.value @ other.value, slack, self.sources | other.sources)

    def __mul__(self, factor: float) -> Rounded:
        """Scale it."""
        return Rounded(self.value * factor, self.slack * abs(factor), self.sources)

    def beside(self, *others: Rounded) -> Rounded:
        """Put others to the right of it."""
        each = (self, *others)
        return Rounded(
            torch.cat([one.value for one in each], -1),
            torch.cat([one.slack for one in each], -1),
            frozenset().union(*(one.sources for one in each)),
        )

    def softmax(self, mask: Tensor | None = None) -> Rounded:
        """A weight is least where its own score is least and all others are largest."""
        low, value, high = (
            shifted if mask is None else masked_scores(shifted, mask)
            for shifted in (self.value - self.slack, self.value, self.value + self.slack)
        )
        weights = softmax(value)
        slack = torch.maximum(weights - _mixed(low, high), _mixed(high, low) - weights)
        return Rounded(weights, slack.clamp(min=0), self.sources)


def _mixed(own: Tensor, others: Tensor) -> Tensor:
    """Return each cell's weight with its own score from one matrix and the rest from another."""
    itself = torch.eye(own.shape[-1], dtype=torch.bool)
    mixed = torch.where(itself, own.unsqueeze(-2), others.unsqueeze(-2))
    return softmax(mixed).diagonal(dim1=-2, dim2=-1)
