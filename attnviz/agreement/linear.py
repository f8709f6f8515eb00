"""Linear attention: its matrix times values, against the model's own result.

The matrix M comes from one run. In another run, M v must be the layer's own output, and M u the
mixture of random columns u, which a matrix that is wrong anywhere does not give. The canaries are
that output with one argument, such as the decay, 1 % off: each must be noticed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attnviz.agreement.compare import Proof
from attnviz.agreement.measures import largest_by_head
from attnviz.agreement.verdict import FLOAT32, FLOOR, SMALLEST, SUMMATION, failed_heads
from attnviz.results import LinearAttention, LinearReference, StageCheck
from attnviz.runtime.precision import exact_products

_SLOPE = 1e-5  # off by which a slope always passes
_ERRORS = 6  # standard errors of a slope that pass


@exact_products()
def prove_linear(record: LinearAttention, reference: LinearReference) -> Proof:
    """Compare the matrix of a record with the model's own run, and check the canaries."""
    assert reference.head_output is not None
    M, v, u = record.matrix.double(), record.value.double(), reference.probes.double()
    rows = [not padding for padding in record.query_axis.padding]
    mixed = M[:, rows] @ v
    model = reference.head_output[:, rows].double()
    summed = M[:, rows].abs() @ v.abs()
    probed, rounded = (x[:, rows].double() for x in (reference.weights, reference.rounded))
    exact = _Rounding(probed, probed, torch.finfo(torch.float32).eps)
    own = _Rounding(probed, rounded, torch.finfo(reference.head_output.dtype).eps)
    checks = (
        exact.check(record, "weights", M[:, rows] @ u, probed, M[:, rows].abs() @ u.abs()),
        own.check(record, "head output", mixed, model, summed),
    )
    uncaught = [
        name
        for name, canary in reference.canaries.items()
        if own.check(record, "head output", canary[:, rows].double(), model, summed).passed
    ]
    reasons = dict.fromkeys(("query", "key", "value", "scores"), "there is no softmax")
    reasons["output"] = "the projection after linear attention is not followed"
    left_out = tuple((record.place, stage, reason) for stage, reason in reasons.items())
    return Proof(record.place, checks, left_out, bool(uncaught) or not reference.canaries)


@dataclass(frozen=True, eq=False)
class _Rounding:
    """How far the model's precision is off, of each head, seen where nothing else differs.

    exact, rounded : (H, m, c), the same mixture in float32 and in the model's precision. eps : of
    the dtype of its result.
    """

    exact: Tensor
    rounded: Tensor
    eps: float

    def check(
        self, record: LinearAttention, stage: str, ours: Tensor, model: Tensor, summed: Tensor
    ) -> StageCheck:
        """Compare two results (H, m, c); `summed` is the sum of the sizes of what was added up."""
        error = self.rounded - self.exact
        largest = largest_by_head(ours).clamp(min=SMALLEST)
        share = largest_by_head(error) / largest_by_head(self.exact).clamp(min=SMALLEST)
        floor = (FLOOR * self.eps + SUMMATION) * largest + SUMMATION * largest_by_head(summed)
        tolerances = 3 * share * largest + floor
        difference = model - ours
        differences = largest_by_head(difference)
        spread = (ours**2).sum((1, 2)).clamp(min=SMALLEST**2)
        slopes = (ours * difference).sum((1, 2)) / spread
        size = (self.exact**2).sum((1, 2)).clamp(min=SMALLEST**2)
        own_slope = (self.exact * error).sum((1, 2)) / size
        relative = ((error**2).sum((1, 2)) / size).sqrt()
        # Rounding errors are proportional to each number, and to what was added up for it.
        standard = relative * (ours**4).sum((1, 2)).sqrt() / spread
        cancelled = FLOAT32 * (ours.abs() * summed).sum((1, 2)) / spread
        allowed = torch.maximum(3 * own_slope.abs(), _ERRORS * standard) + cancelled
        allowed = allowed.clamp(min=_SLOPE)
        # not (≤), since NaN > tolerance is False
        failed = ~(differences <= tolerances) | ~(slopes.abs() <= allowed)
        return StageCheck(
            stack=record.stack,
            layer=record.layer,
            path=record.path,
            stage=stage,
            differences=tuple(differences.tolist()),
            tolerances=tuple(tolerances.tolist()),
            own_errors=tuple((share * largest).tolist()),
            compared=ours.numel(),
            finite=bool(differences.isfinite().all() and largest.isfinite().all()),
            failed_heads=failed_heads(failed),
            slope_errors=tuple(slopes.tolist()),
            slope_tolerances=tuple(allowed.tolist()),
        )
