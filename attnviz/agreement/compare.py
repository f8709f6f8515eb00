"""One attention, stage by stage: our float64 recomputation against the model's own values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attnviz.agreement.slopes import centred_log, slope_on
from attnviz.agreement.tolerances import (
    FLOOR,
    PRECISIONS,
    SMALLEST,
    SUMMATION,
    Precision,
    dtypes,
)
from attnviz.results import AttentionRecord, Reference, StageCheck
from attnviz.results.recompute import STAGES, parts_of_output, recompute

CANARY = 1.01


@dataclass(frozen=True)
class Proof:
    """Of one attention what `AgreementReport` holds of all: checks, what was left out, and why.

    place : which layer of which stack. unproven : whether the canary went unnoticed.
    """

    place: str
    checks: tuple[StageCheck, ...]
    not_compared: tuple[tuple[str, str, str], ...]
    unproven: bool


def prove(record: AttentionRecord, expected: dict[str, Tensor]) -> Proof:
    """Compare a record with the model's own values, and see whether a planted fault is caught."""
    checks = tuple(compare(record, expected))
    unproven = all(check.passed for check in compare(_with_canary(record), expected))
    return Proof(record.place, checks, left_out(record, checks), unproven)


def left_out(
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
    """Compare each stage of which the model's own value is known."""
    fine, coarse = dtypes(record)
    ours, in_fine = recompute(record, torch.float64), recompute(record, fine)
    in_coarse = in_fine if coarse == fine else recompute(record, coarse)
    hidden = hidden_keys(record)
    for stage in STAGES:
        if stage not in ours or stage not in expected:
            continue
        own, dtype = (in_fine, fine) if stage in ("scores", "weights") else (in_coarse, coarse)
        precision = PRECISIONS[dtype]
        # Queries that are padding or see nothing mean nothing; padded keys must be ignored.
        rows = real_rows(record, stage, hidden)
        if not rows.any():
            continue
        triple = (ours[stage][:, rows], own[stage][:, rows].double(), expected[stage][:, rows])
        if stage == "scores":  # hidden scores are some huge negative number or other
            largest = triple[2].masked_fill(hidden[:, rows], -torch.inf).amax(-1)
            triple = _visible(triple, hidden[:, rows])
            # Before the softmax some models subtract the largest score of each row.
            if record.sinks is not None or not record.through_interface or not largest.any():
                triple = _centred(triple, hidden[:, rows])
        check = _check_values(
            record, stage, *triple, tolerance_of(stage, ours, precision), precision
        )
        if stage == "weights":
            check = _check_weights(check, *triple, hidden[:, rows], precision)
        if stage == "output":
            parts = parts_of_output(record, ours["head output"])
            check = _check_parts(check, [part[rows] for part in parts], triple, precision)
        yield check


def _check_values(
    record: AttentionRecord,
    stage: str,
    ours: Tensor,
    own: Tensor,
    model: Tensor,
    tolerance: float,
    precision: Precision,
) -> StageCheck:
    def largest(of: Tensor) -> Tensor:
        return of.abs().flatten(1).amax(1)

    differences, own_errors = largest(ours - model), largest(ours - own)
    floor = (FLOOR * precision.eps + SUMMATION) * largest(ours).clamp(min=SMALLEST)
    tolerances = (3 * own_errors + floor).clamp(max=tolerance)
    # not (≤), since NaN > tolerance is False
    failed = ~(differences <= tolerances)
    slope = allowed = torch.empty(0)
    if stage not in ("scores", "weights"):  # whose slope is that of the log weights
        slope, error = slope_on(ours, model, own, (1, 2))
        allowed = error.clamp(min=precision.slope)
        failed |= ~(slope.abs() <= allowed)
    return StageCheck(
        stack=record.stack,
        layer=record.layer,
        path=record.path,
        stage=stage,
        differences=tuple(differences.tolist()),
        tolerances=tuple(tolerances.tolist()),
        own_errors=tuple(own_errors.tolist()),
        compared=ours.numel(),
        finite=bool(ours.isfinite().all() and model.isfinite().all()),
        failed_heads=failed_heads(failed),
        slope_errors=tuple(slope.tolist()),
        slope_tolerances=tuple(allowed.tolist()),
    )


def tolerance_of(stage: str, ours: dict[str, Tensor], precision: Precision) -> float:
    """Return the largest difference that rounding explains at all, in a stage of one layer."""
    largest = ours[stage].abs().max().clamp(min=SMALLEST).item()
    if stage in ("query", "key", "value", "scores"):
        return precision.values * largest
    # A score is rounded in proportion to its size, its weight errs with it, and so does what the
    # weights mix.
    score = torch.where(ours["weights"] > 0, ours["scores"].abs(), 0.0).max().item()
    weights = max(precision.weights, precision.eps * score)
    return weights if stage == "weights" else 4 * weights * largest


def _check_weights(
    check: StageCheck,
    ours: Tensor,
    own: Tensor,
    model: Tensor,
    hidden: Tensor,
    precision: Precision,
) -> StageCheck:
    """Add what only weights show: the slope of their logarithms, and exact zeros."""
    hidden = hidden.expand_as(ours)
    leaking = ((ours != 0) | (model != 0)) & hidden
    # Below the smallest normal number of the dtype a logarithm is mostly rounding.
    usable = ~hidden & (torch.minimum(ours, torch.minimum(own, model)) > precision.tiny)
    x, y, z = (centred_log(weights, usable) for weights in (ours, model, own))
    slopes, errors = slope_on(x, y, z, (1, 2), step=precision.eps)
    slope, error = slope_on(x, y, z, (0, 1, 2), step=precision.eps)
    # One head has but a part of the layer's numbers, so its slope is known less well.
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


def _check_parts(
    check: StageCheck, parts: Iterable[Tensor], triple: tuple[Tensor, ...], precision: Precision
) -> StageCheck:
    """Add what the output (1, m, d_model) shows of each head's part in it (m, d_model): its slope.

    In the sum of all heads rounding hides what is a little off in W^O of one.
    """
    ours, own, model = triple
    found = [slope_on(x[None], x + model - ours, x + own - ours, (1, 2)) for x in parts]
    slopes, errors = (torch.cat(of_heads) for of_heads in zip(*found, strict=True))
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
    """Return (1 or H, m, n): which keys must have weight exactly 0, by mask or by padding."""
    m, n = len(record.query_axis), len(record.key_axis)
    padding = torch.tensor(record.key_axis.padding, device=record.query.device)
    hidden = padding.expand(1, m, n)
    if record.mask is not None:
        hidden = hidden | (record.mask <= torch.finfo(record.mask.dtype).min / 2)
    return hidden


def _visible(triple: tuple[Tensor, ...], hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    ours, own, model = (part.masked_fill(hidden, 0.0) for part in triple)
    return ours, own, model


def _centred(triple: tuple[Tensor, ...], hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Subtract from each row its mean over the visible keys."""
    count = (~hidden).sum(-1, keepdim=True).clamp(min=1)
    return _visible(tuple(part - part.sum(-1, keepdim=True) / count for part in triple), hidden)


def real_rows(record: AttentionRecord, stage: str, hidden: Tensor) -> Tensor:
    """Return (m,), or (n,) for keys and values: what is no padding, and sees something."""
    if stage in ("key", "value"):
        return torch.ones(len(record.key_axis), dtype=torch.bool)
    padding = torch.tensor(record.query_axis.padding, device=hidden.device)
    return ~padding & ~hidden.all(-1).any(0)


def _with_canary(record: AttentionRecord) -> AttentionRecord:
    # Only what follows the scale: a wrong Q must not pass for a caught canary.
    return replace(record, scale=record.scale * CANARY, projection=None, input=None)


def _why_not(record: AttentionRecord, stage: str) -> str:
    if stage in ("query", "key", "value", "output"):
        return "the module's projections are not of a kind that attnviz recognises"
    return "the model does not show its own value"


def bounded(
    record: AttentionRecord,
    stage: str,
    differences: Tensor,
    tolerance: float | Tensor,
    *,
    compared: int,
    heads: Sequence[int] | None = None,
) -> StageCheck:
    """Return the check of a stage whose differences (heads,) have a bound, and nothing else.

    tolerance : of all heads, or of each. heads : which these are; by default all, in order.
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
        failed_heads=failed if heads is None else tuple(heads[at] for at in failed),
    )


def failed_heads(flags: Tensor) -> tuple[int, ...]:
    """Return which heads are flagged."""
    return tuple(flags.nonzero().flatten().tolist())
