"""The keys of largest weight, exactly, without sorting a row.

Keys are dealt into as many lots as a tile is wide. The k lots with the largest maxima hold the k
largest scores: each of these is the maximum of its lot, or stands behind a larger one in it. Only k
lots are looked through.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnviz.streaming.scoring import NEVER
from attnviz.streaming.tiles import COLUMNS, ROWS

_BYTES = 2**25  # of the scores of some rows with all keys


class Top:
    """The largest of the rows of a block, tile after tile; a strip of their scores is kept."""

    def __init__(self, heads: int, n: int, k: int, device: torch.device) -> None:
        self.k = k
        count = -(-n // COLUMNS)
        self.rows = min(ROWS, max(8, _BYTES // (4 * heads * count * COLUMNS)))
        self.lots = torch.full((heads, self.rows, count, COLUMNS), NEVER, device=device)
        self.highest = torch.empty(heads, self.rows, COLUMNS, device=device)
        self.used = range(0)

    def begin(self, used: range, height: int) -> list[Tensor]:
        """Make ready for rows that use these tiles; return where their scores are to be put."""
        for tile in set(self.used) - set(used):
            self.lots[:, :, tile] = NEVER
        self.highest.fill_(NEVER)
        self.used = used
        return list(self.lots[:, :height].unbind(2))

    def see(self, S: Tensor) -> None:
        """Take note of the largest of each lot in a tile."""
        lots = self.highest[:, : S.shape[1]]
        torch.maximum(lots, S, out=lots)

    def take(self, height: int) -> tuple[Tensor, Tensor]:
        """Return weights and keys (h, rows, k); -1 where a row has fewer keys."""
        lots = self.lots[:, :height]  # (h, rows, per lot, lots)
        chosen = self.highest[:, :height].topk(min(self.k, COLUMNS), dim=-1).indices
        inside = lots.gather(3, chosen[:, :, None].expand(-1, -1, lots.shape[2], -1))
        logs, at = inside.flatten(2).topk(self.k, dim=-1)
        keys = at // chosen.shape[-1] * COLUMNS + chosen.gather(-1, at % chosen.shape[-1])
        return logs.exp2(), keys.masked_fill(logs <= NEVER / 2, -1).int()
