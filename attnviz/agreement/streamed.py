"""Proof of a long text: some rows of every head, and the reduced maps.

A map that is never stored cannot be compared as a whole. So in some rows all stages are compared
with the model's own, and parts of the reduced maps with our float64 weights. And in every row the
attention vector of the reduced map is compared with the model's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from attnviz.agreement import compare
from attnviz.agreement.verdict import SMALLEST, Proof, bounded_check, largest_by_head
from attnviz.results import AttentionRecord, MaskRule, cell_sizes
from attnviz.runtime.libraries import copy_to_cpu

if TYPE_CHECKING:
    from attnviz.capture.streamed import ReducedAttention, Sample

_PROJECTED = ("query", "key", "value")
_WEIGHTS = {"cpu": 2**22, "cuda": 2**26}  # in float64, that are held at once
_COLUMNS = 8  # keys whose received weight is summed
_ROWS = 32  # of a row of cells, at most, whose numbers are compared
_CELLS = 4  # of a row of cells, at least, that are compared
_CELL_WEIGHTS = 2**18  # in these cells: of a short text all are compared
_STREAMED = 1e-5  # error of float32 sums, relative to the largest number of a kind
_ALL = slice(None)
_TINY = 1e-30  # no weight is smaller


def prove_rows(samples: Sequence[Sample], rows: Tensor) -> list[Proof]:
    """Compare some `rows` (R,) of each attention, stage by stage, with the model's own."""
    # Q, K and V of these positions, then all later stages of these queries with all keys.
    projected, later = [], []
    masks: dict[object, Tensor | None] = {}  # by the rule that they follow
    for sample in samples:
        record, positions = sample.record, sample.part
        rule = record.visible, record.query.dtype, record.query.device
        if rule[0] is not None and rule in masks:
            across = replace(replace(record, visible=None).at(rows, _ALL), mask=masks[rule])
        else:
            across = record.at(rows, _ALL)
            masks[rule] = across.mask
        if (known := across.projection) is not None:
            known = replace(known, query=None, key=None, value=None)
        expected = compare.model_values(positions, sample.reference)
        projected.append((positions, {stage: expected.pop(stage) for stage in _PROJECTED}))
        later.append((replace(across, projection=known), expected))
    proofs = []
    together = zip(samples, compare.compare(projected)[0], compare.prove(later), strict=True)
    for sample, of_projected, proof in together:
        checks = (*of_projected, *proof.checks)
        left_out = compare.stages_not_compared(sample.record, checks)
        proofs.append(replace(proof, checks=checks, not_compared=left_out))
    return proofs


def prove_streamed(
    attentions: Sequence[ReducedAttention], rows: Tensor, marked: Tensor | None = None
) -> list[Proof]:
    """Compare reduced maps with our float64 weights, and with the model's own output.

    rows : (R,), the queries that agree with the model's own (`prove_rows`). marked : (n,), which
    keys are marked in the summary.
    """
    of_form: dict[object, list[ReducedAttention]] = {}
    for one in attentions:
        record = one.record
        terms = (record.mask, record.bias, record.capped_bias)
        large = [id(term) for term in terms if term is not None]  # (H, m, n): joined with no other
        key = compare.form(record, {}), *large, one.heads, one.model_sums is None, _is_last(record)
        of_form.setdefault(key, []).append(one)
    proofs = {
        id(one): proof
        for alike in of_form.values()
        for one, proof in zip(alike, _prove_alike(alike, rows, marked), strict=True)
    }
    return [proofs[id(one)] for one in attentions]


def _prove_alike(
    attentions: Sequence[ReducedAttention], rows: Tensor, marked: Tensor | None
) -> list[Proof]:
    """Compare attentions of one form, as one with the heads of all."""
    summary, first, count = _SummaryComparison(attentions, marked), attentions[0], len(attentions)
    summary.compare(rows)
    joined = summary.record
    norms = [
        torch.linalg.vector_norm(side, dim=-1, dtype=torch.float32).view(count, -1).amax(1)
        for side in (joined.query, joined.key)
    ]
    numbers = {"norms": norms[0] * norms[1], "summary": summary.worst.view(count, -1)}
    if first.model_sums is not None:
        # Of every query's attention vector and of the model's: a random sum of the features.
        sums = [(one.signed_sums, one.model_sums) for one in attentions]
        errors = torch.stack([ours - model for ours, model in sums if model is not None]).double()
        numbers["attention vectors"] = errors.abs().masked_fill(summary.empty, 0.0).amax(2)
        numbers["longest"] = torch.stack([one.longest.double() for one in attentions])
        numbers["count"] = (~summary.empty).sum()
    (numbers,) = copy_to_cpu([numbers])
    # The scores are bounded by it; errors grow with it.
    bounds = (abs(joined.scale) * numbers["norms"]).tolist()
    fine = torch.finfo(torch.float32).eps
    proofs = []
    for n, (one, bound) in enumerate(zip(attentions, bounds, strict=True)):
        allowed: dict[str, tuple[float | Tensor, int]] = {}  # of a stage, and how many are compared
        if one.model_sums is not None:
            # Rounding of the weights, of the values and of their mean is in the model's precision.
            # That of a score is too, unless attention is fused, and its effect is proportional to
            # the score.
            coarse = max(fine, torch.finfo(joined.value.dtype).eps)
            rounding = max(4 * coarse, 4 * (fine if one.fused else coarse) * max(1.0, bound))
            longest = numbers["longest"][n].clamp(min=SMALLEST)
            compared = len(one.heads) * int(numbers["count"])
            allowed["attention vectors"] = max(_STREAMED, rounding) * longest, compared
        # The error of a float32 product of d terms is at most d · eps / 2 times the product of the
        # norms, and so is that of their log-sum-exp; the relative error of a weight is the sum of
        # both.
        most = max(_STREAMED, joined.query.shape[-1] * fine * bound)
        allowed["summary"] = most, summary.count // count
        checks = tuple(
            bounded_check(
                one.record, stage, numbers[stage][n], most, compared=compared, heads=one.heads
            )
            for stage, (most, compared) in allowed.items()
        )
        proofs.append(Proof(one.record.place, checks, (), False))
    return proofs


def _is_last(record: AttentionRecord) -> bool:
    """Whether the last row of cells is compared, which may be smaller than the others."""
    return record.layer % 3 == 2


class _SummaryComparison:
    """The reduced maps of attentions of one form beside our float64 weights, on their device."""

    def __init__(self, attentions: Sequence[ReducedAttention], marked: Tensor | None) -> None:
        first, self.marked = attentions[0], marked
        self.record = record = compare.join([one.record for one in attentions])
        of_heads: dict[str, Any] = {
            name: compare.cat([getattr(one.summary, name) for one in attentions])
            for name, value in vars(first.summary).items()
            if name != "empty" and isinstance(value, Tensor)
        }
        self.summary = replace(first.summary, **of_heads)
        self.device = record.query.device
        self.m, self.n = len(record.query_axis), len(record.key_axis)
        starts = [n * first.record.heads for n in range(len(attentions))]
        heads = [start + head for start in starts for head in first.heads]
        self.heads = torch.tensor(heads, device=self.device)
        # The queries that may read no key, from the record alone.
        self.empty = (record.visible or MaskRule()).empty(self.m, self.n, self.device)
        if record.visible is None and record.mask is not None:
            hidden = record.mask <= torch.finfo(record.mask.dtype).min / 2
            self.empty = hidden.all(-1).all(0)
        differs = torch.stack([(self.empty != one.summary.empty).any() for one in attentions])
        zero = torch.zeros(len(heads), dtype=torch.float64, device=self.device)
        # The largest error of each head, relative to the largest number of its kind.
        differs = differs.repeat_interleave(len(first.heads), output_size=len(heads))
        self.worst, self.count = zero.masked_fill(differs, torch.inf), 0

    def compare(self, rows: Tensor) -> None:
        """Compare everything, in the sampled `rows` and in others."""
        chance = torch.Generator("cpu").manual_seed(self.record.layer)
        down, across, size = *self.summary.mean.shape[1:], self.summary.cell
        cell = int(torch.randint(down, (), generator=chance, device="cpu"))
        cell = down - 1 if _is_last(self.record) else cell
        block = range(cell * size, min(self.m, (cell + 1) * size))
        columns = torch.randperm(self.n, generator=chance, device="cpu")[:_COLUMNS]
        some = torch.randperm(len(block), generator=chance, device="cpu")[:_ROWS] + block.start
        count = max(_CELLS, _CELL_WEIGHTS // (len(block) * size))
        others = torch.randperm(across, generator=chance, device="cpu").tolist()
        diagonal = (block.start + self.n - self.m) // size
        cells = list(dict.fromkeys([min(max(diagonal, 0), across - 1), 0, across - 1, *others]))

        for chosen in (rows.to(self.device), some.to(self.device)):
            for heads, part in self._blocks(len(chosen), self.n):
                queries = chosen[part]
                scores = self.record.scores(self.heads[heads], queries, torch.float64)
                self._compare_rows(heads, queries, scores)
        self._compare_cells(cell, block, torch.tensor(cells[:count], device="cpu"))
        # The weight that some keys receive from all queries.
        columns = columns.to(self.device)
        received = self.summary.received[:, columns]
        expected = torch.zeros_like(received, dtype=torch.float64)
        for heads, part in self._blocks(self.m, len(columns)):
            expected[heads] += self._weights(heads, part, columns).sum(1)
        self._add(_ALL, (expected, received))
        self._compare_sums()

    def _add(
        self, heads: slice, *pairs: tuple[Tensor, Tensor], least: float | Tensor = _TINY
    ) -> None:
        """Compare numbers (heads, …) in float64 with reduced ones, of one shape in all pairs.

        least : the least scale of their difference. Errors of weights are relative, those of sums
        of logarithms and of distances absolute.
        """
        expected, reduced = (torch.stack(side).flatten(2) for side in zip(*pairs, strict=True))
        scale = expected.abs().amax(2).clamp(min=least)
        worst = ((expected - reduced).abs().amax(2) / scale).amax(0)
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
        P = scores.sub_(lse.masked_fill(empty, torch.inf)[..., None]).exp_()
        far = (i[:, None] - torch.arange(self.n, device=self.device)).abs().double()
        self._add(
            heads,
            (lse.masked_fill(empty, 0.0), reduced("lse").masked_fill(empty, 0.0)),
            (torch.special.entr(P).sum(-1), reduced("entropy")),
            (torch.einsum("hij,ij->hi", P, far), reduced("distance")),
            least=1.0,
        )
        weights = [(P[..., 0], reduced("first"))]
        for name, key in (("itself", i), ("previous", i - 1)):
            index = key.clamp(0, self.n - 1)[:, None].expand(len(P), -1, -1)
            weight = P.gather(2, index)[..., 0] * ((key >= 0) & (key < self.n))
            weights.append((weight, reduced(name)))
        if self.marked is not None:
            weights.append((P @ self.marked.to(P), reduced("marked")))
        self._add(heads, *weights)
        if (k := self.summary.top_keys.shape[-1]) > 0:
            keys, top = reduced("top_keys").long(), reduced("top_weights")
            found = P.gather(2, keys.clamp(min=0)) * (keys >= 0)
            self._add(heads, (P.topk(k).values, top), (found, top))

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
        sums = sums / (len(rows) * widths).to(self.device)
        self._add(_ALL, (sums, mean[:, cells]), (tops, largest[:, cells]), least=least)

    def _compare_sums(self) -> None:
        """Compare sums over the whole map, which no single row shows."""
        size, summary = self.summary.cell, self.summary

        def by_cell(numbers: Tensor) -> Tensor:
            return pad(numbers, (0, -numbers.shape[1] % size)).view(len(numbers), -1, size).sum(2)

        mean, largest = summary.mean.double(), summary.largest.double()
        heights, widths = (cell_sizes(count, size).to(self.device) for count in (self.m, self.n))
        by_row = by_cell(self._row_sums())
        self._add(_ALL, (by_row, (mean * widths).sum(2) * heights), least=1.0)
        by_key = by_cell(summary.received.double())
        self._add(_ALL, ((mean * heights[:, None]).sum(1) * widths, by_key), least=1.0)
        above = (mean - largest).clamp(min=0)
        least = largest_by_head(mean).clamp(min=_TINY)
        self._add(_ALL, (torch.zeros_like(mean), above), least=least)

    def _weights(self, heads: slice, rows: slice, columns: Tensor) -> Tensor:
        """Return a part of the weights, from its scores and the reduced log-sum-exp of its rows."""
        scores = self.record.scores(self.heads[heads], rows, torch.float64, columns)
        lse = self.summary.lse[heads, rows].double().masked_fill(self.empty[rows], torch.inf)
        return scores.sub_(lse[..., None]).exp_()

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
