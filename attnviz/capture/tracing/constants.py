"""What is the same for every input: parameters, and what follows from them alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef


def storage_key(tensor: Tensor) -> int:
    """Return what tells the storage of a tensor from all others that are alive."""
    return int(tensor.untyped_storage()._cdata)


def lies_in(result: Tensor, args: Sequence[Any]) -> bool:
    """Whether the result of an operator lies in the memory of one of its arguments."""
    return any(isinstance(arg, Tensor) and storage_key(arg) == storage_key(result) for arg in args)


class Fixed:
    """The parameters of a model, and what it computes of them alone: tables of positions, masks."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        # While there is a reference, be it a weak one, a key is not given to others.
        self._held: dict[int, StorageWeakRef] = {}
        self._parameters: set[int] = set()
        for tensor in parameters:
            self._parameters.add(self._hold(tensor))

    def __contains__(self, tensor: Tensor) -> bool:
        """Whether the tensor does not depend on the input."""
        if isinstance(tensor, nn.Parameter):  # what is offloaded comes while the model runs
            self._parameters.add(self._hold(tensor))
        return storage_key(tensor) in self._held

    def is_parameter(self, tensor: Tensor) -> bool:
        """Whether the tensor is a parameter, or a view of one."""
        return tensor in self and storage_key(tensor) in self._parameters

    def note(self, args: Sequence[Any], result: Any) -> None:
        """Note whether the result of an operator follows from what is fixed."""
        if not isinstance(result, Tensor):
            return
        given = [one for arg in args for one in (arg if isinstance(arg, list | tuple) else [arg])]
        if all(one in self for one in given if isinstance(one, Tensor)):
            self._hold(result)
        elif not self.is_parameter(result):
            self._held.pop(storage_key(result), None)

    def _hold(self, tensor: Tensor) -> int:
        key = storage_key(tensor)
        self._held[key] = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        return key
