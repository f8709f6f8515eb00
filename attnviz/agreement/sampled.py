"""Proof of a long text: some rows of every head, and what was made of a row of cells.

A map that is never whole cannot be compared as a whole. So all stages are compared in some rows
with the model's own; the run in which maps are reduced with that; and what was reduced with the
same from our float64 weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attnviz.agreement.comparing import (
    Proof,
    compare,
    failed_heads,
    left_out,
    model_values,
    prove,
    tolerance_of,
)
from attnviz.agreement.precision import PRECISIONS, SMALLEST, dtypes
from attnviz.agreement.reduced import STREAMED, check_summary, largest_score
from attnviz.attention import repeat_heads
from attnviz.records import AttentionRecord, Reference, StageCheck, Summary

_ELSEWHERE = 0.2  # of a row's weight: more is no rounding, in any precision
_PROJECTED = ("query", "key", "value")


@dataclass(frozen=True, eq=False)
class Kept:
    """What is kept of an attention: the summary of the maps of some heads, and marked keys (n,)."""

    summary: Summary
    heads: tuple[int, ...]
    marked: Tensor | None = None


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
    attended: Tensor,
    weights: Tensor,
    rows: Tensor,
    kept: Kept,
) -> Proof:
    """Compare the run in which maps were reduced with the model's own, and what was kept of it.

    Parameters
    ----------
    attended : (H, m, d_v), the attention vectors that this run went on with.
    weights : (H, R, n), what the model computed for `rows` in a run of its own.
    """
    checks = (
        _check_run(record, weights, rows),
        _check_attended(record, attended, rows),
        check_summary(record, kept.summary, kept.heads, rows, kept.marked),
    )
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


def _check_attended(record: AttentionRecord, attended: Tensor, rows: Tensor) -> StageCheck:
    """Compare some attention vectors with A·V of the same run in float64."""
    P = _across(record, rows).weights(dtype=torch.float64)
    ours = P @ repeat_heads(record.value.double(), record.heads)
    own = attended[:, rows].double()
    differences = (ours - own).flatten(1).abs().amax(1)
    # Sums are taken in float32 at least; fused attention on a GPU rounds what comes of them.
    eps = torch.finfo(record.value.dtype if record.value.is_cuda else torch.float32).eps
    largest = ours.flatten(1).abs().amax(1).clamp(min=SMALLEST)
    tolerances = max(STREAMED, 4 * eps * max(1.0, largest_score(record))) * largest
    return StageCheck(
        stack=record.stack,
        layer=record.layer,
        path=record.path,
        stage="attention vectors",
        differences=tuple(differences.tolist()),
        tolerances=tuple(tolerances.tolist()),
        own_errors=(0.0,) * len(differences),
        compared=ours.numel(),
        finite=bool(own.isfinite().all()),
        failed_heads=failed_heads(~(differences <= tolerances)),
    )
