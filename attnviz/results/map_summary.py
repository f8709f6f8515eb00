"""What is kept of a map that is too large to be kept."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class MapSummary:
    """What is kept of the m × n weights of each of H heads.

    Attributes
    ----------
    cell : how many rows and columns a cell of the pooled maps joins; the last may be smaller.
    mean, largest : (H, ⌈m / cell⌉, ⌈n / cell⌉), the mean and the largest weight in each cell.
    received : (H, n), the weight that all queries give to a key.
    entropy : (H, m), of each row, in nats.
    distance : (H, m), the mean distance from a query to what it reads, in tokens.
    itself, previous, first : (H, m), the weight of a query for its own position, the one before,
        and the first of the text.
    marked : (H, m), the weight of a query for the keys that were marked; 0 where none were.
    lse : (H, m), the log-sum-exp of each row of scores, sinks among them.
    empty : (m,), queries that may read no key; all their other numbers are 0.
    top_keys, top_weights : (H, m, k), the keys with the largest weights and these, largest first;
        -1 and 0 where a row has fewer keys. k is 0 where none were asked for.
    """

    cell: int
    mean: Tensor
    largest: Tensor
    received: Tensor
    entropy: Tensor
    distance: Tensor
    itself: Tensor
    previous: Tensor
    first: Tensor
    marked: Tensor
    lse: Tensor
    empty: Tensor
    top_keys: Tensor
    top_weights: Tensor


def cell_sizes(length: int, cell: int) -> Tensor:
    """Return how many of so many rows, or columns, each cell joins; the last may join fewer.

    >>> cell_sizes(7, 3).tolist()
    [3, 3, 1]
    """
    return (length - torch.arange(0, length, cell)).clamp(max=cell)
