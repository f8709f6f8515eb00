"""One attention, stage by stage: our float64 recomputation against the model's own values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attnviz.results import AgreementReport, AttentionRecord, Reference, StageCheck
from attnviz.results.projection import STAGES, parts_of_output, recompute

CANARY = 1.01  # the factor on the scale that must be caught

# Errors that always pass, as a fraction of a head's largest value: two rounding steps in the
# model's precision, and the effect of the order of summation in float32.
SMALLEST = 1e-6  # the least value that counts as a head's largest
FLOOR, SUMMATION = 2, 16 * torch.finfo(torch.float32).eps


@dataclass(frozen=True)
class Precision:
    """The largest rounding errors in one dtype; `eps` and `tiny` are as in `torch.finfo`."""

    weights: float
    values: float  # of all other stages, relative to the stage's largest value
    slope: float  # of the regression of log weights
    eps: float
    tiny: float


# Measured on all-MiniLM-L6-v2 and on random models with sharp attention.
PRECISIONS = {
    dtype: Precision(*errors, torch.finfo(dtype).eps, torch.finfo(dtype).tiny)
    for dtype, errors in {
        torch.float32: (5e-6, 1e-5, 1e-5),
        torch.float16: (1e-2, 5e-3, 1e-3),
        torch.bfloat16: (5e-2, 4e-2, 4e-3),
    }.items()
}


def dtypes(record: AttentionRecord) -> tuple[torch.dtype, torch.dtype]:
    """Return the dtypes in which the model computes its weights, and everything else.

    Some models convert queries and keys to float32 for the weights only. A model in float64 may
    still compute its softmax in float32.
    """
    fine = record.query.dtype if record.query.dtype in PRECISIONS else torch.float32
    value = record.value.dtype if record.value.dtype in PRECISIONS else torch.float32
    return fine, max(fine, value, key=lambda dtype: PRECISIONS[dtype].eps)


def verify(
    records: Sequence[AttentionRecord],
    references: Sequence[Reference],
    *,
    in_one_pass: Sequence[Tensor] = (),
    versions: dict[str, str],
    weights_sha256: str,
) -> AgreementReport:
    """Compare every record with what the untouched model computed by itself.

    There is one reference for each record, in the order of execution. `in_one_pass` holds, for a
    generation, the weights (H, m, n) of each attention in a single pass.
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


@dataclass(frozen=True)
class Proof:
    """The comparison of one attention: what an `AgreementReport` has of all attentions."""

    place: str  # the stack and the layer
    checks: tuple[StageCheck, ...]  # one for each stage that was compared
    not_compared: tuple[tuple[str, str, str], ...]  # place, stage and reason of the others
    unproven: bool  # whether the canary was not caught


def prove(record: AttentionRecord, expected: dict[str, Tensor]) -> Proof:
    """Compare a record with the model's own values, and check that the canary is caught."""
    checks = tuple(compare(record, expected))
    # Only the stages after the scale are compared: a wrong Q must not count as a caught canary.
    canary = replace(record, scale=record.scale * CANARY, projection=None, input=None)
    unproven = all(check.passed for check in compare(canary, expected))
    return Proof(record.place, checks, stages_not_compared(record, checks), unproven)


def stages_not_compared(
    record: AttentionRecord, checks: tuple[StageCheck, ...]
) -> tuple[tuple[str, str, str], ...]:
    """Return (place, stage, reason) of every stage that was not compared."""
    compared = {check.stage for check in checks}
    reasons = dict.fromkeys(STAGES, "the model does not show its own value")
    for stage in ("query", "key", "value", "output"):
        reasons[stage] = "the module's projections are not of a kind that attnviz recognizes"
    return tuple((record.place, stage, reasons[stage]) for stage in STAGES if stage not in compared)


def model_values(record: AttentionRecord, reference: Reference) -> dict[str, Tensor]:
    """Return the model's own value of each stage, heads first, in float64."""
    output = None if reference.output is None else reference.output.unsqueeze(0)
    values = {
        "query": record.query,
        "key": record.key,
        "value": record.value,
        "scores": reference.scores,
        "weights": reference.weights,
        "head output": reference.head_output,
        "output": output,
    }
    return {stage: value.double() for stage, value in values.items() if value is not None}


def compare(record: AttentionRecord, expected: dict[str, Tensor]) -> Iterator[StageCheck]:
    """Compare each stage for which the model's own value is known."""
    fine, coarse = dtypes(record)
    ours, in_fine = recompute(record, torch.float64), recompute(record, fine)
    in_coarse = in_fine if coarse == fine else recompute(record, coarse)
    hidden = hidden_keys(record)
    for stage in STAGES:
        if stage not in ours or stage not in expected:
            continue
        run, dtype = (in_fine, fine) if stage in ("scores", "weights") else (in_coarse, coarse)
        precision = PRECISIONS[dtype]
        # Queries that are padding or fully masked have no meaning; padded keys must be ignored.
        rows = real_rows(record, stage, hidden)
        if not rows.any():
            continue
        triple = (ours[stage][:, rows], run[stage][:, rows].double(), expected[stage][:, rows])
        if stage == "scores":  # hidden scores are any huge negative number
            largest = triple[2].masked_fill(hidden[:, rows], -torch.inf).amax(-1)
            triple = _visible(triple, hidden[:, rows])
            # Some models subtract the largest score of each row before the softmax.
            if record.sinks is not None or not record.through_interface or not largest.any():
                triple = _centered(triple, hidden[:, rows])
        check = _check_values(
            record, stage, *triple, tolerance_of(stage, ours, precision), precision
        )
        if stage == "weights":
            check = _check_weights(check, *triple, hidden[:, rows], precision)
        if stage == "output":
            contributions = parts_of_output(record, ours["head output"])
            by_head = [contribution[rows] for contribution in contributions]
            check = _check_contributions(check, by_head, triple, precision)
        yield check


def _check_values(
    record: AttentionRecord,
    stage: str,
    ours: Tensor,
    run: Tensor,
    model: Tensor,
    tolerance: float,
    precision: Precision,
) -> StageCheck:
    def largest(tensor: Tensor) -> Tensor:
        return tensor.abs().flatten(1).amax(1)

    differences, run_errors = largest(ours - model), largest(ours - run)
    floor = (FLOOR * precision.eps + SUMMATION) * largest(ours).clamp(min=SMALLEST)
    tolerances = (3 * run_errors + floor).clamp(max=tolerance)
    # not (≤), since NaN > tolerance is False
    failed = ~(differences <= tolerances)
    slope = allowed = torch.empty(0)
    if stage not in ("scores", "weights"):  # their slope is that of the log weights
        slope, error = slope_on(ours, model, run, (1, 2))
        allowed = error.clamp(min=precision.slope)
        failed |= ~(slope.abs() <= allowed)
    return StageCheck(
        stack=record.stack,
        layer=record.layer,
        path=record.path,
        stage=stage,
        differences=tuple(differences.tolist()),
        tolerances=tuple(tolerances.tolist()),
        own_errors=tuple(run_errors.tolist()),
        compared=ours.numel(),
        finite=bool(ours.isfinite().all() and model.isfinite().all()),
        failed_heads=failed_heads(failed),
        slope_errors=tuple(slope.tolist()),
        slope_tolerances=tuple(allowed.tolist()),
    )


def tolerance_of(stage: str, ours: dict[str, Tensor], precision: Precision) -> float:
    """Return the largest difference that rounding can explain in a stage of one layer."""
    largest = ours[stage].abs().max().clamp(min=SMALLEST).item()
    if stage in ("query", "key", "value", "scores"):
        return precision.values * largest
    # The rounding error of a score is proportional to its size. It carries over to its weight, and
    # from there to the mean of the values.
    score = torch.where(ours["weights"] > 0, ours["scores"].abs(), 0.0).max().item()
    weights = max(precision.weights, precision.eps * score)
    return weights if stage == "weights" else 4 * weights * largest


def _check_weights(
    check: StageCheck,
    ours: Tensor,
    run: Tensor,
    model: Tensor,
    hidden: Tensor,
    precision: Precision,
) -> StageCheck:
    """Add the checks of weights alone: the slope of their logarithms, and exact zeros."""
    hidden = hidden.expand_as(ours)
    leaking = ((ours != 0) | (model != 0)) & hidden
    # Below the smallest normal number of the dtype a logarithm is mostly rounding.
    usable = ~hidden & (torch.minimum(ours, torch.minimum(run, model)) > precision.tiny)
    x, y, z = (centered_log(weights, usable) for weights in (ours, model, run))
    slopes, errors = slope_on(x, y, z, (1, 2), step=precision.eps)
    slope, error = slope_on(x, y, z, (0, 1, 2), step=precision.eps)
    # One head has only some of the layer's numbers, so its slope is less certain.
    allowed, allowed_of_all = errors.clamp(min=2 * precision.slope), error.clamp(precision.slope)
    off = ~(slopes.abs() <= allowed)
    if not slope.abs() <= allowed_of_all:
        off |= slopes.abs() >= slopes.abs().max()  # name the worst head
    failed = off | leaking.flatten(1).any(1)
    return replace(
        check,
        slope_errors=tuple(slopes.tolist()),
        slope_tolerances=tuple(allowed.tolist()),
        slope_error=slope.item(),
        slope_tolerance=allowed_of_all.item(),
        hidden_zero=not bool(leaking.any()),
        failed_heads=tuple(sorted({*check.failed_heads, *failed_heads(failed)})),
    )


def _check_contributions(
    check: StageCheck, by_head: Iterable[Tensor], triple: tuple[Tensor, ...], precision: Precision
) -> StageCheck:
    """Add the slope of the contribution (m, d_model) of each head to the output (1, m, d_model).

    In the sum of all heads, rounding hides a small error in the W^O of one.
    """
    ours, run, model = triple
    regressions = [slope_on(x[None], x + model - ours, x + run - ours, (1, 2)) for x in by_head]
    slopes, errors = (torch.cat(column) for column in zip(*regressions, strict=True))
    allowed = errors.clamp(min=2 * precision.slope)
    off = not bool((slopes.abs() <= allowed).all())
    return replace(
        check,
        slope_errors=tuple(slopes.tolist()),
        slope_tolerances=tuple(allowed.tolist()),
        slope_error=check.slope_errors[0],
        slope_tolerance=check.slope_tolerances[0],
        failed_heads=(0,) if off else check.failed_heads,
    )


def hidden_keys(record: AttentionRecord) -> Tensor:
    """Return which keys must have weight exactly 0, by mask or by padding: (1 or H, m, n)."""
    m, n = len(record.query_axis), len(record.key_axis)
    padding = torch.tensor(record.key_axis.padding, device=record.query.device)
    hidden = padding.expand(1, m, n)
    if record.mask is not None:
        hidden = hidden | (record.mask <= torch.finfo(record.mask.dtype).min / 2)
    return hidden


def _visible(triple: tuple[Tensor, ...], hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    ours, run, model = (scores.masked_fill(hidden, 0.0) for scores in triple)
    return ours, run, model


def _centered(triple: tuple[Tensor, ...], hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Subtract from each row its mean over the visible keys."""
    count = (~hidden).sum(-1, keepdim=True).clamp(min=1)
    centered = tuple(scores - scores.sum(-1, keepdim=True) / count for scores in triple)
    return _visible(centered, hidden)


def real_rows(record: AttentionRecord, stage: str, hidden: Tensor) -> Tensor:
    """Return which queries (m,), or keys (n,), are not padding and not fully masked."""
    if stage in ("key", "value"):
        return torch.ones(len(record.key_axis), dtype=torch.bool)
    padding = torch.tensor(record.query_axis.padding, device=hidden.device)
    return ~padding & ~hidden.all(-1).any(0)


def bounded_check(
    record: AttentionRecord,
    stage: str,
    differences: Tensor,
    tolerance: float | Tensor,
    *,
    compared: int,
    heads: Sequence[int] | None = None,
) -> StageCheck:
    """Return the check of a stage of which only the differences (heads,) are bounded.

    tolerance : of all heads, or of each. heads : their numbers; by default all, in order.
    """
    # not (≤), since NaN > tolerance is False
    failed = failed_heads(~(differences <= tolerance))
    return StageCheck(
        stack=record.stack,
        layer=record.layer,
        path=record.path,
        stage=stage,
        differences=tuple(differences.tolist()),
        tolerances=tuple(
            torch.as_tensor(tolerance, dtype=torch.float64).expand(len(differences)).tolist()
        ),
        own_errors=(0.0,) * len(differences),
        compared=compared,
        finite=bool(differences.isfinite().all()),
        failed_heads=failed if heads is None else tuple(heads[index] for index in failed),
    )


def failed_heads(flags: Tensor) -> tuple[int, ...]:
    """Return which heads are flagged."""
    return tuple(flags.nonzero().flatten().tolist())


def centered_log(weights: Tensor, usable: Tensor) -> Tensor:
    """Return log weights minus their row's mean, which are centered scores up to rounding."""
    logs = torch.where(usable, weights, 1.0).log()
    mean = logs.sum(-1, keepdim=True) / usable.sum(-1, keepdim=True).clamp(min=1)
    return torch.where(usable, logs - mean, 0.0)


def slope_on(
    x: Tensor, y: Tensor, z: Tensor, dims: tuple[int, ...], *, step: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Regress y on x, and our own run z on x; return slope - 1, and how far it may be from 0.

    It may be three times as far as that of z, or 4 standard errors. A standard error assumes that
    each number is off by at least one rounding `step`. Rows without spread have the slope 0, and
    the canary then shows that nothing is proven.
    """
    spread = (x * x).sum(dims).clamp(min=torch.finfo(x.dtype).tiny)
    slope, run_slope = ((x * (other - x)).sum(dims) / spread for other in (y, z))
    count = (x != 0).sum(dims).clamp(min=1)
    variance = ((z - x) ** 2).sum(dims) / count + step**2
    standard_error = (variance / spread).sqrt()
    return slope, torch.maximum(3 * run_slope.abs(), 4 * standard_error)
