"""Proof of a long text: some rows of every head, and the reduced maps.

A map that is never stored cannot be compared as a whole. So in some rows all stages are compared
with the model's own, and parts of the reduced maps with our float64 weights. And in every row the
attention vector of the reduced map is compared with the model's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from attnviz.agreement.compare import Proof, compare, model_values, prove, stages_not_compared
from attnviz.agreement.verdict import SMALLEST, bounded_check, largest_by_head
from attnviz.results import AttentionRecord, MaskRule, Reference, cell_sizes
from attnviz.runtime.libraries import copy_to_cpu

if TYPE_CHECKING:
    from attnviz.capture.streamed import ReducedAttention

_PROJECTED = ("query", "key", "value")
_WEIGHTS = {"cpu": 2**22, "cuda": 2**26}  # in float64, that are held at once
_COLUMNS = 8  # keys whose received weight is summed
_ROWS = 32  # of a row of cells, at most, whose numbers are compared
_CELLS = 4  # of a row of cells, at least, that are compared
_CELL_WEIGHTS = 2**18  # in these cells: of a short text all are compared
_STREAMED = 1e-5  # error of float32 sums, relative to the largest number of a kind
_ALL = slice(None)
_TINY = 1e-30  # no weight is smaller


def prove_rows(record: AttentionRecord, reference: Reference, rows: Tensor) -> Proof:
    """Compare some `rows` (R,) of an attention, stage by stage, with the model's own."""
    # Q, K and V of these positions, then all later stages of these queries with all keys.
    positions, across = record.at(rows), record.at(rows, slice(None))
    if (projection := record.projection) is not None:
        across = replace(across, projection=replace(projection, query=None, key=None, value=None))
    expected = model_values(positions, reference)
    projected = compare(positions, {stage: expected[stage] for stage in _PROJECTED})
    later = {stage: value for stage, value in expected.items() if stage not in _PROJECTED}
    proof = prove(across, later)
    checks = (*projected, *proof.checks)
    return replace(proof, checks=checks, not_compared=stages_not_compared(record, checks))


def prove_streamed(
    attention: ReducedAttention, rows: Tensor, marked: Tensor | None = None
) -> Proof:
    """Compare reduced maps with our float64 weights, and with the model's own output.

    rows : (R,), the queries that agree with the model's own (`prove_rows`). marked : (n,), which
    keys are marked in the summary.
    """
    record = attention.record
    summary = _SummaryComparison(attention, marked)
    summary.compare(
        rows.to(record.query.device), record.at(rows, slice(None)).scores(dtype=torch.float64)
    )
    query, key = (side.float().norm(dim=-1).amax() for side in (record.query, record.key))
    numbers = {"norms": query * key, "summary": summary.worst}
    if attention.model_sums is not None:
        # Of every query's attention vector and of the model's: a random sum of the features.
        errors = (attention.signed_sums - attention.model_sums).double().abs()
        empty = attention.summary.empty
        numbers["attention vectors"] = errors.masked_fill(empty, 0.0).amax(1)
        numbers["longest"] = attention.longest.double()
        numbers["count"] = (~empty).sum() * len(errors)
    numbers = copy_to_cpu([numbers])[0]
    bound = abs(record.scale) * float(numbers["norms"])  # of the scores; errors grow with it
    fine = torch.finfo(torch.float32).eps
    allowed: dict[str, tuple[float | Tensor, int]] = {}  # of each stage, and how many are compared
    if attention.model_sums is not None:
        # Rounding of the weights, of the values and of their mean is in the model's precision. That
        # of a score is too, unless attention is fused, and its effect is proportional to the score.
        coarse = max(fine, torch.finfo(record.value.dtype).eps)
        rounding = max(4 * coarse, 4 * (fine if attention.fused else coarse) * max(1.0, bound))
        longest = numbers["longest"].clamp(min=SMALLEST)
        allowed["attention vectors"] = max(_STREAMED, rounding) * longest, int(numbers["count"])
    # The error of a float32 product of d terms is at most d · eps / 2 times the product of the
    # norms, and so is that of their log-sum-exp; the relative error of a weight is the sum of both.
    allowed["summary"] = max(_STREAMED, record.query.shape[-1] * fine * bound), summary.count
    checks = tuple(
        bounded_check(record, stage, numbers[stage], most, compared=count, heads=attention.heads)
        for stage, (most, count) in allowed.items()
    )
    return Proof(record.place, checks, (), False)


class _SummaryComparison:
    """The reduced maps of one attention beside our float64 weights, on the model's device."""

    def __init__(self, attention: ReducedAttention, marked: Tensor | None) -> None:
        self.record, self.summary, self.marked = attention.record, attention.summary, marked
        record, summary = self.record, self.summary
        self.device = record.query.device
        self.m, self.n = len(record.query_axis), len(record.key_axis)
        self.heads = torch.tensor(attention.heads, device=self.device)
        self.all_heads = attention.heads == tuple(range(record.heads))
        # The queries that may read no key, from the record alone.
        self.empty = (record.visible or MaskRule()).empty(self.m, self.n, self.device)
        if record.visible is None and record.mask is not None:
            hidden = record.mask <= torch.finfo(record.mask.dtype).min / 2
            self.empty = hidden.all(-1).all(0)
        differs = (self.empty != summary.empty).any()
        zero = torch.zeros(len(attention.heads), dtype=torch.float64, device=self.device)
        # The largest error of each head, relative to the largest number of its kind.
        self.worst, self.count = zero.masked_fill(differs, torch.inf), 0

    def compare(self, rows: Tensor, scores: Tensor) -> None:
        """Compare everything; `scores` (all heads, R, n) are those of the sampled `rows`."""
        chance = torch.Generator("cpu").manual_seed(self.record.layer)
        down, across, size = *self.summary.mean.shape[1:], self.summary.cell
        # The last row of cells may be smaller than the others: every third layer checks it.
        cell = int(torch.randint(down, (), generator=chance, device="cpu"))
        cell = down - 1 if self.record.layer % 3 == 2 else cell
        block = range(cell * size, min(self.m, (cell + 1) * size))
        columns = torch.randperm(self.n, generator=chance, device="cpu")[:_COLUMNS]
        some = torch.randperm(len(block), generator=chance, device="cpu")[:_ROWS] + block.start
        count = max(_CELLS, _CELL_WEIGHTS // (len(block) * size))
        others = torch.randperm(across, generator=chance, device="cpu").tolist()
        diagonal = (block.start + self.n - self.m) // size
        cells = list(dict.fromkeys([min(max(diagonal, 0), across - 1), 0, across - 1, *others]))

        self._compare_rows(_ALL, rows, scores if self.all_heads else scores[self.heads])
        rows = some.to(self.device)
        for heads, part in self._blocks(len(rows), self.n):
            scores = self.record.part_of_scores(torch.float64, self.heads[heads], rows[part])
            self._compare_rows(heads, rows[part], scores)
        self._compare_cells(cell, block, torch.tensor(cells[:count], device="cpu"))
        # The weight that some keys receive from all queries.
        columns = columns.to(self.device)
        received = self.summary.received[:, columns]
        expected = torch.zeros_like(received, dtype=torch.float64)
        for heads, part in self._blocks(self.m, len(columns)):
            expected[heads] += self._weights(heads, part, columns).sum(1)
        self._add(_ALL, expected, received)
        self._compare_sums()

    def _add(
        self, heads: slice, expected: Tensor, reduced: Tensor, least: float | Tensor = _TINY
    ) -> None:
        """Compare numbers (heads, …) in float64 with reduced ones.

        least : the least scale of their difference. Errors of weights are relative, those of sums
        of logarithms and of distances absolute.
        """
        expected, reduced = expected.flatten(1), reduced.double().flatten(1)
        scale = largest_by_head(expected).clamp(min=least)
        worst = largest_by_head(expected - reduced) / scale
        self.worst[heads] = torch.maximum(self.worst[heads], worst)
        self.count += expected.numel()

    def _blocks(self, rows: int, columns: int) -> Iterator[tuple[slice, slice]]:
        """Yield some heads and some of their rows at a time: what is held at once."""
        most = _WEIGHTS.get(self.device.type, _WEIGHTS["cuda"])
        step = max(1, min(rows, most // columns))
        count = max(1, most // (step * columns))
        for head in range(0, len(self.heads), count):
            for row in range(0, rows, step):
                yield slice(head, head + count), slice(row, min(row + step, rows))

    def _compare_rows(self, heads: slice, rows: Tensor, scores: Tensor) -> None:
        """Compare the numbers of some queries of some heads; their scores are (heads, R, n)."""

        def reduced(name: str) -> Tensor:
            values: Tensor = getattr(self.summary, name)[heads]
            return values[:, rows]

        lse = scores.logsumexp(-1)
        if (sinks := self._sinks(heads, rows)) is not None:
            lse = torch.logaddexp(lse, sinks)
        empty, i = self.empty[rows], rows + self.n - self.m
        P = self._normalized(scores, lse, empty)
        self._add(heads, lse.masked_fill(empty, 0.0), reduced("lse").masked_fill(empty, 0.0), 1.0)
        self._add(heads, torch.special.entr(P).sum(-1), reduced("entropy"), 1.0)
        far = (i[:, None] - torch.arange(self.n, device=self.device)).abs().double()
        self._add(heads, torch.einsum("hij,ij->hi", P, far), reduced("distance"), 1.0)
        self._add(heads, P[..., 0], reduced("first"))
        for name, key in (("itself", i), ("previous", i - 1)):
            index = key.clamp(0, self.n - 1)[:, None].expand(len(P), -1, -1)
            weight = P.gather(2, index)[..., 0] * ((key >= 0) & (key < self.n))
            self._add(heads, weight, reduced(name))
        if self.marked is not None:
            self._add(heads, P @ self.marked.to(P), reduced("marked"))
        if (k := self.summary.top_keys.shape[-1]) > 0:
            keys, weights = reduced("top_keys").long(), reduced("top_weights")
            self._add(heads, P.topk(k).values, weights)
            self._add(heads, P.gather(2, keys.clamp(min=0)) * (keys >= 0), weights)

    def _compare_cells(self, cell: int, rows: range, cells: Tensor) -> None:
        size, widths = self.summary.cell, cell_sizes(self.n, self.summary.cell)[cells]
        columns = cells[:, None] * size + torch.arange(size, device="cpu")
        outside = columns >= self.n if columns.amax() >= self.n else None  # in a smaller last cell
        columns = columns.clamp(max=self.n - 1).flatten().to(self.device)
        sums, tops = torch.zeros(
            2, len(self.heads), len(cells), dtype=torch.float64, device=self.device
        )
        for heads, block in self._blocks(len(rows), len(columns)):
            some = slice(rows[block].start, rows[block].stop)
            P = self._weights(heads, some, columns)
            P = P.view(*P.shape[:2], len(cells), size)
            if outside is not None:
                P.masked_fill_(outside.to(self.device), 0.0)
            sums[heads] += P.sum((1, 3))
            tops[heads] = torch.maximum(tops[heads], P.amax((1, 3)))
        # The largest of all cells in the row, which scales the errors, is no less than the mean.
        least = (self._row_sums()[:, rows.start : rows.stop].mean(1) / self.n).clamp(min=_TINY)
        cells = cells.to(self.device)
        mean, largest = self.summary.mean[:, cell], self.summary.largest[:, cell]
        self._add(_ALL, sums / (len(rows) * widths).to(self.device), mean[:, cells], least)
        self._add(_ALL, tops, largest[:, cells], least)

    def _compare_sums(self) -> None:
        """Compare sums over the whole map, which no single row shows."""
        size, summary = self.summary.cell, self.summary

        def by_cell(numbers: Tensor) -> Tensor:
            return pad(numbers, (0, -numbers.shape[1] % size)).view(len(numbers), -1, size).sum(2)

        mean, largest = summary.mean.double(), summary.largest.double()
        heights, widths = (cell_sizes(count, size, self.device) for count in (self.m, self.n))
        by_row = by_cell(self._row_sums())
        self._add(_ALL, by_row, (mean * widths).sum(2) * heights, 1.0)
        by_key = by_cell(summary.received.double())
        self._add(_ALL, (mean * heights[:, None]).sum(1) * widths, by_key, 1.0)
        above = (mean - largest).clamp(min=0)
        self._add(_ALL, torch.zeros_like(mean), above, largest_by_head(mean).clamp(min=_TINY))

    def _weights(self, heads: slice, rows: slice, columns: Tensor) -> Tensor:
        """Return a part of the weights, from its scores and the reduced log-sum-exp of its rows."""
        scores = self.record.part_of_scores(torch.float64, self.heads[heads], rows, columns)
        return self._normalized(scores, self.summary.lse[heads, rows].double(), self.empty[rows])

    @staticmethod
    def _normalized(scores: Tensor, lse: Tensor, empty: Tensor) -> Tensor:
        """Return the weights of scores (heads, rows, keys), in place; 0 in empty rows."""
        return scores.sub_(lse.masked_fill(empty, torch.inf)[..., None]).exp_()

    def _row_sums(self) -> Tensor:
        """Return the weight (H, m) of each query for all keys together."""
        lse = self.summary.lse.double()
        sums = torch.ones_like(lse)
        if (sinks := self._sinks(_ALL, _ALL)) is not None:
            sums = 1 - (sinks - lse).exp()
        return sums.masked_fill(self.empty, 0.0)

    def _sinks(self, heads: slice, rows: Tensor | slice) -> Tensor | None:
        """Return the sinks' scores, (heads, rows or 1), or None without sinks."""
        if self.record.sinks is None:
            return None
        sinks = self.record.sinks.detach()[self.heads[heads]].double()
        return sinks[:, None] if sinks.dim() == 1 else sinks[:, rows]
