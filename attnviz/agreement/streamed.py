"""Proof of a long text: some rows of every head, and what was made of a row of cells.

A map that is never whole cannot be compared as a whole. So all stages are compared in some rows
with the model's own; the run in which maps are reduced with that; and what was reduced with the
same from our float64 weights.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from attnviz.agreement.compare import (
    Proof,
    bounded,
    compare,
    left_out,
    model_values,
    prove,
    tolerance_of,
)
from attnviz.agreement.reduced import (
    STREAMED,
    Reduced,
    Rows,
    across_rows,
    check_summary,
    largest_score,
)
from attnviz.agreement.tolerances import PRECISIONS, SMALLEST, dtypes
from attnviz.formula.attention import repeat_heads
from attnviz.results import AttentionRecord, Reference, StageCheck

_ELSEWHERE = 0.2  # of a row's weight: more is no rounding, in any precision
_PROJECTED = ("query", "key", "value")


def prove_rows(record: AttentionRecord, reference: Reference, rows: Tensor) -> Proof:
    """Compare some rows of an attention, stage by stage, with the model's own in the same run.

    reference : of the queries `rows` (R,) only.
    """
    # Q, K and V of these positions, and what follows from those queries and all keys.
    some, across = record.at(rows), across_rows(record, rows)
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
    reduced: Reduced,
) -> Proof:
    """Compare the run in which maps were reduced with the model's own, and what was kept of it.

    Parameters
    ----------
    attended : (H, m, d_v), the attention vectors that this run went on with.
    weights : (H, R, n), what the model computed for `rows` in a run of its own.
    reduced : what was kept of the maps.
    """
    some = Rows.of(record, rows)
    checks = (
        _check_run(record, weights, some),
        _check_attended(record, attended, some),
        check_summary(record, reduced, some),
    )
    return Proof(record.place, checks, (), False)


def _check_run(record: AttentionRecord, weights: Tensor, some: Rows) -> StageCheck:
    """Compare the weights of two runs: how much of a row's weight lies elsewhere, on the mean.

    They round in another order, and every layer computes from what those before it rounded.
    """
    moved = (some.weights - weights.double()).abs().sum(-1).mean(-1) / 2
    stages = {"weights": some.weights, "scores": some.scores}
    rounding = tolerance_of("weights", stages, PRECISIONS[dtypes(record)[1]])
    tolerance = min(_ELSEWHERE, 2 * (record.layer + 1) * rounding)
    return bounded(record, "second run", moved, tolerance, compared=weights.numel())


def _check_attended(record: AttentionRecord, attended: Tensor, some: Rows) -> StageCheck:
    """Compare some attention vectors with A·V of the same run in float64."""
    ours = some.weights @ repeat_heads(record.value.double(), record.heads)
    differences = (ours - attended[:, some.rows].double()).flatten(1).abs().amax(1)
    # Sums are taken in float32 at least; fused attention on a GPU rounds what comes of them.
    eps = torch.finfo(record.value.dtype if record.value.is_cuda else torch.float32).eps
    largest = ours.flatten(1).abs().amax(1).clamp(min=SMALLEST)
    tolerances = max(STREAMED, 4 * eps * max(1.0, largest_score(record))) * largest
    return bounded(record, "attention vectors", differences, tolerances, compared=ours.numel())
