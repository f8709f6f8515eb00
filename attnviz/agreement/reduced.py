"""Proof of what is kept of a map: the same numbers in float64, from rows and columns of weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import pad

from attnviz.agreement.compare import bounded
from attnviz.results import (
    AttentionRecord,
    MapSummary,
    StageCheck,
    cell_sizes,
)

# What float64 says, what was kept, and the least scale by which their difference is measured:
# weights err in proportion to themselves, sums of logarithms and distances by what they sum.
Pair: TypeAlias = tuple[Tensor, Tensor, float]
_WEIGHTS = 2**20  # of a head, in float64, that are held at once
_COLUMNS = 8  # keys of which all that they receive is added up
STREAMED = 1e-5  # of the largest number of a kind: what float32 sums may err
_TINY = 1e-30  # nothing smaller is a weight


@dataclass(frozen=True, eq=False)
class Reduced:
    """What maps of some heads were reduced to, and which keys are marked, (n,)."""

    summary: MapSummary
    heads: Sequence[int]
    marked: Tensor | None = None


def check_summary(record: AttentionRecord, reduced: Reduced, some: Rows) -> StageCheck:
    """Compare what was kept of some heads with our float64 weights.

    Every number of a row is compared in `some` rows and in one row of cells, the pooled maps in
    that row, what keys receive in some columns; over the whole map weights must sum to what rows
    have.
    """
    heads = reduced.heads
    checked = _Checked(record, reduced.summary, some, reduced.marked)
    differences, count = [], 0
    for at, head in enumerate(heads):
        worst = torch.zeros((), dtype=torch.float64)
        for ours, kept, least in checked.pairs(head, at):
            scale = ours.abs().amax().clamp(min=least)
            worst = torch.maximum(worst, (ours - kept).abs().amax() / scale)
            count += ours.numel()
        differences.append(float(worst) if checked.empty_agrees else torch.inf)
    # A float32 product of d terms errs by no more than d · eps / 2 of what its vectors' lengths
    # allow, and so does a log-sum-exp of such; a weight errs in proportion by the sum of both.
    rounding = record.query.shape[-1] * torch.finfo(torch.float32).eps * largest_score(record)
    tolerance = max(STREAMED, rounding)
    return bounded(
        record, "summary", torch.tensor(differences), tolerance, compared=count, heads=heads
    )


@dataclass(frozen=True, eq=False)
class Rows:
    """Our float64 recomputation of some queries `rows` (R,): scores and weights (H, R, n)."""

    rows: Tensor
    scores: Tensor
    weights: Tensor

    @classmethod
    def of(cls, record: AttentionRecord, rows: Tensor) -> Rows:
        """Recompute some rows of a record."""
        across = across_rows(record, rows)
        return cls(rows, across.scores(dtype=torch.float64), across.weights(dtype=torch.float64))


def across_rows(record: AttentionRecord, rows: Tensor) -> AttentionRecord:
    """Return a record of some of its queries, with all keys."""
    return record.at(rows, torch.arange(len(record.key_axis), device=rows.device))


class _Checked:
    """What is looked at of one attention, for one head after the other."""

    def __init__(
        self, record: AttentionRecord, summary: MapSummary, some: Rows, marked: Tensor | None
    ) -> None:
        self.record, self.summary, self.some, self.marked = record, summary, some, marked
        self.m, self.n = len(record.query_axis), len(record.key_axis)
        self.empty = _empty(record)
        self.empty_agrees = torch.equal(self.empty, summary.empty.cpu())
        device = record.query.device
        chance = torch.Generator().manual_seed(record.layer)
        # The last row of cells may be smaller than the others: now and then it is the one.
        count = summary.mean.shape[1]
        self.cell = int(torch.randint(count, (), generator=chance))
        if record.layer % 3 == 2:
            self.cell = count - 1
        self.columns = torch.randperm(self.n, generator=chance)[:_COLUMNS].to(device)
        self.down = record.at(torch.arange(self.m, device=device), self.columns)
        self.sinks = record.sinks

    def pairs(self, head: int, at: int) -> Iterator[Pair]:
        """Yield all that is compared of a head, which stands at `at` in the summary."""
        P, S = self.some.weights[head].cpu(), self.some.scores[head].cpu()
        yield from self._rows(head, at, self.some.rows.cpu(), P, S)
        yield from self._cells(head, at)
        yield from self._received(head, at)
        yield from self._mass(head, at)

    def _rows(self, head: int, at: int, rows: Tensor, P: Tensor, S: Tensor) -> Iterator[Pair]:
        """Yield the numbers of some queries, of which weights and scores (R, n) are given."""

        def kept(name: str) -> Tensor:
            found: Tensor = getattr(self.summary, name)[at].cpu()[rows].double()
            return found

        P, i = P * ~self.empty[rows, None], rows + self.n - self.m
        seen, far = ~self.empty[rows], (i[:, None] - torch.arange(self.n)).abs()
        if (sink := self._sink(head, rows)) is not None:
            S = torch.cat([S, sink[:, None]], dim=-1)
        yield torch.logsumexp(S, -1)[seen], kept("lse")[seen], 1.0
        yield -(P * P.clamp(min=1e-300).log()).sum(-1), kept("entropy"), 1.0
        yield (P * far).sum(-1), kept("distance"), 1.0
        yield P[:, 0], kept("first"), _TINY
        for name, key in (("itself", i), ("previous", i - 1)):
            inside = (key >= 0) & (key < self.n)
            one = P.gather(1, key.clamp(0, self.n - 1)[:, None])[:, 0] * inside
            yield one, kept(name), _TINY
        if self.marked is not None:
            yield P[:, self.marked.cpu()].sum(-1), kept("marked"), _TINY
        if (k := self.summary.top_keys.shape[-1]) > 0:
            keys, weights = kept("top_keys").long(), kept("top_weights")
            yield P.topk(k).values, weights, _TINY
            yield P.gather(1, keys.clamp(min=0)) * (keys >= 0), weights, _TINY

    def _cells(self, head: int, at: int) -> Iterator[Pair]:
        """Yield a row of cells, and the numbers of its queries."""
        size, n = self.summary.cell, self.n
        rows = range(self.cell * size, min(self.m, (self.cell + 1) * size))
        sums, tops = (torch.zeros(-(-n // size), dtype=torch.float64) for _ in range(2))
        step = max(1, _WEIGHTS // n)
        for start in range(rows.start, rows.stop, step):
            part = slice(start, min(start + step, rows.stop))
            P = self.record.weights(head, part, torch.float64).cpu()
            S = self.record.scores(head, part, torch.float64).cpu()
            at_rows = torch.arange(part.start, part.stop)
            yield from self._rows(head, at, at_rows, P, S)
            P = P * ~self.empty[at_rows, None]
            cells = pad(P, (0, -n % size)).view(len(P), -1, size)
            sums += cells.sum((0, 2))
            tops = torch.maximum(tops, cells.amax((0, 2)))
        kept = self.summary
        mean = sums / (len(rows) * cell_sizes(n, size))
        yield mean, kept.mean[at, self.cell].cpu().double(), _TINY
        yield tops, kept.largest[at, self.cell].cpu().double(), _TINY

    def _received(self, head: int, at: int) -> Iterator[Pair]:
        """Yield what some keys receive of all queries."""
        S = self.down.scores(head, dtype=torch.float64).cpu()
        P = (S - self.summary.lse[at].cpu().double()[:, None]).exp() * ~self.empty[:, None]
        yield P.sum(0), self.summary.received[at].cpu()[self.columns.cpu()].double(), _TINY

    def _mass(self, head: int, at: int) -> Iterator[Pair]:
        """Yield sums over the whole map, which no single row shows."""
        kept, size = self.summary, self.summary.cell
        lse, mean, largest = (
            each[at].cpu().double() for each in (kept.lse, kept.mean, kept.largest)
        )
        taken = (~self.empty).double()
        if (sink := self._sink(head, torch.arange(self.m))) is not None:
            taken = torch.where(self.empty, 0.0, 1 - (sink - lse).exp())
        heights, widths = cell_sizes(self.m, size), cell_sizes(self.n, size)
        by_row = pad(taken, (0, -self.m % size)).view(-1, size).sum(1)
        yield by_row, (mean * widths).sum(1) * heights, 1.0
        by_key = pad(kept.received[at].cpu().double(), (0, -self.n % size)).view(-1, size).sum(1)
        yield (mean * heights[:, None]).sum(0) * widths, by_key, 1.0
        yield torch.zeros_like(mean), (mean - largest).clamp(min=0), float(mean.max())

    def _sink(self, head: int, rows: Tensor) -> Tensor | None:
        """Return the sink's score in some rows, (R,), or None without sinks."""
        if self.sinks is None:
            return None
        own = self.sinks[head].detach().cpu().double()
        return own.expand(len(rows)) if own.dim() == 0 else own[rows]


def _empty(record: AttentionRecord) -> Tensor:
    """Return which queries may read no key at all, (m,), by the record alone."""
    m, n = len(record.query_axis), len(record.key_axis)
    if record.visible is not None:
        return record.visible.empty(m, n, record.query.device).cpu()
    if record.mask is None:
        return torch.zeros(m, dtype=torch.bool)
    return (record.mask <= torch.finfo(record.mask.dtype).min / 2).all(-1).all(0).cpu()


def largest_score(record: AttentionRecord) -> float:
    """Return a bound of the scores: rounding grows with them."""
    query, key = (part.float().norm(dim=-1).amax() for part in (record.query, record.key))
    return abs(record.scale) * float(query * key)
