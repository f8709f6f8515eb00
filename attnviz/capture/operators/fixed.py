"""What is the same for every input: parameters, and what follows from them alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def storage_key(tensor: Tensor) -> int:
    """Return what tells the storage of a tensor from all others that are alive."""
    return int(tensor.untyped_storage()._cdata)


def lies_in(result: Tensor, args: Sequence[Any]) -> bool:
    """Whether the result of an operator lies in the memory of one of its arguments."""
    return any(isinstance(arg, Tensor) and storage_key(arg) == storage_key(result) for arg in args)


class Fixed:
    """The parameters of a model, and what it computes of them alone: tables of positions, masks."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        # The storages are kept, so that their keys are not given to others.
        self._held: dict[int, torch.UntypedStorage] = {
            storage_key(tensor): tensor.untyped_storage() for tensor in parameters
        }
        self._parameters = frozenset(self._held)

    def __contains__(self, tensor: Tensor) -> bool:
        """Whether the tensor does not depend on the input."""
        return storage_key(tensor) in self._held

    def is_parameter(self, tensor: Tensor) -> bool:
        """Whether the tensor is a parameter, or a view of one."""
        return storage_key(tensor) in self._parameters

    def note(self, args: Sequence[Any], result: Any) -> None:
        """Note whether the result of an operator follows from what is fixed."""
        if not isinstance(result, Tensor):
            return
        given = [one for arg in args for one in (arg if isinstance(arg, list | tuple) else [arg])]
        if all(one in self for one in given if isinstance(one, Tensor)):
            self._held[storage_key(result)] = result.untyped_storage()
        elif not self.is_parameter(result):
            self._held.pop(storage_key(result), None)
