"""One attention, stage by stage: our float64 recomputation against the model's own values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attnviz.agreement.tolerances import (
    FLOOR,
    PRECISIONS,
    SMALLEST,
    SUMMATION,
    Precision,
    centered_log,
    dtypes,
    slope_on,
)
from attnviz.results import AttentionRecord, Reference, StageCheck
from attnviz.results.recompute import STAGES, parts_of_output, recompute

CANARY = 1.01


@dataclass(frozen=True)
class Proof:
    """The comparison of one attention: what an `AgreementReport` has of all attentions.

    Attributes
    ----------
    place : str
        The stack and the layer.
    checks : tuple of StageCheck
        One for each stage that was compared.
    not_compared : tuple of (place, stage, reason)
        The other stages.
    unproven : bool
        Whether the canary was not caught.
    """

    place: str
    checks: tuple[StageCheck, ...]
    not_compared: tuple[tuple[str, str, str], ...]
    unproven: bool


def prove(record: AttentionRecord, expected: dict[str, Tensor]) -> Proof:
    """Compare a record with the model's own values, and check that the canary is caught."""
    checks = tuple(compare(record, expected))
    unproven = all(check.passed for check in compare(_with_canary(record), expected))
    return Proof(record.place, checks, stages_not_compared(record, checks), unproven)


def stages_not_compared(
    record: AttentionRecord, checks: tuple[StageCheck, ...]
) -> tuple[tuple[str, str, str], ...]:
    """Return (place, stage, reason) of every stage that was not compared."""
    compared = {check.stage for check in checks}
    return tuple(
        (record.place, stage, _why_not(record, stage)) for stage in STAGES if stage not in compared
    )


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


def _with_canary(record: AttentionRecord) -> AttentionRecord:
    # Only the stages after the scale are compared: a wrong Q must not count as a caught canary.
    return replace(record, scale=record.scale * CANARY, projection=None, input=None)


def _why_not(record: AttentionRecord, stage: str) -> str:
    if stage in ("query", "key", "value", "output"):
        return "the module's projections are not of a kind that attnviz recognizes"
    return "the model does not show its own value"


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
