"""What honest rounding looks like, in each precision."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from attnviz.results import AttentionRecord

# What is never a difference, as a fraction of a head's largest value: two steps of rounding in the
# model's precision, and what the order of summation leaves in float32, in which sums are taken.
SMALLEST = 1e-6  # no head is measured more finely than this
FLOOR, SUMMATION = 2, 16 * torch.finfo(torch.float32).eps


@dataclass(frozen=True)
class Precision:
    """What honest rounding looks like in one dtype.

    weights : largest difference of weights. values : of all other stages, per unit of the stage's
    largest value. slope : of the regression of log weights. eps, tiny : of the dtype, as in
    `torch.finfo`.
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
    """Return in what the model computes its weights, and in what all else.

    Some take their queries and keys to float32 for the weights only. A model in float64 may still
    take its softmax in float32.
    """
    fine = record.query.dtype if record.query.dtype in PRECISIONS else torch.float32
    value = record.value.dtype if record.value.dtype in PRECISIONS else torch.float32
    return fine, max(fine, value, key=lambda dtype: PRECISIONS[dtype].eps)
