"""A digest of numbers, by which a report knows those that it checked.

It is computed where the tensors are, and the same on every device, because sums of integers are
exact. It shows a change, not an attack: anyone who can write the numbers can also write the digest.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

_PRIME = 2**31 - 1
_AT_ONCE = 2**20  # words, an even number
_TOGETHER = 2**24  # words of several tensors, on another device than a CPU
_PLAIN = {str, int, float, bool, type(None)}  # what a sequence writes as it is
_WORDS = {1: torch.uint8, 2: torch.int16}  # of larger numbers int32


def digests(several: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a digest of each group of named values: tensors, tuples, records and plain values.

    The numbers of all groups are copied from the device together.
    """
    tensors: list[Tensor] = []
    texts: dict[int, str] = {}  # records without tensors; all layers share an axis

    def words(value: Any) -> str:
        if isinstance(value, Tensor):
            tensors.append(value)
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
            before = len(tensors)
            items = stored(value)
            text = f"({type(value).__name__!r}, {words(items)})"
            if len(tensors) == before:
                texts[id(value)] = text
            return text
        return repr(value)

    described = [(len(tensors), words(values), len(tensors)) for values in several]
    unique = {id(tensor): tensor for tensor in tensors}  # the texts of a batch share weights
    sums = dict(zip(unique, _sums_of_words([*unique.values()]), strict=True))
    numbers = [sums[id(tensor)] for tensor in tensors]
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


def _sums_of_words(tensors: Sequence[Tensor]) -> list[int]:
    """Return a sum over the bits of each tensor, as integers of at most 32 bits.

    Each word is added to a key, and neighbors are multiplied: NH, the hash of UMAC (Black et al.
    1999). Sums of integers wrap around.
    """
    parts = []
    for n, tensor in enumerate(tensors):
        words = tensor.detach().contiguous().reshape(-1)
        words = words.view(_WORDS.get(tensor.dtype.itemsize, torch.int32))
        parts += [(n, part) for part in torch.split(words, _AT_ONCE) if len(part)]
    sums = [0] * len(tensors)
    for device in dict.fromkeys(part.device for _, part in parts):
        here = [(n, part) for n, part in parts if part.device == device]
        # On a CPU numpy is faster, and one after the other. A device is waited for once.
        totals = (_by_numpy if device.type == "cpu" else _on_device)([part for _, part in here])
        for (n, _), total in zip(here, totals, strict=True):
            sums[n] = sums[n] * _PRIME + total
    return [(total + 2**63) % 2**64 - 2**63 for total in sums]


def _by_numpy(parts: Sequence[Tensor]) -> Iterator[int]:
    """Yield the sum of the words of each part; a last word without a neighbor has the last key."""
    keys = _keys("cpu").numpy()
    for part in parts:
        keyed = part.numpy() + keys[: len(part)]
        total = int(keyed[: len(part) // 2 * 2 : 2].dot(keyed[1::2]))
        yield total + (int(keys[-1]) * int(keyed[-1]) if len(part) % 2 else 0)


def _on_device(parts: Sequence[Tensor]) -> list[int]:
    """Return the same sums, all parts together."""
    keys, found = _keys(str(parts[0].device)), []
    lengths = itertools.accumulate(map(len, parts))
    blocks = itertools.groupby(zip(parts, lengths, strict=True), lambda one: one[1] // _TOGETHER)
    for _, block in blocks:
        some = [part for part, _ in block]
        nothing = some[0].new_zeros(1)
        words = [w for part in some for w in (part, nothing[: len(part) % 2])]
        added = [k for part in some for k in (keys[: len(part)], keys[-1:][: len(part) % 2])]
        keyed = torch.cat(words) + torch.cat(added)
        ends = torch.tensor([(len(part) + 1) // 2 for part in some], device="cpu").cumsum(0) - 1
        total = (keyed[::2] * keyed[1::2]).cumsum(0)[ends.to(keyed.device)]
        found.append(total.diff(prepend=total.new_zeros(1)))
    return [int(total) for total in torch.cat(found).tolist()]


@cache
def _keys(device: str) -> Tensor:
    """Return a key of 31 bits for each word, the same on every device."""
    numbers = torch.arange(1, _AT_ONCE + 1, dtype=torch.int64, device=device)
    return (numbers * numbers % _PRIME * 48271 + numbers * 16807) % _PRIME
