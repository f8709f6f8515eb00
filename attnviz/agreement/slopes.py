"""The slope of one set of numbers on another: what shows a wrong scale in any precision."""

from __future__ import annotations

import torch
from torch import Tensor


def centred_log(weights: Tensor, usable: Tensor) -> Tensor:
    """Log weights less their row's mean: what is left is the scores up to rounding."""
    logs = torch.where(usable, weights, 1.0).log()
    mean = logs.sum(-1, keepdim=True) / usable.sum(-1, keepdim=True).clamp(min=1)
    return torch.where(usable, logs - mean, 0.0)


def slope_on(
    x: Tensor, y: Tensor, z: Tensor, dims: tuple[int, ...], *, step: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Regress y on x; return slope - 1, and what our own run z errs: thrice, or 4 standard errors.

    A standard error supposes that each number is at least one `step` of rounding off.
    Rows without spread carry no slope: 0, which the canary then shows to prove nothing.
    """
    spread = (x * x).sum(dims).clamp(min=torch.finfo(x.dtype).tiny)
    slope, own_slope = ((x * (other - x)).sum(dims) / spread for other in (y, z))
    count = (x != 0).sum(dims).clamp(min=1)
    variance = ((z - x) ** 2).sum(dims) / count + step**2
    standard_error = (variance / spread).sqrt()
    return slope, torch.maximum(3 * own_slope.abs(), 4 * standard_error)
