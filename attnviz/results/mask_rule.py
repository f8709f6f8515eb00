"""Which keys each query may read, as a rule: known for any tile, never stored as T×T."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attnviz.formula.attention import HIDDEN
from attnviz.results.base import Savable

_CELLS = 2**22  # of a mask that are looked at at once


@dataclass(frozen=True, eq=False)
class MaskRule(Savable):
    """What n keys m queries may read; all of them by default.

    Attributes
    ----------
    before, after : no key further than this ahead of the query, or behind it; None without a limit.
        A causal model has `after` = 0, a sliding window of w keys `before` = w - 1.
    offset : query i stands at key i + offset, as where m queries go on from a cache of n - m keys.
    keys : (n,), False for keys that nobody reads, such as padding; None where all are read.
    """

    before: int | None = None
    after: int | None = None
    offset: int = 0
    keys: Tensor | None = None

    @classmethod
    def of(cls, mask: Tensor) -> MaskRule | None:
        """Return the rule that an additive mask (m, n) follows; None where it is no such rule.

        mask : additive, or True for what is seen. Queries end where the keys do, as in every causal
            model.
        """
        m, n = mask.shape
        step = max(1, _CELLS // n)  # of the rows, so that nothing else is as large as the mask
        read, before, after = torch.zeros(n, dtype=torch.bool, device=mask.device), 0, 0
        for start, part in zip(range(0, m, step), torch.split(mask, step), strict=True):
            seen = part if part.dtype == torch.bool else part > HIDDEN
            if not (part.dtype == torch.bool or bool((part[seen] == 0).all())):
                return None
            read |= seen.any(0)
            rows = seen.any(1).nonzero().flatten()
            if len(rows):
                i = rows + start + n - m
                first = seen[rows].int().argmax(1)
                last = n - 1 - seen[rows].flip(1).int().argmax(1)
                before = max(before, int((i - first).max()))
                after = max(after, int((last - i).max()))
        rule = cls(
            before if before < n - 1 else None,
            after if after < n - 1 else None,
            n - m,
            None if read.all() else read,
        )
        j = torch.arange(n, device=mask.device)
        for start, part in zip(range(0, m, step), torch.split(mask, step), strict=True):
            seen = part if part.dtype == torch.bool else part > HIDDEN
            i = torch.arange(start, start + len(part), device=mask.device)[:, None] + n - m
            if not torch.equal(rule.hidden(i - j, slice(0, n), n), ~seen):
                return None
        return rule

    def rows(self, rows: slice) -> MaskRule:
        """Return the rule of some of the queries."""
        return replace(self, offset=self.offset + rows.start)

    def columns(self, rows: slice, n: int) -> tuple[int, int]:
        """Return the first key that some of the rows may read, and the one after the last."""
        first = 0 if self.before is None else max(0, rows.start + self.offset - self.before)
        end = n if self.after is None else min(n, rows.stop + self.offset + self.after)
        return (first, max(first, end))

    def hides(self, rows: slice, columns: slice, n: int) -> bool:
        """Whether something of a tile is hidden; columns from n on, which fill a tile, are."""
        nearest = rows.start + self.offset - (columns.stop - 1)
        farthest = rows.stop - 1 + self.offset - columns.start
        return (
            columns.stop > n
            or (self.after is not None and nearest < -self.after)
            or (self.before is not None and farthest > self.before)
            or (self.keys is not None and not bool(self.keys[columns].all()))
        )

    def hidden(self, distance: Tensor, columns: slice, n: int) -> Tensor:
        """Return which cells of a tile are hidden, (rows, columns).

        distance : (rows, columns), how far each query stands behind each key.
        """
        hidden = torch.zeros_like(distance, dtype=torch.bool)
        if self.after is not None:
            hidden |= distance < -self.after
        if self.before is not None:
            hidden |= distance > self.before
        if columns.stop > n:
            hidden[:, n - columns.start :] = True
        if self.keys is not None:
            unread = ~self.keys[columns].to(distance.device)
            hidden[:, : len(unread)] |= unread
        return hidden

    def hidden_at(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return which of some keys (C,) some of the queries (R,) may not read, (R, C)."""
        distance = rows[:, None] + self.offset - columns
        hidden = replace(self, keys=None).hidden(distance, slice(0, 0), 0)
        return hidden if self.keys is None else hidden | ~self.keys.to(columns.device)[columns]

    def empty(self, m: int, n: int, device: torch.device) -> Tensor:
        """Return which queries may read no key at all, (m,)."""
        i = torch.arange(m, device=device) + self.offset
        first = i * 0 if self.before is None else (i - self.before).clamp(0, n)
        end = i * 0 + n if self.after is None else (i + self.after + 1).clamp(0, n)
        read = torch.ones(n, dtype=torch.bool) if self.keys is None else self.keys
        known = torch.nn.functional.pad(read.to(device).cumsum(0), (1, 0))
        return (end <= first) | (known[end] <= known[first])
