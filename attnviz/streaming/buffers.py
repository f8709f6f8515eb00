"""The buffers that an engine fills while it reduces a map."""

from __future__ import annotations

from math import log

import torch
from torch import Tensor

from attnviz.results import MapSummary, cell_sizes
from attnviz.streaming.scores import NEVER, ScoreSpec


class MapBuffers:
    """The numbers of a `MapSummary`, for all heads, and the attention vectors.

    `mean` and `received` hold sums, `entropy` is in bits, until `summary` is called.

    Parameters
    ----------
    cells, top, marked
        As in `attnviz.streaming.summarise`.
    value : Tensor, optional
        (G, n, d_v), to compute the attention vectors too.
    """

    def __init__(
        self, spec: ScoreSpec, cells: int, top: int, marked: Tensor | None, value: Tensor | None
    ) -> None:
        H, m, n = spec.shape
        self.value, self.marks = value, marked
        self.cell, self.top = -(-max(m, n) // cells), min(top, n)

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(H, *shape, dtype=dtype, device=spec.query.device)

        self.mean = zeros(-(-m // self.cell), -(-n // self.cell))
        self.largest = torch.zeros_like(self.mean)
        self.received = zeros(n, dtype=torch.float64)
        self.lse, self.entropy, self.distance, self.marked = (zeros(m) for _ in range(4))
        self.near = zeros(3, m)  # the weights of each row for itself, the previous, the first key
        self.top_keys = zeros(m, self.top, dtype=torch.int32) - 1
        self.top_weights = zeros(m, self.top)
        width = 0 if value is None else value.shape[-1]
        attended = torch.zeros(m, H, width, device=spec.query.device)
        self.attended = attended.transpose(0, 1)  # row after row, as the model continues with it

    def fill_near(self, spec: ScoreSpec) -> None:
        """Fill `near`, once `lse` is known."""
        row = torch.arange(spec.shape[1], device=self.lse.device) + spec.visible.offset
        lse = self.lse.masked_fill(self.lse == -torch.inf, -NEVER)
        for i, keys in enumerate((row, row - 1, torch.zeros_like(row))):
            self.near[:, i] = (spec.pairs(keys) - lse).exp()

    def summary(self, empty: Tensor) -> MapSummary:
        """Return the summary of the filled buffers; `empty` (m,) tells which rows read nothing."""
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
