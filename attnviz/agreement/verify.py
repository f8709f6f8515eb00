"""The report on a model: the proofs of all its attentions, and of a generation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from attnviz.agreement.compare import (
    Proof,
    bounded_check,
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
    records, references : sequences
        One pair for each attention, in the order of execution.
    in_one_pass : sequence of Tensor
        For a generation, the weights (H, m, n) of each attention in a single pass.
    versions, weights_sha256
        What ran; the report names them.

    Returns
    -------
    AgreementReport
        For each layer, stage and head the largest difference, and a verdict.
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
    """Return the report on the proofs of all attentions.

    rows : how many queries were compared, and of how many; None for all.
    """
    proofs = list(proofs)
    return AgreementReport(
        checks=tuple(check for proof in proofs for check in proof.checks),
        not_compared=tuple(stage for proof in proofs for stage in proof.not_compared),
        unproven=tuple(proof.place for proof in proofs if proof.unproven),
        dtype=dtype,
        device=device,
        versions=versions,
        weights_sha256=weights_sha256,
        rows=rows,
    )


def _check_generation(record: AttentionRecord, weights: Tensor) -> StageCheck:
    """Compare the weights of a generation, step by step, with those of one pass."""
    rows = real_rows(record, "weights", hidden_keys(record))
    ours, one_pass = record.weights().double()[:, rows], weights.double()[:, rows]
    differences = (ours - one_pass).abs().flatten(1).amax(1)
    # The two round in a different order, and rounding errors add up from layer to layer.
    _, dtype = dtypes(record)
    stages = {"weights": record.weights(), "scores": record.scores()}
    tolerance = 2 * (record.layer + 1) * tolerance_of("weights", stages, PRECISIONS[dtype])
    return bounded_check(record, "one pass", differences, tolerance, compared=ours.numel())
