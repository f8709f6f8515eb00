"""What is measured where the model computes: a few numbers of each head, copied together.

A comparison on a GPU waits for every number that Python asks for. So a stage is reduced to small
tensors on its device, those of a whole attention are copied at once, and Python decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

Numbers: TypeAlias = dict[str, Tensor]


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


def slope(numbers: Numbers, prefix: str = "", *, step: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return the slope of y on x minus 1, and how far it may be from 0, from their `regression`.

    z is our own run. The slope of y may be off three times as far as that of z, or 4 standard
    errors. A standard error assumes that each number is off by at least one rounding `step`. Rows
    without spread have the slope 0, and the canary then shows that nothing is proven.
    """
    xx, xy, xz, count, zz = (numbers[prefix + name] for name in ("xx", "xy", "xz", "count", "zz"))
    spread = xx.clamp(min=torch.finfo(xx.dtype).tiny)
    run_slope, variance = xz / spread, zz / count.clamp(min=1) + step**2
    standard_error = (variance / spread).sqrt()
    return xy / spread, torch.maximum(3 * run_slope.abs(), 4 * standard_error)
