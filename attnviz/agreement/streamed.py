"""Proof of a long text: some rows of every head, and the reduced maps.

A map that is never stored cannot be compared as a whole. So in some rows all stages are compared
with the model's own, and so is the run in which maps are reduced. The reduced maps are compared
with our float64 weights in these rows, in one row of cells and in some columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import pad

from attnviz.agreement.stages import (
    PRECISIONS,
    SMALLEST,
    Proof,
    bounded_check,
    compare,
    dtypes,
    model_values,
    prove,
    stages_not_compared,
    tolerance_of,
)
from attnviz.capture import ReducedAttention
from attnviz.formula.attention import repeat_heads
from attnviz.results import AttentionRecord, Reference, StageCheck, cell_sizes

_MOVED = 0.2  # of a row's weight: no rounding moves more, in any precision
_PROJECTED = ("query", "key", "value")
# The value in float64, the reduced value, and the least scale of their difference: errors of
# weights are relative, those of sums of logarithms and of distances absolute.
_Pair: TypeAlias = tuple[Tensor, Tensor, float]
_WEIGHTS = 2**20  # of a head, in float64, that are held at once
_COLUMNS = 8  # keys whose received weight is summed
_STREAMED = 1e-5  # error of float32 sums, relative to the largest number of a kind
_TINY = 1e-30  # no weight is smaller


def prove_rows(record: AttentionRecord, reference: Reference, rows: Tensor) -> Proof:
    """Compare some rows of an attention, stage by stage, with the model's own in the same run.

    `record` is the whole attention; `reference` holds the values of the queries `rows` (R,).
    """
    # Q, K and V of these positions, then all later stages of these queries with all keys.
    positions, across = record.at(rows), _across_rows(record, rows)
    if (projection := record.projection) is not None:
        across = replace(across, projection=replace(projection, query=None, key=None, value=None))
    expected = model_values(positions, reference)
    projected = compare(positions, {stage: expected[stage] for stage in _PROJECTED})
    later = {stage: value for stage, value in expected.items() if stage not in _PROJECTED}
    proof = prove(across, later)
    checks = (*projected, *proof.checks)
    return replace(proof, checks=checks, not_compared=stages_not_compared(record, checks))


def prove_streamed(
    attention: ReducedAttention, weights: Tensor, rows: Tensor, marked: Tensor | None = None
) -> Proof:
    """Compare the run that reduces maps with the model's own run, and the reduced maps.

    Parameters
    ----------
    attention : ReducedAttention
        The attention in this run.
    weights : Tensor
        (H, R, n), the model's own weights of `rows`, from the other run.
    rows : Tensor
        (R,), the indices of queries.
    marked : Tensor, optional
        (n,), which keys are marked in the summary.
    """
    record = attention.record
    sampled = _across_rows(record, rows)
    ours = {"weights": sampled.weights(dtype=torch.float64)}
    ours["scores"] = sampled.scores(dtype=torch.float64)

    # The share of a row's weight that moved between the two runs, on average. They round in a
    # different order, and rounding errors add up from layer to layer.
    moved = (ours["weights"] - weights.double()).abs().sum(-1).mean(-1) / 2
    rounding = tolerance_of("weights", ours, PRECISIONS[dtypes(record)[1]])
    tolerance = min(_MOVED, 2 * (record.layer + 1) * rounding)
    run = bounded_check(record, "second run", moved, tolerance, compared=weights.numel())

    # Sums are computed in float32 at least; fused attention on a GPU rounds their results.
    expected = ours["weights"] @ repeat_heads(record.value.double(), record.heads)
    errors = (expected - attention.attended[:, rows].double()).flatten(1).abs().amax(1)
    eps = torch.finfo(record.value.dtype if record.value.is_cuda else torch.float32).eps
    largest = expected.flatten(1).abs().amax(1).clamp(min=SMALLEST)
    tolerances = max(_STREAMED, 4 * eps * max(1.0, _largest_score(record))) * largest
    attended = bounded_check(
        record, "attention vectors", errors, tolerances, compared=expected.numel()
    )
    summary = _check_summary(attention, rows, ours, marked)
    return Proof(record.place, (run, attended, summary), (), False)


def _check_summary(
    attention: ReducedAttention, rows: Tensor, ours: dict[str, Tensor], marked: Tensor | None
) -> StageCheck:
    """Compare the reduced maps of some heads with our float64 weights.

    The numbers of each query are compared in the sampled rows and in one row of cells, the pooled
    maps in that row, the weight that keys receive in some columns. Over the whole map the pooled
    weights must have the same sum as those of the queries.
    """
    record, heads = attention.record, attention.heads
    pairs = _SummaryPairs(attention, rows, ours, marked)
    differences, count = [], 0
    for index in range(len(heads)):
        worst = torch.zeros((), dtype=torch.float64)
        for expected, streamed, least in pairs.of_head(index):
            scale = expected.abs().amax().clamp(min=least)
            worst = torch.maximum(worst, (expected - streamed).abs().amax() / scale)
            count += expected.numel()
        differences.append(float(worst) if pairs.empty_agrees else torch.inf)
    # The error of a float32 product of d terms is at most d · eps / 2 times the product of the
    # norms, and so is that of their log-sum-exp; the relative error of a weight is the sum of both.
    rounding = record.query.shape[-1] * torch.finfo(torch.float32).eps * _largest_score(record)
    tolerance = max(_STREAMED, rounding)
    return bounded_check(
        record, "summary", torch.tensor(differences), tolerance, compared=count, heads=heads
    )


def _across_rows(record: AttentionRecord, rows: Tensor) -> AttentionRecord:
    """Return a record of some of its queries, with all keys."""
    return record.at(rows, torch.arange(len(record.key_axis), device=rows.device))


def _largest_score(record: AttentionRecord) -> float:
    """Return a bound of the scores; rounding errors grow with it."""
    query, key = (side.float().norm(dim=-1).amax() for side in (record.query, record.key))
    return abs(record.scale) * float(query * key)


class _SummaryPairs:
    """Pairs of a float64 value and a reduced value of one attention, head by head."""

    def __init__(
        self,
        attention: ReducedAttention,
        rows: Tensor,
        ours: dict[str, Tensor],
        marked: Tensor | None,
    ) -> None:
        self.record, self.summary = attention.record, attention.summary
        self.heads, self.rows, self.ours, self.marked = attention.heads, rows, ours, marked
        record, summary = self.record, self.summary
        self.m, self.n = len(record.query_axis), len(record.key_axis)
        device = record.query.device
        # The queries that may read no key, from the record alone.
        if record.visible is not None:
            self.empty = record.visible.empty(self.m, self.n, device).cpu()
        elif record.mask is not None:
            hidden = record.mask <= torch.finfo(record.mask.dtype).min / 2
            self.empty = hidden.all(-1).all(0).cpu()
        else:
            self.empty = torch.zeros(self.m, dtype=torch.bool)
        self.empty_agrees = torch.equal(self.empty, summary.empty.cpu())
        chance = torch.Generator().manual_seed(record.layer)
        # The last row of cells may be smaller than the others: every third layer checks it.
        count = summary.mean.shape[1]
        self.cell = int(torch.randint(count, (), generator=chance))
        if record.layer % 3 == 2:
            self.cell = count - 1
        self.columns = torch.randperm(self.n, generator=chance)[:_COLUMNS].to(device)
        self.down = record.at(torch.arange(self.m, device=device), self.columns)

    def of_head(self, index: int) -> Iterator[_Pair]:
        """Yield all pairs of the head at a position in the summary."""
        head = self.heads[index]
        P, S = self.ours["weights"][head].cpu(), self.ours["scores"][head].cpu()
        yield from self._rows(index, self.rows.cpu(), P, S)
        yield from self._cells(index)
        # The weight that some keys receive from all queries.
        S = self.down.scores(head, dtype=torch.float64).cpu()
        P = (S - self._reduced("lse", index)[:, None]).exp() * ~self.empty[:, None]
        yield P.sum(0), self._reduced("received", index)[self.columns.cpu()], _TINY
        yield from self._sums(index)

    def _reduced(self, name: str, index: int) -> Tensor:
        """Return the numbers of one head in the summary, in float64."""
        values: Tensor = getattr(self.summary, name)[index]
        return values.cpu().double()

    def _rows(self, index: int, rows: Tensor, P: Tensor, S: Tensor) -> Iterator[_Pair]:
        """Yield the numbers of some queries, from their weights and scores (R, n)."""

        def reduced(name: str) -> Tensor:
            return self._reduced(name, index)[rows]

        P, i = P * ~self.empty[rows, None], rows + self.n - self.m
        visible, far = ~self.empty[rows], (i[:, None] - torch.arange(self.n)).abs()
        if (sink := self._sink(index, rows)) is not None:
            S = torch.cat([S, sink[:, None]], dim=-1)
        yield torch.logsumexp(S, -1)[visible], reduced("lse")[visible], 1.0
        yield -(P * P.clamp(min=1e-300).log()).sum(-1), reduced("entropy"), 1.0
        yield (P * far).sum(-1), reduced("distance"), 1.0
        yield P[:, 0], reduced("first"), _TINY
        for name, key in (("itself", i), ("previous", i - 1)):
            inside = (key >= 0) & (key < self.n)
            weight = P.gather(1, key.clamp(0, self.n - 1)[:, None])[:, 0] * inside
            yield weight, reduced(name), _TINY
        if self.marked is not None:
            yield P[:, self.marked.cpu()].sum(-1), reduced("marked"), _TINY
        if (k := self.summary.top_keys.shape[-1]) > 0:
            keys, weights = reduced("top_keys").long(), reduced("top_weights")
            yield P.topk(k).values, weights, _TINY
            yield P.gather(1, keys.clamp(min=0)) * (keys >= 0), weights, _TINY

    def _cells(self, index: int) -> Iterator[_Pair]:
        """Yield a row of cells of the pooled maps, and the numbers of its queries."""
        head, size, n = self.heads[index], self.summary.cell, self.n
        rows = range(self.cell * size, min(self.m, (self.cell + 1) * size))
        sums, tops = (torch.zeros(-(-n // size), dtype=torch.float64) for _ in range(2))
        step = max(1, _WEIGHTS // n)
        for start in range(rows.start, rows.stop, step):
            block = slice(start, min(start + step, rows.stop))
            P = self.record.weights(head, block, torch.float64).cpu()
            S = self.record.scores(head, block, torch.float64).cpu()
            block_rows = torch.arange(block.start, block.stop)
            yield from self._rows(index, block_rows, P, S)
            P = P * ~self.empty[block_rows, None]
            cells = pad(P, (0, -n % size)).view(len(P), -1, size)
            sums += cells.sum((0, 2))
            tops = torch.maximum(tops, cells.amax((0, 2)))
        mean = sums / (len(rows) * cell_sizes(n, size))
        yield mean, self._reduced("mean", index)[self.cell], _TINY
        yield tops, self._reduced("largest", index)[self.cell], _TINY

    def _sums(self, index: int) -> Iterator[_Pair]:
        """Yield sums over the whole map, which no single row shows."""
        size = self.summary.cell
        mean, largest = self._reduced("mean", index), self._reduced("largest", index)
        row_sums = (~self.empty).double()
        if (sink := self._sink(index, torch.arange(self.m))) is not None:
            row_sums = torch.where(self.empty, 0.0, 1 - (sink - self._reduced("lse", index)).exp())
        heights, widths = cell_sizes(self.m, size), cell_sizes(self.n, size)
        by_row = pad(row_sums, (0, -self.m % size)).view(-1, size).sum(1)
        yield by_row, (mean * widths).sum(1) * heights, 1.0
        received = self._reduced("received", index)
        by_key = pad(received, (0, -self.n % size)).view(-1, size).sum(1)
        yield (mean * heights[:, None]).sum(0) * widths, by_key, 1.0
        yield torch.zeros_like(mean), (mean - largest).clamp(min=0), float(mean.max())

    def _sink(self, index: int, rows: Tensor) -> Tensor | None:
        """Return the sink's score in some rows, (R,), or None without sinks."""
        if self.record.sinks is None:
            return None
        sinks = self.record.sinks[self.heads[index]].detach().cpu().double()
        return sinks.expand(len(rows)) if sinks.dim() == 0 else sinks[rows]
