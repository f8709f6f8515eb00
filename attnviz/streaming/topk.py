"""The keys of largest weight, exactly, without keeping the scores of a row or sorting them.

Of each lot of keys only the maximum is kept. The k lots with the largest maxima hold the k largest
scores: each of these is the maximum of its lot, or stands behind a larger one in it. Only the
scores of these lots are computed again and looked through.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attnviz.streaming.scores import Scoring

LOT = 25  # keys; few, so that little is computed again, but enough that their maxima are little
_ROOM = 2**19  # numbers in the keys of some rows' lots, which a core's cache can hold


class Lots:
    """The maxima of lots of keys, for the rows of a block.

    The last lot of a cell may be shorter than the others.

    cells : how many cells the keys have, all whole. cell, lot : of how many keys they are.
    """

    def __init__(self, heads: int, cells: int, cell: int, lot: int) -> None:
        self.heads, self.cells, self.cell, self.lot = heads, cells, cell, lot
        self.each = -(-cell // lot)  # of a cell

    def begin(self, height: int, device: torch.device) -> None:
        """Make room for that many rows."""
        self.highest = torch.empty(self.heads, self.cells * self.each, height, device=device)

    def views(self, S: Tensor, columns: slice) -> list[tuple[Tensor, Tensor]]:
        """Return what of S (h, keys, rows) to reduce along its dim 3, and where to put it."""
        inside = min(self.cell, S.shape[1])
        first = columns.start // self.cell * self.each + columns.start % self.cell // self.lot
        count, whole = -(-inside // self.lot), inside // self.lot
        S = split(S, 1, inside)
        into = split(self.highest[:, first : first + S.shape[1] * count], 1, count)
        cut = whole * self.lot
        found = [(split(S[:, :, :cut], 2, self.lot), into[:, :, :whole])]
        if cut < inside:
            found.append((S[:, :, None, cut:], into[:, :, whole:]))
        return found

    def of_cells(self, cells: slice) -> Tensor:
        """Return the maxima of the lots of some cells, (h, cells, lots of each, rows)."""
        return split(self.highest, 1, self.each)[:, cells]

    def largest(
        self, scoring: Scoring, heads: slice, rows: slice, cells: slice, highest: Tensor, k: int
    ) -> tuple[Tensor, Tensor]:
        """Return scores and keys (h, rows, k or less), the largest first.

        highest : (h, cells, rows), the maxima of these cells. A key that is hidden has a score of
        NEVER.
        """
        chosen = highest.topk(min(k, highest.shape[1]), dim=1).indices
        lots = self.of_cells(cells)[..., : highest.shape[2]].gather(
            1, chosen[:, :, None].expand(-1, -1, self.each, -1)
        )
        lots = lots.flatten(1, 2)
        at = lots.topk(min(k, lots.shape[1]), dim=1).indices
        cell = cells.start + chosen.gather(1, at // self.each)
        within = (at % self.each * self.lot).mT[..., None] + torch.arange(
            self.lot, device=at.device
        )
        keys = (cell * self.cell).mT[..., None] + within
        keys = keys.masked_fill_(within >= self.cell, -1).flatten(2)
        step = max(1, _ROOM // (keys[:, 0].numel() * scoring.key.shape[2]))
        parts = [
            scoring.listed(heads, slice(start, min(start + step, rows.stop)), some)
            for start, some in zip(
                range(rows.start, rows.stop, step), keys.split(step, dim=1), strict=True
            )
        ]
        found, which = torch.cat(parts, dim=1).topk(min(k, keys.shape[2]), dim=-1)
        return found, keys.gather(2, which)


def split(each: Tensor, dim: int, size: int) -> Tensor:
    """Return a view with one dim as two, the second of that size."""
    shape = each.shape
    return each.view(*shape[:dim], -1, size, *shape[dim + 1 :])
