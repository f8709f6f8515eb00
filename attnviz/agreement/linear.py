"""Linear attention: its matrix times values, against the model's own result.

The matrix M comes from one run. In another run, M v must be the layer's own output, and M u the
mixture of random columns u, which a matrix that is wrong anywhere does not give. An argument of the
function, such as the decay, that is 1 % off moves the result in a known direction: the difference
from the model's own must not lie along it. What the function rounds when it is called again is left
out of both; where it gives the result again, bit by bit, they are judged as in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from attnviz.agreement import verdict
from attnviz.results import LinearAttention, LinearReference, StageCheck
from attnviz.runtime.libraries import exact_products

_SLOPE = 1e-5  # off by which a slope always passes
_ERRORS = 6  # standard errors that pass
_ALIKE = 3  # typical errors that pass if all of a head are alike, as those of a gate
_SHARE = 0.1  # of an argument that is 1 % off, which passes


@exact_products()
def prove_linear(record: LinearAttention, reference: LinearReference) -> verdict.Proof:
    """Compare a matrix with the model's own run, and check that canaries are caught."""
    assert reference.head_output is not None
    read = [not padding for padding in record.query_axis.padding]
    M, v, u = record.matrix[:, read].double(), record.value.double(), reference.probes.double()
    mixed, model = M @ v, reference.head_output[:, read].double()
    probed, rounding = reference.weights[:, read].double(), reference.rounding[:, read].double()
    none = _Rounding(torch.zeros_like(probed), M.abs() @ u.abs(), verdict.FLOAT32, is_known=True)
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
            checks.append(verdict.bounded_check(record, "arguments", off, most, compared=count))
        caught = told_apart & ((shares - 1).abs() > allowed)
        names = zip(reference.canaries, caught.tolist(), strict=True)
        unnoticed = [name for name, is_caught in names if not is_caught]
    reasons = {"output projection": "the projection after linear attention is not followed"}
    if unnoticed:
        reasons["arguments"] = f"1 % of {', '.join(unnoticed)} would go unnoticed in this precision"
    left_out = tuple((record.place, stage, reason) for stage, reason in reasons.items())
    return verdict.Proof(record.place, tuple(checks), left_out, unproven)


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
        return self.rounded / self.summed.clamp(min=verdict.SMALLEST)

    @cached_property
    def typical(self) -> Tensor:
        """Their root mean square in the layer, or in a head where it is larger, (H,)."""
        square = self.relative.square() * (not self.is_known)
        return square.mean((1, 2)).clamp(min=square.mean()).sqrt()

    def check(self, record: LinearAttention, stage: str, ours: Tensor, model: Tensor) -> StageCheck:
        """Compare two results (H, m, c)."""
        largest = verdict.largest_by_head(ours).clamp(min=verdict.SMALLEST)
        sums, summed = verdict.largest_by_head(self.summed), self.summed
        own_errors, rounding = self.relative.abs().max() * sums, verdict.SUMMATION
        floor = (verdict.FLOOR * self.eps + rounding) * largest + rounding * sums
        tolerances, difference = 3 * own_errors + floor, model - ours
        differences = verdict.largest_by_head(difference)
        spread = (ours**2).sum((1, 2)).clamp(min=verdict.SMALLEST**2)
        slopes = (ours * (difference - self.rounded)).sum((1, 2)) / spread
        standard = self.typical * ((ours * summed) ** 2).sum((1, 2)).sqrt() / spread
        cancelled = verdict.FLOAT32 * (ours.abs() * summed).sum((1, 2)) / spread
        together = self.typical * (summed**2).sum((1, 2)).sqrt() / spread.sqrt()
        allowed = (_ERRORS * standard).maximum(_ALIKE * together).clamp(min=_SLOPE) + cancelled
        return verdict.bounded_check(
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
        size = (change**2).sum().clamp(min=verdict.SMALLEST**2)
        share = (change * (difference - self.rounded)).sum() / size
        apart = _ERRORS * ((change * self.summed) ** 2).sum().sqrt() / size
        return torch.stack([share, self.typical.min() * apart])
