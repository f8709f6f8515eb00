"""Proof of a long text: some rows of every head, and what was made of a row of cells.

A map that is never whole cannot be compared as a whole. So all stages are compared in some rows
with the model's own; the run in which maps are reduced with that; and what was reduced with the
same from our float64 weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from attnviz.agreement.comparing import (
    Proof,
    compare,
    failed_heads,
    left_out,
    model_values,
    prove,
    tolerance_of,
)
from attnviz.agreement.precision import PRECISIONS, dtypes
from attnviz.records import AttentionRecord, Reference, StageCheck, Summary

_WEIGHTS = 2**20  # of a head, in float64, that are held at once
_STREAMED = 1e-5  # of the largest number of a kind: what float32 sums may err
_ELSEWHERE = 0.2  # of a row's weight: more is no rounding, in any precision
_TINY = 1e-30  # nothing smaller is a weight
_PROJECTED = ("query", "key", "value")


def prove_rows(record: AttentionRecord, reference: Reference, rows: Tensor) -> Proof:
    """Compare some rows of an attention, stage by stage, with the model's own in the same run.

    reference : of the queries `rows` (R,) only.
    """
    # Q, K and V of these positions, and what follows from those queries and all keys.
    some, across = record.at(rows), _across(record, rows)
    if (known := record.projection) is not None:
        across = replace(across, projection=replace(known, query=None, key=None, value=None))
    own = model_values(some, reference)
    projected = compare(some, {stage: own[stage] for stage in _PROJECTED})
    expected = {stage: value for stage, value in own.items() if stage not in _PROJECTED}
    proof = prove(across, expected)
    checks = (*projected, *proof.checks)
    return replace(proof, checks=checks, not_compared=left_out(record, checks))


def prove_streamed(
    record: AttentionRecord,
    weights: Tensor,
    rows: Tensor,
    summary: Summary,
    heads: Sequence[int],
) -> Proof:
    """Compare the run in which maps were reduced with the model's own, and what was kept of it.

    Parameters
    ----------
    weights : (H, R, n), what the model computed for `rows` in a run of its own. summary : of the
        maps of `heads`.
    """
    checks = _check_run(record, weights, rows), _check_summary(record, summary, heads)
    return Proof(record.place, checks, (), False)


def _across(record: AttentionRecord, rows: Tensor) -> AttentionRecord:
    return record.at(rows, torch.arange(len(record.key_axis), device=rows.device))


def _check_run(record: AttentionRecord, weights: Tensor, rows: Tensor) -> StageCheck:
    """Compare the weights of two runs: how much of a row's weight lies elsewhere, on the mean.

    They round in another order, and every layer computes from what those before it rounded.
    """
    across = _across(record, rows)
    ours, model = across.weights(dtype=torch.float64), weights.double()
    moved = (ours - model).abs().sum(-1).mean(-1) / 2
    stages = {"weights": ours, "scores": across.scores(dtype=torch.float64)}
    rounding = tolerance_of("weights", stages, PRECISIONS[dtypes(record)[1]])
    tolerance = min(_ELSEWHERE, 2 * (record.layer + 1) * rounding)
    return StageCheck(
        stack=record.stack,
        layer=record.layer,
        path=record.path,
        stage="second run",
        differences=tuple(moved.tolist()),
        tolerances=(tolerance,) * len(moved),
        own_errors=(0.0,) * len(moved),
        compared=ours.numel(),
        finite=bool(moved.isfinite().all()),
        failed_heads=failed_heads(~(moved <= tolerance)),
    )


def _check_summary(record: AttentionRecord, summary: Summary, heads: Sequence[int]) -> StageCheck:
    """Compare a row of cells, another one in every layer, with our float64 weights."""
    cell = 7919 * (record.layer + 1) % summary.mean.shape[1]
    differences, count = [], 0
    for at, head in enumerate(heads):
        worst = torch.zeros((), dtype=torch.float64)
        for ours, kept, least in _cell_row(record, head, summary, at, cell):
            scale = ours.abs().amax().clamp(min=least)
            worst = torch.maximum(worst, ((ours - kept.double()).abs().amax() / scale).cpu())
            count += ours.numel()
        differences.append(float(worst))
    found = torch.tensor(differences)
    score = _largest_score(record)
    tolerance = max(_STREAMED, 4 * torch.finfo(torch.float32).eps * score)
    return StageCheck(
        stack=record.stack,
        layer=record.layer,
        path=record.path,
        stage="summary",
        differences=tuple(differences),
        tolerances=(tolerance,) * len(differences),
        own_errors=(0.0,) * len(differences),
        compared=count,
        finite=bool(found.isfinite().all()),
        failed_heads=tuple(heads[at] for at in failed_heads(~(found <= tolerance))),
    )


def _cell_row(
    record: AttentionRecord, head: int, summary: Summary, at: int, cell: int
) -> Iterator[tuple[Tensor, Tensor, float]]:
    """Yield what a row of cells of a head says in float64, what was kept of it, and a least scale.

    Weights err in proportion to themselves; sums of logarithms and distances by what they sum.
    """
    m, n, size = len(record.query_axis), len(record.key_axis), summary.cell
    rows = range(cell * size, min(m, (cell + 1) * size))
    step = max(1, _WEIGHTS // n)
    sums, tops = (torch.zeros(-(-n // size), dtype=torch.float64) for _ in range(2))
    j = torch.arange(n)
    for start in range(rows.start, rows.stop, step):
        part = slice(start, min(start + step, rows.stop))
        P = record.weights(head, part, torch.float64).cpu()
        P = P * ~summary.empty[part, None].cpu()
        cells = pad(P, (0, -n % size)).view(len(P), -1, size)
        sums += cells.sum((0, 2))
        tops = torch.maximum(tops, cells.amax((0, 2)))
        i = torch.arange(part.start, part.stop) + n - m
        logs = P.clamp(min=1e-300).log()
        yield -(P * logs).sum(-1), summary.entropy[at, part].cpu(), 1.0
        yield (P * (i[:, None] - j).abs()).sum(-1), summary.distance[at, part].cpu(), 1.0
        yield P[:, 0], summary.first[at, part].cpu(), _TINY
        for name, key in (("itself", i), ("previous", i - 1)):
            one = P.gather(1, key.clamp(min=0)[:, None])[:, 0] * (key >= 0)
            yield one, getattr(summary, name)[at, part].cpu(), _TINY
        k = summary.top_weights.shape[-1]
        if k:
            yield P.topk(k).values, summary.top_weights[at, part].cpu(), _TINY
    widths = torch.full((len(sums),), size, dtype=torch.float64)
    widths[-1] = n - size * (len(sums) - 1)
    yield sums / (len(rows) * widths), summary.mean[at, cell].cpu(), _TINY
    yield tops, summary.largest[at, cell].cpu(), _TINY
    heights = torch.full((summary.mean.shape[1], 1), size, dtype=torch.float64)
    heights[-1] = m - size * (len(heights) - 1)
    received = pad(summary.received[at].double().cpu(), (0, -n % size)).view(-1, size).sum(-1)
    yield (summary.mean[at].double().cpu() * heights).sum(0) * widths, received, _TINY


def _largest_score(record: AttentionRecord) -> float:
    """Return a bound of the scores: rounding grows with them."""
    query, key = (part.float().norm(dim=-1).amax() for part in (record.query, record.key))
    return abs(record.scale) * float(query * key)
