"""What decides whether a stage agrees: the tolerances of each precision, and slopes within them.

A comparison on a GPU waits for every number that Python asks for. So a stage is reduced to small
tensors on its device, those of a whole attention are copied at once, and Python decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import torch
from torch import Tensor

from attnviz.results import AttentionRecord, LinearAttention, LinearReference, StageCheck
from attnviz.results.base import described
from attnviz.results.projection import STAGES
from attnviz.runtime.libraries import copy_to_cpu, exact_products

Numbers: TypeAlias = dict[str, Tensor]

# Errors that always pass, as a fraction of a head's largest value: two rounding steps in the
# model's precision, and the effect of the order of summation in float32.
SMALLEST = 1e-6  # the least value that counts as a head's largest
FLOAT32 = torch.finfo(torch.float32).eps  # models add up the products of a score in float32
FLOOR, SUMMATION = 2, 16 * FLOAT32
REGRESSION = ("xx", "xy", "xz", "count", "zz")  # the names of its sums

# Of linear attention
_SLOPE = 1e-5  # off by which a slope always passes
_ERRORS = 6  # standard errors that pass
_ALIKE = 3  # typical errors that pass if all of a head are alike, as those of a gate
_SHARE = 0.1  # of an argument that is 1 % off, which passes


@dataclass(frozen=True)
class Precision:
    """The largest rounding errors in one dtype; `eps` and `tiny` are as in `torch.finfo`."""

    weights: float
    values: float  # of all other stages, relative to the stage's largest value
    slope: float  # of the regression of log weights
    slope_of_head: float  # which has only some of the layer's numbers
    eps: float
    tiny: float


# Measured on all-MiniLM-L6-v2 and on random models with sharp attention.
PRECISIONS = {
    dtype: Precision(*errors, torch.finfo(dtype).eps, torch.finfo(dtype).tiny)
    for dtype, errors in {
        torch.float32: (5e-6, 1e-5, 1e-5, 2e-5),
        torch.float16: (1e-2, 5e-3, 1e-3, 2e-3),
        torch.bfloat16: (5e-2, 4e-2, 5e-3, 8e-3),
    }.items()
}


@dataclass(frozen=True)
class Proof:
    """The comparison of one attention: what an `AgreementReport` has of all attentions."""

    place: str  # the stack and the layer
    checks: tuple[StageCheck, ...]  # one for each stage that was compared
    not_compared: tuple[tuple[str, str, str], ...]  # place, stage and reason of the others
    unproven: bool  # whether the canary was not caught


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
    """What is measured of one stage of L attentions, and what it is compared with."""

    numbers: Sequence[int]  # which attentions
    records: Sequence[AttentionRecord]
    stage: str
    precision: Precision
    width: int  # how many numbers are compared in a row
    found: Numbers  # tensors (L, heads), or (L, 1)
    planted: bool = False  # whether it is of a fault that must be caught


def decide(measured: Sequence[Measured]) -> Iterator[tuple[Measured, int, StageCheck]]:
    """Yield each check with the number of its attention; all are copied from the device at once."""
    for one, found in zip(measured, copy_to_cpu([each.found for each in measured]), strict=True):
        for number, check in zip(one.numbers, _checks(one, found), strict=True):
            if check.compared:
                yield one, number, check


def _checks(measured: Measured, numbers: Numbers) -> list[StageCheck]:
    stage, precision = measured.stage, measured.precision
    differences, own_errors = numbers["differences"], numbers["own_errors"]
    largest = numbers["largest_by_head"]
    floor = (FLOOR * precision.eps + SUMMATION) * largest.clamp(min=SMALLEST)
    tolerances = 3 * own_errors + floor
    if stage == "weights":  # our own run may be off by less than the scores were rounded by
        tolerances = tolerances.maximum(FLOOR * FLOAT32 * numbers["rounding"])
    if "summed" in numbers:
        tolerances = tolerances.maximum(FLOAT32 * numbers["summed"])
    # What rounding can explain: the error of a score is proportional to its size, and carries over
    # to its weight, and from there to the mean of the values.
    top = numbers["largest"].amax(1, keepdim=True).clamp(min=SMALLEST)
    explained = precision.values * top
    if stage not in STAGES[:4]:
        most = (precision.eps * numbers["score"].amax(1, keepdim=True)).clamp(min=precision.weights)
        explained = most if stage == "weights" else 4 * most * top
    tolerances = tolerances.minimum(explained)
    off = ~(differences <= tolerances)  # not (>), since NaN > tolerance is False
    slopes = of_all = leaking = None
    if stage == "weights":
        slopes = slope(numbers, step=precision.eps, least=precision.slope_of_head)
        sums = {name: numbers[name].sum(1, keepdim=True) for name in REGRESSION}
        of_all = slope(sums, step=precision.eps, least=precision.slope)
        size = slopes[0].abs()
        leaking = numbers["leaking"] != 0
        # Where only all together are off, the worst head is named.
        off |= leaking | (_is_off(of_all) & (size >= size.amax(1, keepdim=True)))
    elif stage != "scores":
        slopes = slope(numbers, least=precision.slope)
    if slopes is not None:
        off |= _is_off(slopes)
    if stage == "output":
        of_all, slopes = slopes, slope(numbers, "of heads ", least=precision.slope_of_head)
        off |= _is_off(slopes).any(1, keepdim=True)
    finite = (differences + largest).isfinite().all(1).tolist()
    hidden_zero = [True] * len(off) if leaking is None else (~leaking.any(1)).tolist()
    lists = [differences, tolerances, own_errors, *(slopes or ()), *(of_all or ())]
    columns = [value.tolist() for value in lists]
    rows = zip(
        measured.records, numbers["rows"].flatten().tolist(), finite, off.tolist(), *columns,
        strict=True,
    )  # fmt: skip
    return [
        StageCheck(
            **described(record, "stack layer path"),
            stage=stage,
            differences=tuple(each),
            tolerances=tuple(most),
            own_errors=tuple(own),
            compared=int(count) * measured.width,
            finite=is_finite,
            failed_heads=tuple(head for head, is_off in enumerate(flags) if is_off),
            slope_errors=tuple(errors[0]) if errors else (),
            slope_tolerances=tuple(errors[1]) if errors else (),
            slope_error=errors[2][0] if len(errors) > 2 else None,
            slope_tolerance=errors[3][0] if len(errors) > 2 else None,
            hidden_zero=hidden_zero[n],
        )
        for n, (record, count, is_finite, flags, each, most, own, *errors) in enumerate(rows)
    ]


def _is_off(slopes: tuple[Tensor, Tensor]) -> Tensor:
    errors, allowed = slopes
    return ~(errors.abs() <= allowed)


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
    failed = off.nonzero().flatten().tolist()
    own_errors = torch.zeros(len(differences), device="cpu") if own_errors is None else own_errors
    tolerances = torch.as_tensor(tolerance, dtype=torch.float64, device="cpu")
    return StageCheck(
        **described(record, "stack layer path"),
        stage=stage,
        differences=tuple(differences.tolist()),
        tolerances=tuple(tolerances.expand(len(differences)).tolist()),
        own_errors=tuple(own_errors.tolist()),
        compared=compared,
        finite=all(x is None or bool(x.isfinite().all()) for x in (differences, largest)),
        failed_heads=tuple(failed if heads is None else [heads[index] for index in failed]),
        slope_errors=tuple(errors.tolist()),
        slope_tolerances=tuple(allowed.tolist()),
    )


def largest_by_head(tensor: Tensor) -> Tensor:
    """Return the largest absolute value of each head."""
    largest: Tensor = tensor.flatten(1).abs().amax(1)  # several times faster than a norm
    return largest


def regression(values: Tensor) -> Numbers:
    """Return the sums that regress y and z on x, from x, y - x and z - x, (3, heads, N)."""
    x, _, dz = values
    sums = (x.unsqueeze(1) @ values.permute(1, 2, 0)).squeeze(1).unbind(-1)
    return dict(zip(("xx", "xy", "xz", "zz"), (*sums, torch.linalg.vecdot(dz, dz)), strict=True))


def slope(
    numbers: Numbers, prefix: str = "", *, step: float = 0.0, least: float
) -> tuple[Tensor, Tensor]:
    """Return the slope of y on x minus 1, and how far it may be from 0, from their `regression`.

    z is our own run. The slope of y may be off by `least`, three times as far as that of z, or 4
    standard errors. A standard error assumes that each number is off by at least one rounding
    `step`. Rows without spread have the slope 0, and the canary then shows that nothing is proven.
    """
    xx, xy, xz, count, zz = (numbers[prefix + name] for name in REGRESSION)
    spread = xx.clamp(min=torch.finfo(torch.float32).tiny)  # some sums are in float32
    run_slope, variance = xz / spread, zz / count.clamp(min=1) + step**2
    standard_error = (variance / spread).sqrt()
    return xy / spread, (3 * run_slope.abs()).maximum(4 * standard_error).clamp(min=least)


@exact_products()
def prove_linear(record: LinearAttention, reference: LinearReference) -> Proof:
    """Compare the matrix of a linear attention with the model's own run; plant canaries.

    The matrix M comes from one run. In another run, M v must be the layer's own output, and M u the
    mixture of random columns u, which a matrix that is wrong anywhere does not give. An argument of
    the function, such as the decay, that is 1 % off moves the result in a known direction: the
    difference from the model's own must not lie along it. What the function rounds when it is
    called again is left out of both; where it gives the result again, bit by bit, they are judged
    as in float32.
    """
    assert reference.head_output is not None
    read = [not padding for padding in record.query_axis.padding]
    M, v, u = record.matrix[:, read].double(), record.value.double(), reference.probes.double()
    mixed, model = M @ v, reference.head_output[:, read].double()
    probed, rounding = reference.weights[:, read].double(), reference.rounding[:, read].double()
    none = _Rounding(torch.zeros_like(probed), M.abs() @ u.abs(), FLOAT32, is_known=True)
    eps = torch.finfo(reference.head_output.dtype).eps
    own = _Rounding(rounding, M.abs() @ v.abs(), eps, is_known=reference.reproduced)
    checks = [
        none.check(record, "weights", M @ u, probed),
        own.check(record, "head output", mixed, model),
    ]
    unproven, unnoticed = True, [*record.arguments]
    if reference.canaries:
        # The difference, as a multiple of the change by each canary.
        shares, errors = torch.stack(
            [
                own.share_along(canary[:, read].double() - mixed, model - mixed)
                for canary in reference.canaries.values()
            ],
            dim=1,
        )
        allowed = errors.clamp(min=_SHARE)
        told_apart = allowed <= 0.5  # an argument 1 % off from one that is not
        if not (unproven := not told_apart.any()):
            off, most, count = shares[told_apart].abs(), allowed[told_apart], model.numel()
            checks.append(bounded_check(record, "arguments", off, most, compared=count))
        caught = told_apart & ((shares - 1).abs() > allowed)
        names = zip(reference.canaries, caught.tolist(), strict=True)
        unnoticed = [name for name, is_caught in names if not is_caught]
    reasons = {"output projection": "the projection after linear attention is not followed"}
    if unnoticed:
        reasons["arguments"] = f"1 % of {', '.join(unnoticed)} would go unnoticed in this precision"
    left_out = tuple((record.place, stage, reason) for stage, reason in reasons.items())
    return Proof(record.place, tuple(checks), left_out, unproven)


@dataclass(frozen=True)
class _Rounding:
    """How far the model's precision is off where nothing else differs.

    An error is proportional to the sum of the sizes of what is added up. `rounded` is taken out of
    a difference before its slope is measured.
    """

    rounded: Tensor  # the errors of a call of the same function, (H, m, c)
    summed: Tensor  # the sizes that are added up, (H, m, c)
    eps: float  # of the dtype of the result
    is_known: bool  # whether these are the errors of the result itself

    @cached_property
    def relative(self) -> Tensor:
        """The errors as fractions of these sums, (H, m, c)."""
        return self.rounded / self.summed.clamp(min=SMALLEST)

    @cached_property
    def typical(self) -> Tensor:
        """Their root mean square in the layer, or in a head where it is larger, (H,)."""
        square = self.relative.square() * (not self.is_known)
        return square.mean((1, 2)).clamp(min=square.mean()).sqrt()

    def check(self, record: LinearAttention, stage: str, ours: Tensor, model: Tensor) -> StageCheck:
        """Compare two results (H, m, c)."""
        largest = largest_by_head(ours).clamp(min=SMALLEST)
        sums, summed = largest_by_head(self.summed), self.summed
        own_errors, rounding = self.relative.abs().max() * sums, SUMMATION
        floor = (FLOOR * self.eps + rounding) * largest + rounding * sums
        tolerances, difference = 3 * own_errors + floor, model - ours
        differences = largest_by_head(difference)
        spread = (ours**2).sum((1, 2)).clamp(min=SMALLEST**2)
        slopes = (ours * (difference - self.rounded)).sum((1, 2)) / spread
        standard = self.typical * ((ours * summed) ** 2).sum((1, 2)).sqrt() / spread
        cancelled = FLOAT32 * (ours.abs() * summed).sum((1, 2)) / spread
        together = self.typical * (summed**2).sum((1, 2)).sqrt() / spread.sqrt()
        allowed = (_ERRORS * standard).maximum(_ALIKE * together).clamp(min=_SLOPE) + cancelled
        return bounded_check(
            record,
            stage,
            differences,
            tolerances,
            compared=ours.numel(),
            own_errors=own_errors,
            largest=largest,
            slopes=(slopes, allowed),
        )

    def share_along(self, change: Tensor, difference: Tensor) -> Tensor:
        """Return how much of a change is in a difference, and how much may be by rounding, (2,)."""
        size = (change**2).sum().clamp(min=SMALLEST**2)
        share = (change * (difference - self.rounded)).sum() / size
        apart = _ERRORS * ((change * self.summed) ** 2).sum().sqrt() / size
        return torch.stack([share, self.typical.min() * apart])
