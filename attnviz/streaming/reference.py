"""The reference in torch: the weights of a block of rows at a time, by the formula, and reduced."""

from __future__ import annotations

from math import log

import torch
from torch import Tensor
from torch.nn.functional import pad

from attnviz.results import MapSummary, cell_sizes
from attnviz.runtime.progress import track
from attnviz.streaming.scores import NEVER, ScoreSpec

SCORES = {"cpu": 2**18, "cuda": 2**25}  # of a block: what fits a core's cache; what fills a GPU
_FEWEST_ROWS = 64  # of a block: with fewer, products are slow


class MapBuffers:
    """The numbers of a `MapSummary`, for all heads, and the attention vectors.

    Each engine fills them: `mean` and `received` with sums, `entropy` in bits.

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

    def summary(self, empty: Tensor) -> MapSummary:
        """Return the summary; `empty` (m,) says which rows read nothing. Call it once."""
        m, n = self.entropy.shape[1], self.received.shape[1]
        heights, widths = (cell_sizes(size, self.cell).to(empty.device) for size in (m, n))
        itself, previous, first = self.near.unbind(1)
        return MapSummary(
            cell=self.cell,
            mean=self.mean.div_(heights[:, None] * widths),
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


def reduce_map(spec: ScoreSpec, buffers: MapBuffers) -> None:
    """Fill the buffers, block by block: some rows of one head, or of several if a map is short."""
    H, m, n = spec.shape
    scores = SCORES.get(spec.query.device.type, SCORES["cuda"])
    rows = min(m, max(_FEWEST_ROWS, scores // n))
    count = max(1, scores // (m * n))
    for start in track(range(0, H, count)):
        heads = slice(start, min(start + count, H))
        selected = spec.select_heads(range(heads.start, heads.stop))
        value = None
        if buffers.value is not None:
            value = spec.of_heads(buffers.value, range(heads.start, heads.stop)).float()
        for first in range(0, m, rows):
            _reduce_rows(selected, value, buffers, heads, slice(first, min(first + rows, m)))


def _reduce_rows(
    spec: ScoreSpec, value: Tensor | None, buffers: MapBuffers, heads: slice, rows: slice
) -> None:
    """Reduce some rows of some heads; `spec` and `value` are those of these heads."""
    cell, device = buffers.cell, spec.query.device
    columns = spec.columns(rows)
    first = columns.start // cell * cell  # of a cell
    columns = slice(first, columns.stop)
    S = spec.scores(rows, columns)
    if buffers.top:
        top_scores, top_keys = S.topk(min(buffers.top, S.shape[2]))

    # The softmax, with the sinks beside the scores, and its log-sum-exp.
    highest = S.amax(-1)
    sinks = spec.sinks_by_row
    if sinks is not None:
        sinks = sinks[:, rows] if sinks.shape[1] > 1 else sinks
        highest = torch.maximum(highest, sinks)
    highest = highest.clamp(min=NEVER)  # -∞ - -∞ is NaN
    P = S.sub_(highest[..., None]).exp_()
    total = P.sum(-1)
    if sinks is not None:
        total += (sinks - highest).exp()
    P.div_(total.clamp(min=1)[..., None])  # the largest score adds 1, so only empty rows have less
    buffers.lse[heads, rows] = highest + total.log()

    i = torch.arange(rows.start, rows.stop, device=device)
    j = torch.arange(columns.start, columns.stop, device=device)
    position = i + spec.visible.offset  # of the queries among the keys
    distance = (position[:, None].float() - j).abs_()
    buffers.entropy[heads, rows] = torch.special.entr(P).sum(-1) / log(2)
    buffers.distance[heads, rows] = (P * distance).sum(-1)
    buffers.received[heads, columns] += P.sum(1)
    if buffers.marks is not None:
        buffers.marked[heads, rows] = P @ buffers.marks[columns].float()
    if value is not None:
        buffers.attended[heads, rows] = P @ value[:, columns]
    near = torch.stack([position, position - 1, torch.zeros_like(position)]) - first
    inside = (near >= 0) & (near < P.shape[2])
    near = near.clamp(0, P.shape[2] - 1).mT.expand(len(P), -1, -1)
    buffers.near[heads, :, rows] = P.gather(2, near).mT * inside
    if buffers.top:
        k = top_keys.shape[2]
        buffers.top_weights[heads, rows, :k] = P.gather(2, top_keys)
        top_keys = (top_keys + first).masked_fill(top_scores == -torch.inf, -1)
        buffers.top_keys[heads, rows, :k] = top_keys.int()

    # Pool the columns of each cell, then the rows.
    by_cell = pad(P, (0, -P.shape[2] % cell)).view(*P.shape[:2], -1, cell)
    across = slice(first // cell, first // cell + by_cell.shape[2])
    down = i // cell
    buffers.mean[heads, :, across].index_add_(1, down, by_cell.sum(-1))
    largest = by_cell.amax(-1)
    index = down[:, None].expand_as(largest)
    buffers.largest[heads, :, across].scatter_reduce_(1, index, largest, "amax")
