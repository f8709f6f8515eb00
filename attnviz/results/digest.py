"""A digest of numbers, by which a report knows those that it checked.

It is computed where the tensors are, and the same on every device, because sums of integers are
exact. It shows a change, not an attack: anyone who can write the numbers can also write the digest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

_PRIME = 2**31 - 1
_AT_ONCE = 2**20  # words, an even number
_PLAIN = {str, int, float, bool, type(None)}  # what a sequence writes as it is
_WORDS = {1: torch.uint8, 2: torch.int16}  # of larger numbers int32


def digests(several: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a digest of each group of named values: tensors, tuples, records and plain values.

    The numbers of all groups are copied from the device together.
    """
    sums: list[Tensor | int] = []
    texts: dict[int, str] = {}  # records without tensors; all layers share an axis

    def words(value: Any) -> str:
        if isinstance(value, Tensor):
            sums.append(_sum_of_words(value))
            return repr((str(value.dtype), tuple(value.shape)))
        if isinstance(value, tuple | list):
            if _PLAIN.issuperset(map(type, value)):
                return repr(list(value))
            return f"[{', '.join(map(words, value))}]"
        if isinstance(value, Mapping):
            return f"{{{', '.join(f'{name!r}: {words(item)}' for name, item in value.items())}}}"
        if is_dataclass(value):
            if id(value) in texts:
                return texts[id(value)]
            before = len(sums)
            items = stored(value)
            text = f"({type(value).__name__!r}, {words(items)})"
            if len(sums) == before:
                texts[id(value)] = text
            return text
        return repr(value)

    described = [(len(sums), words(values), len(sums)) for values in several]
    on_device = [total for total in sums if isinstance(total, Tensor)]
    moved = [total.to(on_device[0].device) for total in on_device]
    copied = iter(torch.stack(moved).tolist() if moved else ())
    numbers = [next(copied) if isinstance(total, Tensor) else total for total in sums]
    return [
        hashlib.sha256(repr((text, numbers[start:end])).encode()).hexdigest()[:16]
        for start, text, end in described
    ]


def stored(record: Any) -> dict[str, Any]:
    """Return the fields of a record by name; those added later only where they are set."""
    values = {field.name: getattr(record, field.name) for field in fields(record)}
    unset = {
        f.name for f in fields(record) if f.metadata.get("later") and values[f.name] in ((), None)
    }
    return {name: value for name, value in values.items() if name not in unset}


def _sum_of_words(tensor: Tensor) -> Tensor | int:
    """Return a sum over the bits of a tensor, as integers of at most 32 bits.

    Each word is added to a key, and neighbors are multiplied: NH, the hash of UMAC (Black et al.
    1999). Sums of integers wrap around.
    """
    words = tensor.detach().contiguous().reshape(-1)
    words = words.view(_WORDS.get(tensor.dtype.itemsize, torch.int32))
    keys = _keys(str(tensor.device))
    if tensor.is_cpu:
        return _sum_by_numpy(words.numpy(), keys.numpy())
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for part in torch.split(words, _AT_ONCE):
        keyed = part + keys[: len(part)]
        even, odd = keyed[: len(part) // 2 * 2 : 2], keyed[1::2]
        total = total * _PRIME + (even * odd).sum()
        if len(part) % 2:
            total = total + keys[-1] * keyed[-1]
    return total


def _sum_by_numpy(words: NDArray[Any], keys: NDArray[Any]) -> int:
    """Return the same sum of words on a CPU, where numpy is faster."""
    total = 0
    for start in range(0, max(1, len(words)), _AT_ONCE):
        part = words[start : start + _AT_ONCE]
        keyed = part + keys[: len(part)]
        total = total * _PRIME + int(keyed[: len(part) // 2 * 2 : 2].dot(keyed[1::2]))
        if len(part) % 2:
            total += int(keys[-1]) * int(keyed[-1])
    return (total + 2**63) % 2**64 - 2**63


@cache
def _keys(device: str) -> Tensor:
    """Return a key of 31 bits for each word, the same on every device."""
    numbers = torch.arange(1, _AT_ONCE + 1, dtype=torch.int64, device=device)
    return (numbers * numbers % _PRIME * 48271 + numbers * 16807) % _PRIME
