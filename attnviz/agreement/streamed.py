"""Proof of a long text: some rows of every head, and the reduced maps.

A map that is never stored cannot be compared as a whole. So all stages are compared in some rows
with the model's own; the run in which maps are reduced with that; and the reduced maps with our
float64 weights, in these rows, in one row of cells and in some columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import pad

from attnviz.agreement.compare import (
    Proof,
    bounded_check,
    compare,
    model_values,
    prove,
    stages_not_compared,
    tolerance_of,
)
from attnviz.agreement.tolerances import PRECISIONS, SMALLEST, dtypes
from attnviz.formula.attention import repeat_heads
from attnviz.results import (
    AttentionRecord,
    MapSummary,
    Reference,
    StageCheck,
    cell_sizes,
)

_MOVED = 0.2  # of a row's weight: no rounding moves more, in any precision
_PROJECTED = ("query", "key", "value")
# The value in float64, the reduced value, and the least scale of their difference: errors of
# weights are relative, those of sums of logarithms and of distances absolute.
_Pair: TypeAlias = tuple[Tensor, Tensor, float]
_WEIGHTS = 2**20  # of a head, in float64, that are held at once
_COLUMNS = 8  # keys whose received weight is summed
_STREAMED = 1e-5  # error of float32 sums, relative to the largest number of a kind
_TINY = 1e-30  # no weight is smaller


@dataclass(frozen=True, eq=False)
class Reduced:
    """The reduced maps of some heads, and which keys are marked, (n,)."""

    summary: MapSummary
    heads: Sequence[int]
    marked: Tensor | None = None


def prove_rows(record: AttentionRecord, reference: Reference, rows: Tensor) -> Proof:
    """Compare some rows of an attention, stage by stage, with the model's own in the same run.

    Parameters
    ----------
    record : AttentionRecord
        The whole attention.
    reference : Reference
        The model's own values of `rows`.
    rows : Tensor
        (R,), the indices of queries.
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
    record: AttentionRecord,
    attended: Tensor,
    weights: Tensor,
    rows: Tensor,
    reduced: Reduced,
) -> Proof:
    """Compare the run that reduces maps with the model's own run, and the reduced maps.

    Parameters
    ----------
    record : AttentionRecord
        The attention in this run.
    attended : Tensor
        (H, m, d_v), its attention vectors.
    weights : Tensor
        (H, R, n), the model's own weights of `rows`, from the other run.
    rows : Tensor
        (R,), the indices of queries.
    reduced : Reduced
        The reduced maps.
    """
    sampled = _SampledRows.of(record, rows)
    checks = (
        _check_run(record, weights, sampled),
        _check_attended(record, attended, sampled),
        _check_summary(record, reduced, sampled),
    )
    return Proof(record.place, checks, (), False)


def _check_run(record: AttentionRecord, weights: Tensor, sampled: _SampledRows) -> StageCheck:
    """Compare the weights of two runs: the share of a row's weight that moved, on average.

    They round in a different order, and rounding errors add up from layer to layer.
    """
    moved = (sampled.weights - weights.double()).abs().sum(-1).mean(-1) / 2
    stages = {"weights": sampled.weights, "scores": sampled.scores}
    rounding = tolerance_of("weights", stages, PRECISIONS[dtypes(record)[1]])
    tolerance = min(_MOVED, 2 * (record.layer + 1) * rounding)
    return bounded_check(record, "second run", moved, tolerance, compared=weights.numel())


def _check_attended(record: AttentionRecord, attended: Tensor, sampled: _SampledRows) -> StageCheck:
    """Compare some attention vectors with A·V of the same run in float64."""
    ours = sampled.weights @ repeat_heads(record.value.double(), record.heads)
    differences = (ours - attended[:, sampled.rows].double()).flatten(1).abs().amax(1)
    # Sums are computed in float32 at least; fused attention on a GPU rounds their results.
    eps = torch.finfo(record.value.dtype if record.value.is_cuda else torch.float32).eps
    largest = ours.flatten(1).abs().amax(1).clamp(min=SMALLEST)
    tolerances = max(_STREAMED, 4 * eps * max(1.0, _largest_score(record))) * largest
    return bounded_check(
        record, "attention vectors", differences, tolerances, compared=ours.numel()
    )


def _check_summary(record: AttentionRecord, reduced: Reduced, sampled: _SampledRows) -> StageCheck:
    """Compare the reduced maps of some heads with our float64 weights.

    The numbers of each query are compared in the sampled rows and in one row of cells, the pooled
    maps in that row, the weight that keys receive in some columns. Over the whole map the pooled
    weights must have the same sum as those of the queries.
    """
    heads = reduced.heads
    checked = _SummaryPairs(record, reduced.summary, sampled, reduced.marked)
    differences, count = [], 0
    for index, head in enumerate(heads):
        worst = torch.zeros((), dtype=torch.float64)
        for ours, streamed, least in checked.pairs(head, index):
            scale = ours.abs().amax().clamp(min=least)
            worst = torch.maximum(worst, (ours - streamed).abs().amax() / scale)
            count += ours.numel()
        differences.append(float(worst) if checked.empty_agrees else torch.inf)
    # The error of a float32 product of d terms is at most d · eps / 2 times the product of the
    # norms, and so is that of their log-sum-exp; the relative error of a weight is the sum of both.
    rounding = record.query.shape[-1] * torch.finfo(torch.float32).eps * _largest_score(record)
    tolerance = max(_STREAMED, rounding)
    return bounded_check(
        record, "summary", torch.tensor(differences), tolerance, compared=count, heads=heads
    )


@dataclass(frozen=True, eq=False)
class _SampledRows:
    """Our float64 recomputation of some queries `rows` (R,): scores and weights (H, R, n)."""

    rows: Tensor
    scores: Tensor
    weights: Tensor

    @classmethod
    def of(cls, record: AttentionRecord, rows: Tensor) -> _SampledRows:
        """Recompute some rows of a record."""
        across = _across_rows(record, rows)
        return cls(rows, across.scores(dtype=torch.float64), across.weights(dtype=torch.float64))


def _across_rows(record: AttentionRecord, rows: Tensor) -> AttentionRecord:
    """Return a record of some of its queries, with all keys."""
    return record.at(rows, torch.arange(len(record.key_axis), device=rows.device))


class _SummaryPairs:
    """Pairs of a float64 value and a reduced value of one attention, head by head."""

    def __init__(
        self,
        record: AttentionRecord,
        summary: MapSummary,
        sampled: _SampledRows,
        marked: Tensor | None,
    ) -> None:
        self.record, self.summary, self.sampled, self.marked = record, summary, sampled, marked
        self.m, self.n = len(record.query_axis), len(record.key_axis)
        self.empty = _empty(record)
        self.empty_agrees = torch.equal(self.empty, summary.empty.cpu())
        device = record.query.device
        chance = torch.Generator().manual_seed(record.layer)
        # The last row of cells may be smaller than the others: every third layer checks it.
        count = summary.mean.shape[1]
        self.cell = int(torch.randint(count, (), generator=chance))
        if record.layer % 3 == 2:
            self.cell = count - 1
        self.columns = torch.randperm(self.n, generator=chance)[:_COLUMNS].to(device)
        self.down = record.at(torch.arange(self.m, device=device), self.columns)
        self.sinks = record.sinks

    def pairs(self, head: int, index: int) -> Iterator[_Pair]:
        """Yield all pairs of a head, which has the position `index` in the summary."""
        P, S = self.sampled.weights[head].cpu(), self.sampled.scores[head].cpu()
        yield from self._rows(head, index, self.sampled.rows.cpu(), P, S)
        yield from self._cells(head, index)
        yield from self._received(head, index)
        yield from self._mass(head, index)

    def _rows(self, head: int, index: int, rows: Tensor, P: Tensor, S: Tensor) -> Iterator[_Pair]:
        """Yield the numbers of some queries, from their weights and scores (R, n)."""

        def reduced(name: str) -> Tensor:
            values: Tensor = getattr(self.summary, name)[index].cpu()[rows].double()
            return values

        P, i = P * ~self.empty[rows, None], rows + self.n - self.m
        visible, far = ~self.empty[rows], (i[:, None] - torch.arange(self.n)).abs()
        if (sink := self._sink(head, rows)) is not None:
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

    def _cells(self, head: int, index: int) -> Iterator[_Pair]:
        """Yield a row of cells of the pooled maps, and the numbers of its queries."""
        size, n = self.summary.cell, self.n
        rows = range(self.cell * size, min(self.m, (self.cell + 1) * size))
        sums, tops = (torch.zeros(-(-n // size), dtype=torch.float64) for _ in range(2))
        step = max(1, _WEIGHTS // n)
        for start in range(rows.start, rows.stop, step):
            block = slice(start, min(start + step, rows.stop))
            P = self.record.weights(head, block, torch.float64).cpu()
            S = self.record.scores(head, block, torch.float64).cpu()
            block_rows = torch.arange(block.start, block.stop)
            yield from self._rows(head, index, block_rows, P, S)
            P = P * ~self.empty[block_rows, None]
            cells = pad(P, (0, -n % size)).view(len(P), -1, size)
            sums += cells.sum((0, 2))
            tops = torch.maximum(tops, cells.amax((0, 2)))
        summary = self.summary
        mean = sums / (len(rows) * cell_sizes(n, size))
        yield mean, summary.mean[index, self.cell].cpu().double(), _TINY
        yield tops, summary.largest[index, self.cell].cpu().double(), _TINY

    def _received(self, head: int, index: int) -> Iterator[_Pair]:
        """Yield the weight that some keys receive from all queries."""
        S = self.down.scores(head, dtype=torch.float64).cpu()
        P = (S - self.summary.lse[index].cpu().double()[:, None]).exp() * ~self.empty[:, None]
        yield P.sum(0), self.summary.received[index].cpu()[self.columns.cpu()].double(), _TINY

    def _mass(self, head: int, index: int) -> Iterator[_Pair]:
        """Yield sums over the whole map, which no single row shows."""
        summary, size = self.summary, self.summary.cell
        lse, mean, largest = (
            field[index].cpu().double() for field in (summary.lse, summary.mean, summary.largest)
        )
        row_sums = (~self.empty).double()
        if (sink := self._sink(head, torch.arange(self.m))) is not None:
            row_sums = torch.where(self.empty, 0.0, 1 - (sink - lse).exp())
        heights, widths = cell_sizes(self.m, size), cell_sizes(self.n, size)
        by_row = pad(row_sums, (0, -self.m % size)).view(-1, size).sum(1)
        yield by_row, (mean * widths).sum(1) * heights, 1.0
        by_key = (
            pad(summary.received[index].cpu().double(), (0, -self.n % size)).view(-1, size).sum(1)
        )
        yield (mean * heights[:, None]).sum(0) * widths, by_key, 1.0
        yield torch.zeros_like(mean), (mean - largest).clamp(min=0), float(mean.max())

    def _sink(self, head: int, rows: Tensor) -> Tensor | None:
        """Return the sink's score in some rows, (R,), or None without sinks."""
        if self.sinks is None:
            return None
        sinks = self.sinks[head].detach().cpu().double()
        return sinks.expand(len(rows)) if sinks.dim() == 0 else sinks[rows]


def _empty(record: AttentionRecord) -> Tensor:
    """Return which queries may read no key at all, (m,), from the record alone."""
    m, n = len(record.query_axis), len(record.key_axis)
    if record.visible is not None:
        return record.visible.empty(m, n, record.query.device).cpu()
    if record.mask is None:
        return torch.zeros(m, dtype=torch.bool)
    return (record.mask <= torch.finfo(record.mask.dtype).min / 2).all(-1).all(0).cpu()


def _largest_score(record: AttentionRecord) -> float:
    """Return a bound of the scores; rounding errors grow with it."""
    query, key = (side.float().norm(dim=-1).amax() for side in (record.query, record.key))
    return abs(record.scale) * float(query * key)
