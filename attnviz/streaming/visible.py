"""Which keys each query may read, as a rule: known for any tile, never stored as T×T."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attnviz.terms import HIDDEN


@dataclass(frozen=True, eq=False)
class Visible:
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
    def of(cls, mask: Tensor) -> Visible | None:
        """Return the rule that an additive mask (m, n) follows; None where it is no such rule.

        Queries end where the keys do, as in every causal model.
        """
        seen = mask > HIDDEN
        if not bool((mask[seen] == 0).all()):
            return None
        m, n = mask.shape
        read = seen.any(0)
        i = torch.arange(m, device=mask.device)[:, None] + n - m
        distance = i - torch.arange(n, device=mask.device)
        near = distance[seen]
        before = int(near.max()) if len(near) else 0
        after = -int(near.min()) if len(near) else 0
        rule = cls(
            before if before < n - 1 else None,
            after if after < n - 1 else None,
            n - m,
            None if read.all() else read,
        )
        found = rule.hidden(distance, slice(0, n), n)
        return rule if torch.equal(found, ~seen) else None

    def rows(self, rows: slice) -> Visible:
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

    def empty(self, m: int, n: int, device: torch.device) -> Tensor:
        """Return which queries may read no key at all, (m,)."""
        i = torch.arange(m, device=device) + self.offset
        first = i * 0 if self.before is None else (i - self.before).clamp(0, n)
        end = i * 0 + n if self.after is None else (i + self.after + 1).clamp(0, n)
        read = torch.ones(n, dtype=torch.bool) if self.keys is None else self.keys
        known = torch.nn.functional.pad(read.to(device).cumsum(0), (1, 0))
        return (end <= first) | (known[end] <= known[first])
