"""Proof: our attention against the model's own, stage by stage, head by head.

Every stage is recomputed in float64: Q, K and V from the module's input and weights, all that
follows from the Q, K and V that the model had. A difference passes only if it is within the
tolerance of the model's precision *and* what our own run in that precision errs too. Two faults
would hide in that: a scale that is a little off looks like rounding in bfloat16, but not in the
slope of the log weights (or of the values); a mask that is not quite a mask shows only in weights
that should be exactly 0. So both are checked.
And since a check that cannot fail proves nothing, a scale 1 % off is planted in every layer, and
must be caught.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from attnviz.agreement.compare import (
    Proof,
    bounded,
    hidden_keys,
    model_values,
    prove,
    real_rows,
    tolerance_of,
)
from attnviz.agreement.tolerances import PRECISIONS, dtypes
from attnviz.results import (
    AgreementReport,
    AttentionRecord,
    Reference,
    StageCheck,
)


def verify(
    records: Sequence[AttentionRecord],
    references: Sequence[Reference],
    *,
    in_one_pass: Sequence[Tensor] = (),
    versions: dict[str, str],
    weights_sha256: str,
) -> AgreementReport:
    """Compare every record with what the untouched model computed by itself.

    Parameters
    ----------
    records, references : one pair per attention, in the order of execution.
    in_one_pass : for a generation, what the weights (H, m, n) of each are in a single pass.
    versions, weights_sha256 : what ran; the report carries them.

    Returns
    -------
    The report: per layer, stage and head the largest difference, and a verdict.
    """
    proofs = [
        prove(record, model_values(record, reference))
        for record, reference in zip(records, references, strict=True)
    ]
    generated = zip(records, in_one_pass, strict=in_one_pass != ())
    checks = tuple(_check_generation(record, weights) for record, weights in generated)
    proofs.append(Proof("", checks, (), False))
    query = records[0].query if records else None
    dtype = "" if query is None else str(query.dtype).removeprefix("torch.")
    device = "" if query is None else str(query.device)
    return report(proofs, dtype, device, versions=versions, weights_sha256=weights_sha256)


def report(
    proofs: Iterable[Proof],
    dtype: str,
    device: str,
    *,
    versions: dict[str, str],
    weights_sha256: str,
    rows: tuple[int, int] | None = None,
) -> AgreementReport:
    """Return what the proofs of all attentions say together.

    rows : how many queries were compared, of how many; None for all.
    """
    every = list(proofs)
    return AgreementReport(
        checks=tuple(check for proof in every for check in proof.checks),
        not_compared=tuple(left for proof in every for left in proof.not_compared),
        unproven=tuple(proof.place for proof in every if proof.unproven),
        dtype=dtype,
        device=device,
        versions=versions,
        weights_sha256=weights_sha256,
        rows=rows,
    )


def _check_generation(record: AttentionRecord, weights: Tensor) -> StageCheck:
    """Compare the weights of a generation, step by step, with those of one pass over the whole."""
    rows = real_rows(record, "weights", hidden_keys(record))
    ours, whole = record.weights().double()[:, rows], weights.double()[:, rows]
    differences = (ours - whole).abs().flatten(1).amax(1)
    # The two round in another order, and every layer computes from what those before it rounded.
    _, dtype = dtypes(record)
    stages = {"weights": record.weights(), "scores": record.scores()}
    tolerance = 2 * (record.layer + 1) * tolerance_of("weights", stages, PRECISIONS[dtype])
    return bounded(record, "one pass", differences, tolerance, compared=ours.numel())
