"""A digest of numbers, by which a report knows those that it checked.

It is computed where the tensors are, and the same on every device, because sums of integers are
exact. It tells a change, not an attack: who writes the numbers can write the digest too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

_AT_ONCE = 2**20  # words
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}


def digests(several: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a digest of each group of named values: tensors, tuples, records and plain values.

    The numbers of all groups are copied from the device together.
    """
    sums: list[Tensor] = []
    described = [_describe(values, sums) for values in several]
    numbers = torch.stack([total.to(sums[0].device) for total in sums]).tolist() if sums else []
    return [
        hashlib.sha256(repr((text, numbers[start:end])).encode()).hexdigest()[:16]
        for text, start, end in described
    ]


def _describe(values: Mapping[str, Any], sums: list[Tensor]) -> tuple[str, int, int]:
    """Return values in words, and the range of `sums`, to which those of its tensors are added."""
    start = len(sums)

    def words(value: Any) -> object:
        if isinstance(value, Tensor):
            sums.append(_sum_of_words(value))
            return str(value.dtype), tuple(value.shape)
        if isinstance(value, tuple | list):
            return [words(item) for item in value]
        if isinstance(value, Mapping):
            return {name: words(item) for name, item in value.items()}
        if is_dataclass(value):
            items = {field.name: getattr(value, field.name) for field in fields(value)}
            return type(value).__name__, words(items)
        return value

    text = repr(words(values))
    return text, start, len(sums)


def _sum_of_words(tensor: Tensor) -> Tensor:
    """Return the sum of the bits of a tensor as integers, each times a factor of its position."""
    words = tensor.detach().contiguous().reshape(-1).view(_WORDS[tensor.dtype.itemsize])
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for number, part in enumerate(torch.split(words, _AT_ONCE)):
        total += (2 * number + 1) * (part * _factors(str(tensor.device))[: len(part)]).sum()
    return total


@cache
def _factors(device: str) -> Tensor:
    """Return odd factors, each different, so that two numbers cannot change places."""
    return 2 * torch.arange(_AT_ONCE, dtype=torch.int64, device=device) + 1
