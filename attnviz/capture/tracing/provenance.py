"""Beside the memory of a run, a shadow: what each number in it was copied or computed from.

A shadow says of every element of a tensor that value = factor · product[origin] + offset, where
origin numbers the elements of all products q·k of the run. Whatever a model does to its scores
between the product and the softmax (scale, add, mask, cut, shift, pad, gather, write into a buffer)
is done to the shadow as well, so that in the end every score is known by its formula. Shadows lie
beside storage, not beside tensors, so views need nothing and writing through a view is seen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attnviz.capture.tracing.symbolic import Kind, Shadow, constants


@dataclass(eq=False)
class _Held:
    """The shadow of one storage, flat, or only the number of its first element."""

    storage: torch.UntypedStorage  # kept, so that its address is not given to another
    itemsize: int
    first: int
    depth: int
    shadow: Shadow | None = None


class ShadowMemory:
    """The shadows of all storages that are of interest."""

    def __init__(self) -> None:
        self._held: dict[int, _Held] = {}
        self._next = 0
        self.depth = 0

    def reserve(self, count: int) -> int:
        """Return the first of `count` numbers that nothing else bears."""
        first = self._next
        self._next += count
        return first

    def forget(self, depth: int) -> None:
        """Drop what was made deeper than `depth`."""
        for key in [key for key, held in self._held.items() if held.depth > depth]:
            del self._held[key]

    def of(self, tensor: object, kind: Kind | None = None) -> Shadow | None:
        """Return the shadow of a tensor, if it has one (of that kind)."""
        if not isinstance(tensor, Tensor):
            return None
        held = self._held.get(tensor.untyped_storage()._cdata)
        if held is None or held.shadow is None or held.itemsize != tensor.itemsize:
            return None
        if kind is not None and held.shadow.kind != kind:
            return None
        return held.shadow.made_of(_lying_as(tensor, part) for part in held.shadow.parts())

    def places(self, tensor: Tensor) -> Tensor:
        """Return the number of the activation that each element is a copy of."""
        if (shadow := self.of(tensor, "place")) is not None:
            return shadow.origin
        held = self._hold(tensor)
        numbers = torch.tensor(held.first + tensor.storage_offset(), device=tensor.device)
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
            numbers = numbers.unsqueeze(-1) + torch.arange(size, device=tensor.device) * stride
        return numbers

    def lift(self, tensor: Tensor, like: Shadow) -> Shadow:
        """Return a shadow of the same kind: the tensor's own, or that of plain numbers."""
        if (own := self.of(tensor, like.kind)) is not None:
            return own
        if like.kind == "place":
            return Shadow("place", self.places(tensor))
        return constants(tensor, like)

    def cast(self, tensor: Tensor, shadow: Shadow) -> None:
        """Lay a shadow beside a tensor, which may be part of a storage that has one already."""
        held = self._hold(tensor)
        old = held.shadow
        if old is None or not _alike(old, shadow):
            flat = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            flat = flat.set_(held.storage, 0, (held.storage.nbytes() // tensor.itemsize,), (1,))
            whole = flat.numel() == tensor.numel()
            old = self._blank(flat, shadow) if whole else self._background(flat, shadow)
        held.itemsize = tensor.itemsize
        held.shadow = replace(old, cap=shadow.cap)
        for part, new in zip(held.shadow.parts(), shadow.parts(), strict=True):
            _lying_as(tensor, part).copy_(new)

    def drop(self, tensor: Tensor) -> None:
        """Forget what a tensor was made of."""
        if (held := self._held.get(tensor.untyped_storage()._cdata)) is not None:
            held.shadow = None

    def _background(self, flat: Tensor, shadow: Shadow) -> Shadow:
        """What lies around a part that is written."""
        held = self._hold(flat)
        if shadow.kind == "place":
            return Shadow("place", held.first + torch.arange(len(flat), device=flat.device))
        return constants(flat, shadow)

    def _blank(self, flat: Tensor, shadow: Shadow) -> Shadow:
        return shadow.made_of(
            torch.empty(flat.shape, dtype=part.dtype, device=flat.device) for part in shadow.parts()
        )

    def _hold(self, tensor: Tensor) -> _Held:
        storage = tensor.untyped_storage()
        if (held := self._held.get(storage._cdata)) is None:
            count = storage.nbytes() // tensor.itemsize
            held = _Held(storage, tensor.itemsize, self.reserve(count), self.depth)
            self._held[storage._cdata] = held
        return held


def _alike(old: Shadow, new: Shadow) -> bool:
    """Whether a part of the one can be written over a part of the other."""
    same = (old.kind, len(old.parts()), old.origin.device)
    return same == (new.kind, len(new.parts()), new.origin.device)


def _lying_as(tensor: Tensor, flat: Tensor) -> Tensor:
    return flat.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
