"""Linear attention: its matrix times values, against the model's own result.

The matrix M comes from one run. In another run, M v must be the layer's own output, and M u the
mixture of random columns u, which a matrix that is wrong anywhere does not give. An argument of the
function, such as the decay, that is 1 % off moves the result in a known direction: the difference
from the model's own must not lie along it. Where the function, called again, gives that result bit
by bit, what it rounds is known and left out, so that a slope is judged as in float32.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attnviz.agreement import verdict
from attnviz.results import LinearAttention, LinearReference, StageCheck
from attnviz.runtime.precision import exact_products

_SLOPE = 1e-5  # off by which a slope always passes
_ERRORS = 6  # standard errors that pass
_RANGES = 3  # of four measurements, whose range is two standard errors
_ALIKE = 3  # typical errors that pass if all of a head are alike, as those of a gate
_SHARE = 0.1  # of an argument that is 1 % off, which passes


@exact_products()
def compare_linear(
    record: LinearAttention, reference: LinearReference
) -> tuple[tuple[StageCheck, ...], tuple[str, ...]]:
    """Compare a matrix with the model's own run.

    Returned with the checks are the arguments that could be 1 % off without being noticed.
    """
    assert reference.head_output is not None
    read = [not padding for padding in record.query_axis.padding]
    M, v, u = record.matrix[:, read].double(), record.value.double(), reference.probes.double()
    mixed, summed, model = M @ v, M.abs() @ v.abs(), reference.head_output[:, read].double()
    probed, of_probes = reference.weights[:, read].double(), M.abs() @ u.abs()
    none = _Rounding.of(probed[None], probed[None], of_probes, verdict.FLOAT32)
    exact, rounded = (x[:, :, read].double() for x in (reference.exact, reference.rounded))
    eps = torch.finfo(reference.head_output.dtype).eps
    own = _Rounding.of(exact, rounded, M.abs() @ v.abs().flip(1), eps)
    if reference.rounding is not None:
        own = own.with_known(reference.rounding[:, read].double())
    checks = [
        none.check(record, "weights", M @ u, probed, of_probes),
        own.check(record, "head output", mixed, model, summed),
    ]
    if not reference.canaries:
        return tuple(checks), tuple(record.arguments)
    # The difference, as a multiple of the change by each canary.
    shares, errors = torch.stack(
        [
            own.share_along(
                canary[:, read].double() - mixed,
                model - mixed - own.known,
                summed,
                reference.rounded_by[name].double(),
            )
            for name, canary in reference.canaries.items()
        ],
        dim=1,
    )
    allowed = errors.clamp(min=_SHARE)
    told_apart = allowed <= 0.5  # an argument 1 % off from one that is not
    if told_apart.any():
        off, most = shares[told_apart].abs(), allowed[told_apart]
        checks.append(verdict.bounded_check(record, "arguments", off, most, compared=model.numel()))
    caught = told_apart & ((shares - 1).abs() > allowed)
    names = zip(reference.canaries, caught.tolist(), strict=True)
    return tuple(checks), tuple(name for name, is_caught in names if not is_caught)


@dataclass(frozen=True)
class _Rounding:
    """How far the model's precision is off where nothing else differs.

    An error is proportional to the sum of the sizes of what is added up. Rounded gates are off in
    the same way for all values: this part is measured with the values in K other orders, and
    subtracted.
    """

    largest: float  # of the errors of the layer, relative to that sum
    typical: float  # their root mean square
    by_head: Tensor  # that of each head, where it is larger, (H,)
    slope: float  # by which the results are off as a whole
    slopes: Tensor  # of each head, (H,)
    eps: float  # of the dtype of the result
    known: Tensor | float = 0.0  # of each number of the result, if it is

    @classmethod
    def of(cls, exact: Tensor, rounded: Tensor, summed: Tensor, eps: float) -> _Rounding:
        """Return it for mixtures (K, H, m, c), exact and rounded; `summed` is that of the first."""
        products, squares = exact * (rounded - exact), exact**2
        relative = (rounded[0] - exact[0]) / summed.clamp(min=verdict.SMALLEST)
        slope = products[0].sum() / squares[0].sum().clamp(min=verdict.SMALLEST**2)
        slopes = products.sum((2, 3)) / squares.sum((2, 3)).clamp(min=verdict.SMALLEST**2)
        numbers = torch.stack([relative.abs().max(), relative.square().mean().sqrt(), slope.abs()])
        largest, typical, whole = numbers.tolist()
        by_head = relative.square().mean((1, 2)).sqrt().clamp(min=typical)
        return cls(largest, typical, by_head, whole, slopes.mean(0), eps)

    def with_known(self, known: Tensor) -> _Rounding:
        """Return it where the rounding of each number is known: no slope needs an allowance."""
        none = torch.zeros_like(self.slopes)
        return replace(self, known=known, typical=0.0, by_head=none, slope=0.0, slopes=none)

    def check(
        self, record: LinearAttention, stage: str, ours: Tensor, model: Tensor, summed: Tensor
    ) -> StageCheck:
        """Compare two results (H, m, c); `summed` is the sum of the sizes of what was added up."""
        largest = verdict.largest_by_head(ours).clamp(min=verdict.SMALLEST)
        sums = verdict.largest_by_head(summed)
        own_errors, rounding = self.largest * sums, verdict.SUMMATION
        floor = (verdict.FLOOR * self.eps + rounding) * largest + rounding * sums
        tolerances, difference = 3 * own_errors + floor, model - ours
        differences = verdict.largest_by_head(difference)
        spread = (ours**2).sum((1, 2)).clamp(min=verdict.SMALLEST**2)
        slopes = (ours * (difference - self.known)).sum((1, 2)) / spread - self.slopes
        standard = self.by_head * ((ours * summed) ** 2).sum((1, 2)).sqrt() / spread
        cancelled = verdict.FLOAT32 * (ours.abs() * summed).sum((1, 2)) / spread
        together = self.by_head * (summed**2).sum((1, 2)).sqrt() / spread.sqrt()
        allowed = (_ERRORS * standard).maximum(_ALIKE * together)
        allowed = allowed.clamp(min=max(3 * self.slope, _SLOPE)) + cancelled
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

    def share_along(
        self, change: Tensor, difference: Tensor, summed: Tensor, rounded: Tensor
    ) -> Tensor:
        """Return how much of a change is in a difference, and how much may be by rounding, (2,).

        Rounding errors are independent of each other, or some are the same: those of a gate. Of
        these, as much may be left as differs between other values.

        rounded : (K,), how much of the change was in the rounding errors with other values.
        """
        size = (change**2).sum().clamp(min=verdict.SMALLEST**2)
        share = (change * difference).sum() / size - rounded.mean()
        apart = _ERRORS * ((change * summed) ** 2).sum().sqrt() / size
        together = summed.square().sum().sqrt() / size.sqrt()
        left = (_RANGES * (rounded.amax() - rounded.amin())).minimum(self.typical * together)
        return torch.stack([share, left.maximum(self.typical * apart)])
