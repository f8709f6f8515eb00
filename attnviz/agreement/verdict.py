"""What decides whether a stage agrees: the tolerances of each precision, and slopes within them.

A difference passes if rounding in the model's precision can explain it *and* our own run in that
precision errs by as much. `AgreementReport.verdict` joins the decisions of all stages.

A comparison on a GPU waits for every number that Python asks for. So a stage is reduced to small
tensors on its device, those of a whole attention are copied at once, and Python decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from attnviz.results import AttentionRecord, StageCheck

Numbers: TypeAlias = dict[str, Tensor]

# Errors that always pass, as a fraction of a head's largest value: two rounding steps in the
# model's precision, and the effect of the order of summation in float32.
SMALLEST = 1e-6  # the least value that counts as a head's largest
FLOAT32 = torch.finfo(torch.float32).eps  # models add up the products of a score in float32
FLOOR, SUMMATION = 2, 16 * FLOAT32


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


@dataclass(frozen=True, eq=False)
class Measured:
    """What is measured of one stage, and what it is compared with."""

    record: AttentionRecord
    stage: str
    precision: Precision
    width: int  # how many numbers are compared in a row
    numbers: Numbers


def decide(*groups: list[Measured]) -> list[tuple[StageCheck, ...]]:
    """Return the checks of some measurements, which are copied from the device together."""
    numbers = iter(copy_to_cpu([one.numbers for group in groups for one in group]))
    pairs = [[(one, next(numbers)) for one in group] for group in groups]
    return [
        tuple(_check(one, values) for one, values in group if values["rows"] > 0) for group in pairs
    ]


def _check(measured: Measured, numbers: Numbers) -> StageCheck:
    """Decide whether a stage agrees."""
    record, stage, precision = measured.record, measured.stage, measured.precision
    differences, own_errors = numbers["differences"], numbers["own_errors"]
    largest = numbers["largest_by_head"]
    floor = (FLOOR * precision.eps + SUMMATION) * largest.clamp(min=SMALLEST)
    tolerances = 3 * own_errors + floor
    if stage == "weights":  # our own run may be off by less than the scores were rounded by
        tolerances = tolerances.maximum(FLOOR * FLOAT32 * numbers["rounding"])
    if "summed" in numbers:
        tolerances = tolerances.maximum(FLOAT32 * numbers["summed"])
    tolerances = tolerances.clamp(max=tolerance_of(stage, numbers, precision))
    has_slopes = stage not in ("scores", "weights")
    check = bounded_check(
        record,
        stage,
        differences,
        tolerances,
        compared=int(numbers["rows"]) * measured.width,
        own_errors=own_errors,
        largest=largest,
        slopes=slope(numbers, least=precision.slope) if has_slopes else None,
    )
    if stage == "weights":
        return _check_logarithms(check, numbers, precision)
    return _check_contributions(check, numbers, precision) if stage == "output" else check


def tolerance_of(stage: str, numbers: Numbers, precision: Precision) -> float:
    """Return the largest difference that rounding can explain in a stage of one layer.

    numbers : the "largest" of the stage, and the largest "score" that has a weight.
    """
    largest = numbers["largest"].clamp(min=SMALLEST).item()
    if stage in ("query", "key", "value", "scores"):
        return precision.values * largest
    # The rounding error of a score is proportional to its size. It carries over to its weight, and
    # from there to the mean of the values.
    weights = max(precision.weights, precision.eps * numbers["score"].item())
    return weights if stage == "weights" else 4 * weights * largest


def _check_logarithms(check: StageCheck, numbers: Numbers, precision: Precision) -> StageCheck:
    """Add the checks of weights alone."""
    # One head has only some of the layer's numbers, so its slope is less certain.
    slopes, allowed = slope(numbers, step=precision.eps, least=2 * precision.slope)
    of_all, allowed_of_all = slope(numbers, "of all ", step=precision.eps, least=precision.slope)
    off = ~(slopes.abs() <= allowed)
    if not of_all.abs() <= allowed_of_all:
        off |= slopes.abs() >= slopes.abs().max()  # name the worst head
    leaking = numbers["leaking"] > 0
    return replace(
        check,
        slope_errors=tuple(slopes.tolist()),
        slope_tolerances=tuple(allowed.tolist()),
        slope_error=of_all.item(),
        slope_tolerance=allowed_of_all.item(),
        hidden_zero=not bool(leaking.any()),
        failed_heads=tuple(sorted({*check.failed_heads, *failed_heads(off | leaking)})),
    )


def _check_contributions(check: StageCheck, numbers: Numbers, precision: Precision) -> StageCheck:
    """Add the checks of the contribution of each head to the output."""
    slopes, allowed = slope(numbers, "of heads ", least=2 * precision.slope)
    off = not bool((slopes.abs() <= allowed).all())
    return replace(
        check,
        slope_errors=tuple(slopes.tolist()),
        slope_tolerances=tuple(allowed.tolist()),
        slope_error=check.slope_errors[0],
        slope_tolerance=check.slope_tolerances[0],
        failed_heads=(0,) if off else check.failed_heads,
    )


def bounded_check(
    record: AttentionRecord,
    stage: str,
    differences: Tensor,
    tolerance: float | Tensor,
    *,
    compared: int,
    heads: Sequence[int] | None = None,
    own_errors: Tensor | None = None,
    largest: Tensor | None = None,
    slopes: tuple[Tensor, Tensor] | None = None,
) -> StageCheck:
    """Return the check of a stage whose differences (heads,) are bounded, and its slopes.

    tolerance : of all heads, or of each. heads : their numbers; by default all, in order. largest :
    of each head, which should be finite too. slopes : of each head, and how far each may be from 0.
    """
    # not (≤), since NaN > tolerance is False
    off = ~(differences <= tolerance)
    errors, allowed = slopes or (torch.empty(0, device="cpu"), torch.empty(0, device="cpu"))
    if len(errors):
        off |= ~(errors.abs() <= allowed)
    failed = failed_heads(off)
    own_errors = torch.zeros(len(differences), device="cpu") if own_errors is None else own_errors
    tolerances = torch.as_tensor(tolerance, dtype=torch.float64, device="cpu")
    return StageCheck(
        stack=record.stack,
        layer=record.layer,
        path=record.path,
        stage=stage,
        differences=tuple(differences.tolist()),
        tolerances=tuple(tolerances.expand(len(differences)).tolist()),
        own_errors=tuple(own_errors.tolist()),
        compared=compared,
        finite=all(x is None or bool(x.isfinite().all()) for x in (differences, largest)),
        failed_heads=failed if heads is None else tuple(heads[index] for index in failed),
        slope_errors=tuple(errors.tolist()),
        slope_tolerances=tuple(allowed.tolist()),
    )


def failed_heads(flags: Tensor) -> tuple[int, ...]:
    """Return which heads are flagged."""
    return tuple(flags.nonzero().flatten().tolist())


# ------------------------------------------------------ what is measured where the model computes


def copy_to_cpu(measured: Sequence[Numbers]) -> list[Numbers]:
    """Copy small tensors to the CPU in one transfer, as float64."""
    if not any(measured):
        return [{} for _ in measured]
    parts = [number.double().flatten() for numbers in measured for number in numbers.values()]
    values = iter(torch.split(torch.cat(parts).cpu(), [len(part) for part in parts]))
    return [
        {name: next(values).view(number.shape) for name, number in numbers.items()}
        for numbers in measured
    ]


def largest_by_head(tensor: Tensor) -> Tensor:
    """Return the largest absolute value of each head."""
    largest: Tensor = torch.linalg.vector_norm(tensor.flatten(1), torch.inf, dim=1)
    return largest


def products(x: Tensor, dy: Tensor, dz: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield the terms of the sums by which y = x + dy and z = x + dz are regressed on x.

    Each is as large as x: one at a time is in memory.
    """
    yield "xx", x * x
    yield "xy", x * dy
    yield "xz", x * dz
    yield "count", x != 0


def regression(x: Tensor, dy: Tensor, dz: Tensor, *dims: tuple[int, ...]) -> Numbers:
    """Return the sums by which y = x + dy and z = x + dz are regressed on x.

    Each of `dims` is summed over; the names of the second sums start with "of all".
    """
    prefixes = [*zip(("", "of all "), dims, strict=False)]
    sums = {
        prefix + name: term.sum(over)
        for name, term in products(x, dy, dz)
        for prefix, over in prefixes
    }
    squares = dz**2
    return sums | {prefix + "zz": squares.sum(over) for prefix, over in prefixes}


def slope(
    numbers: Numbers, prefix: str = "", *, step: float = 0.0, least: float
) -> tuple[Tensor, Tensor]:
    """Return the slope of y on x minus 1, and how far it may be from 0, from their `regression`.

    z is our own run. The slope of y may be off by `least`, three times as far as that of z, or 4
    standard errors. A standard error assumes that each number is off by at least one rounding
    `step`. Rows without spread have the slope 0, and the canary then shows that nothing is proven.
    """
    xx, xy, xz, count, zz = (numbers[prefix + name] for name in ("xx", "xy", "xz", "count", "zz"))
    spread = xx.clamp(min=torch.finfo(xx.dtype).tiny)
    run_slope, variance = xz / spread, zz / count.clamp(min=1) + step**2
    standard_error = (variance / spread).sqrt()
    return xy / spread, (3 * run_slope.abs()).maximum(4 * standard_error).clamp(min=least)
