"""Strips of some rows of a map with all their keys, and the room in which they are computed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from attnviz.streaming.buffers import Kept
from attnviz.streaming.scores import NEVER, Scoring
from attnviz.streaming.tiles import Block, blocks


@dataclass(frozen=True, eq=False)
class Strip:
    """Some rows and the keys that they may read, (h, keys, rows), and what they are reduced to.

    All are views of a `Room`: to look them up for each head anew would take as long as the work.

    Attributes
    ----------
    block, rows, columns : which rows; which keys, whole cells of them.
    keys (h, keys, d), queries (h, d, rows) : what scores are the product of. S, P : for scores and
        weights. lots : S, (h, cells, keys of each, rows). highest : of each lot, (h, cells, rows).
    linear (h, sums, keys) : what is summed over the weights of each row. sums (h, sums, rows).
    from_here, away (h, keys, 2) : the part of `linear` that each strip writes; what to write.
    single, near (h, 3, rows) : keys of which each row's weight is kept, and these weights.
    own : of the keys among the rows, P, twice how far each row is behind, and where to put their
        product, summed for each row; None where there are none.
    received (h, keys), mean, largest (h, cells, cells), entropy, shift (h, rows) : what is kept.
    hidden : parts of S that no row may read, or of which a mask tells where.
    unread : keys that no row may read, or None.
    """

    block: Block
    columns: slice
    keys: Tensor
    queries: Tensor
    S: Tensor
    P: Tensor
    lots: Tensor
    highest: Tensor
    linear: Tensor
    sums: Tensor
    from_here: Tensor
    away: Tensor
    single: Tensor
    near: Tensor
    own: tuple[Tensor, Tensor, Tensor] | None
    received: Tensor
    mean: Tensor
    largest: Tensor
    entropy: Tensor
    shift: Tensor
    hidden: list[tuple[Tensor, Tensor | None]]
    unread: Tensor | None

    @property
    def rows(self) -> slice:
        """Which rows."""
        return self.block.rows

    def hide(self) -> None:
        """Write NEVER where no key may be read."""
        for part, where in self.hidden:
            if where is None:
                part.fill_(NEVER)
            else:
                part.masked_fill_(where, NEVER)
        if self.unread is not None:
            self.S.index_fill_(1, self.unread, NEVER)


class Room:
    """Room for the strips of h heads, taken once: fresh memory costs more than to write to it.

    Attributes
    ----------
    keys (h, n, d), queries (h, m, d), linear (h, n, 4 + d_v) : what enters products. Linear are
        one; how far a key is from the first row of the strip, and the sign of that, which each
        strip writes; whether it is marked; its value.
    sums (h, 4 + d_v, m), received (h, n), near (h, 3, m), mean, largest, entropy, behind, shift :
        what strips leave. strips : those that have any key. seen : (3, m), of `near`, whether the
        row may read that key at all.
    """

    def __init__(self, scoring: Scoring, kept: Kept, most: int, h: int) -> None:
        _, m, n = scoring.shape
        self.made_for = _needs(scoring, kept, most, h)
        self.visible, self.marks, self.m, self.cell = scoring.visible, kept.marks, m, kept.cell
        self.n, self.device = -(-n // kept.cell) * kept.cell, scoring.query.device
        self.blocks = list(blocks(m, kept.cell, most))
        columns = [self._columns(block, n) for block in self.blocks]

        def made(*shape: int) -> Tensor:
            return torch.zeros(h, *shape, device=self.device)

        d, extra = scoring.query.shape[2], kept.attended.shape[2]
        self.queries, self.keys, self.linear = made(m, d), made(self.n, d), made(self.n, 4 + extra)
        self.linear[..., 0] = 1
        if kept.marks is not None:
            self.linear[:, :n, 3] = kept.marks.float()
        self.sums, self.near, self.received = made(4 + extra, m), made(3, m), made(self.n)
        self.entropy, self.behind, self.shift = made(m), made(m), made(m)
        self.mean, self.largest = (made(*kept.mean.shape[1:]) for _ in range(2))
        height = max(block.height for block in self.blocks)
        size = h * self.n * height
        self._S, self._P = (torch.empty(size, device=self.device) for _ in range(2))
        self._highest = torch.empty(size // self.cell, device=self.device)
        away = torch.arange(self.n + m, device=self.device) - m - self.visible.offset
        self._away = torch.stack([away.abs(), torch.where(away < 0, 1, -1)], dim=1).float()
        self._single, self.seen = self._where_near(columns, n)
        self._unread = torch.ones(self.n, dtype=torch.bool, device=self.device)
        self._unread[:n] = False if self.visible.keys is None else ~self.visible.keys
        both = zip(self.blocks, columns, strict=True)
        self.strips = [self._strip(block, keys) for block, keys in both if keys.start < keys.stop]

    def _columns(self, block: Block, n: int) -> slice:
        """Return which keys a strip has: whole cells."""
        first, end = self.visible.columns(block.rows, n)
        start = first // self.cell * self.cell
        return slice(start, -(-end // self.cell) * self.cell if first < end else start)

    def _where_near(self, columns: list[slice], n: int) -> tuple[Tensor, Tensor]:
        """Return where each row finds itself, the previous, the first key in its strip; whether."""
        row = torch.arange(self.m, device=self.device) + self.visible.offset
        keys = torch.stack([row, row - 1, torch.zeros_like(row)])
        heights = torch.tensor([block.height for block in self.blocks], device=self.device)
        start, stop = (
            torch.tensor(border, device=self.device).repeat_interleave(heights)
            for border in zip(*[(at.start, at.stop) for at in columns], strict=True)
        )
        seen = (keys >= start) & (keys < stop) & (keys < n)
        return torch.where(seen, keys - start, 0), seen

    def _strip(self, block: Block, columns: slice) -> Strip:
        keys = self.keys[:, columns]
        (h, width, _), rows, height = keys.shape, block.rows, block.height
        S, P = (room[: h * width * height].view(h, width, height) for room in (self._S, self._P))
        across = width // self.cell
        cells = slice(block.cell, block.cell + block.cells)
        pooled = cells, slice(columns.start // self.cell, columns.stop // self.cell)
        unread = self._unread[columns].nonzero()[:, 0]
        return Strip(
            block,
            columns,
            keys,
            self.queries.mT[..., rows],
            S,
            P,
            lots=S.view(h, across, self.cell, height),
            highest=self._highest[: h * across * height].view(h, across, height),
            linear=self.linear[:, columns].mT,
            sums=self.sums[..., rows],
            from_here=self.linear[:, columns, 1:3],
            away=self._away[self.m - rows.start :][columns],
            single=self._single[:, rows].expand(h, -1, -1),
            near=self.near[..., rows],
            own=self._own(P, rows, columns),
            received=self.received[:, columns],
            mean=self.mean[:, *pooled],
            largest=self.largest[:, *pooled],
            entropy=self.entropy[:, rows],
            shift=self.shift[:, rows],
            hidden=self._hidden(S, rows, columns),
            unread=unread if len(unread) else None,
        )

    def _own(self, P: Tensor, rows: slice, columns: slice) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return what corrects the distance of keys among the rows of a strip.

        i - j = (i - here) - (j - here) is what `linear` gives, with the wrong sign there.
        """
        here = rows.start + self.visible.offset - columns.start
        low, high = max(0, here), min(P.shape[1], here + P.shape[2])
        if low >= high:
            return None
        by = _behind(P.shape[2], P.device)[low - here : high - here]
        return P[:, low:high], by, self.behind[:, rows]

    def _hidden(self, S: Tensor, rows: slice, columns: slice) -> list[tuple[Tensor, Tensor | None]]:
        """Return where the rule hides keys of a strip; the key of its row moves on with it."""
        visible, height = self.visible, S.shape[2]
        here = rows.start + visible.offset - columns.start
        found: list[tuple[Tensor, Tensor | None]] = []
        if visible.after is not None:
            end = here + visible.after
            found.append(_square(S, end + 1, _corner(height, True, S.device)))
            found.append((S[:, max(0, end + height) :], None))
        if visible.before is not None:
            start = here - visible.before
            found.append((S[:, : max(0, start)], None))
            found.append(_square(S, start, _corner(height, False, S.device)))
        return [(part, where) for part, where in found if part.shape[1]]


class Rooms:
    """The room of one map, for the next if that is alike, as the layers of a model are."""

    def __init__(self) -> None:
        self._last: Room | None = None

    def of(self, scoring: Scoring, kept: Kept, most: int, h: int) -> Room:
        """Return room for strips of `most` rows of h heads."""
        if self._last is None or self._last.made_for != _needs(scoring, kept, most, h):
            self._last = Room(scoring, kept, most, h)
        return self._last


def _needs(scoring: Scoring, kept: Kept, most: int, h: int) -> tuple[object, ...]:
    """Return what a room is made for; it keeps the tensors among it, so that these stay known."""
    rule, sizes = scoring.visible, (scoring.query.shape[2], kept.attended.shape[2], kept.cell)
    how = rule.before, rule.after, rule.offset, id(rule.keys), id(kept.marks)
    return scoring.shape, sizes, how, most, h, scoring.query.device


def _square(S: Tensor, at: int, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Return the square that begins at key `at`, as far as it lies in the strip; what it hides."""
    low = max(0, at)
    high = max(low, min(S.shape[1], at + len(hidden)))
    return S[:, low:high], hidden[low - at : high - at]


@lru_cache(maxsize=16)
def _corner(height: int, after: bool, device: torch.device) -> Tensor:
    """Return which keys a border that moves on with the rows hides, (keys, rows)."""
    square = torch.ones(height, height, dtype=torch.bool, device=device)
    return square.tril() if after else square.triu(1)


@lru_cache(maxsize=16)
def _behind(height: int, device: torch.device) -> Tensor:
    """Return twice how far each row is behind a key in the strip's own square, (keys, rows)."""
    at = torch.arange(height, device=device)
    return 2.0 * (at - at[:, None]).clamp(min=0)
