"""How large rounding errors are in each precision, and how a wrong scale differs from them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attnviz.results import AttentionRecord

# Errors that always pass, as a fraction of a head's largest value: two rounding steps in the
# model's precision, and the effect of the order of summation in float32.
SMALLEST = 1e-6  # the least value that counts as a head's largest
FLOOR, SUMMATION = 2, 16 * torch.finfo(torch.float32).eps


@dataclass(frozen=True)
class Precision:
    """The largest rounding errors in one dtype.

    Attributes
    ----------
    weights : float
        Of attention weights.
    values : float
        Of all other stages, relative to the stage's largest value.
    slope : float
        Of the regression of log weights.
    eps, tiny : float
        As in `torch.finfo`.
    """

    weights: float
    values: float
    slope: float
    eps: float
    tiny: float


def _precision(dtype: torch.dtype, weights: float, values: float, slope: float) -> Precision:
    return Precision(weights, values, slope, torch.finfo(dtype).eps, torch.finfo(dtype).tiny)


# Measured on all-MiniLM-L6-v2 and on random models with sharp attention.
PRECISIONS = {
    torch.float32: _precision(torch.float32, weights=5e-6, values=1e-5, slope=1e-5),
    torch.float16: _precision(torch.float16, weights=1e-2, values=5e-3, slope=1e-3),
    torch.bfloat16: _precision(torch.bfloat16, weights=5e-2, values=4e-2, slope=4e-3),
}


def dtypes(record: AttentionRecord) -> tuple[torch.dtype, torch.dtype]:
    """Return the dtypes in which the model computes its weights, and everything else.

    Some models convert queries and keys to float32 for the weights only. A model in float64 may
    still compute its softmax in float32.
    """
    fine = record.query.dtype if record.query.dtype in PRECISIONS else torch.float32
    value = record.value.dtype if record.value.dtype in PRECISIONS else torch.float32
    return fine, max(fine, value, key=lambda dtype: PRECISIONS[dtype].eps)


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
