"""What is filled in while a map is gone over, by strips or by tiles."""

from __future__ import annotations

from math import log

import torch
from torch import Tensor

from attnviz.results import MapSummary, cell_sizes
from attnviz.streaming.scores import NEVER, Scoring


class Kept:
    """The numbers of all heads, as a `MapSummary` has them, and the attention vectors.

    cells, top, marked : as of `summarise`. value : (G, n, d_v), where the vectors are wanted.
    """

    def __init__(
        self, scoring: Scoring, cells: int, top: int, marked: Tensor | None, value: Tensor | None
    ) -> None:
        H, m, n = scoring.shape
        self.value, self.marks = value, marked
        self.cell, self.top = -(-max(m, n) // cells), min(top, n)

        def made(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(H, *shape, dtype=dtype, device=scoring.query.device)

        self.mean = made(-(-m // self.cell), -(-n // self.cell))
        self.largest = torch.zeros_like(self.mean)
        self.received = made(n, dtype=torch.float64)
        self.lse, self.entropy, self.distance, self.marked = (made(m) for _ in range(4))
        self.near = made(3, m)  # of each row's weights: for itself, the previous, the first key
        self.top_keys, self.top_weights = (
            made(m, self.top, dtype=torch.int32) - 1,
            made(m, self.top),
        )
        wide = 0 if value is None else value.shape[-1]
        attended = torch.zeros(m, H, wide, device=scoring.query.device)
        self.attended = attended.transpose(0, 1)  # one row after the other, as a model goes on

    def find_near(self, scoring: Scoring) -> None:
        """Fill in `near`, once `lse` is known."""
        row = torch.arange(scoring.shape[1], device=self.lse.device) + scoring.visible.offset
        lse = self.lse.masked_fill(self.lse == -torch.inf, -NEVER)
        for i, keys in enumerate((row, row - 1, torch.zeros_like(row))):
            self.near[:, i] = (scoring.pairs(keys) - lse).exp()

    def summary(self, empty: Tensor) -> MapSummary:
        """Return what was filled in; `mean` and `received` hold sums, `entropy` is in bits."""
        m, n = self.entropy.shape[1], self.received.shape[1]
        heights, widths = (cell_sizes(size, self.cell).to(empty.device) for size in (m, n))
        itself, previous, first = self.near.unbind(1)
        return MapSummary(
            cell=self.cell,
            mean=self.mean / (heights[:, None] * widths),
            largest=self.largest,
            received=self.received.float(),
            entropy=self.entropy * log(2),
            distance=self.distance,
            itself=itself,
            previous=previous,
            first=first,
            marked=self.marked,
            lse=self.lse,
            empty=empty,
            top_keys=self.top_keys,
            top_weights=self.top_weights,
        )
