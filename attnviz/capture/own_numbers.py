"""A result owns its numbers: later steps of an optimizer must not change what a figure shows."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from operator import is_
from typing import Any

from torch import Tensor, nn

from attnviz.results import Axis


class OwnNumbers:
    """Copies the tensors in records that share memory with the weights or buffers of a model.

    The records of several texts share one copy.
    """

    def __init__(self, model: nn.Module) -> None:
        tensors = (*model.parameters(), *model.buffers())
        self._storages = {_storage(tensor) for tensor in tensors if not tensor.is_meta}
        self._copies: dict[tuple[Any, ...], Tensor] = {}

    def copy(self, value: Any) -> Any:
        """Return a record, or a tuple of them, without memory of the model."""
        copied = value
        if isinstance(value, Tensor):
            copied = self._of_tensor(value)
        elif isinstance(value, tuple):
            copies = tuple(map(self.copy, value))
            copied = value if all(map(is_, copies, value)) else copies
        elif is_dataclass(value) and not isinstance(value, Axis | type):
            members = {field.name: getattr(value, field.name) for field in fields(value)}
            named = {name: self.copy(member) for name, member in members.items()}
            changed = {name: copy for name, copy in named.items() if copy is not members[name]}
            copied = replace(value, **changed) if changed else value
        return copied

    def _of_tensor(self, tensor: Tensor) -> Tensor:
        if (storage := _storage(tensor)) is None or storage not in self._storages:
            return tensor
        layout = tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype
        if layout not in self._copies:
            self._copies[layout] = tensor.detach().clone()
        return self._copies[layout]


def _storage(tensor: Tensor) -> tuple[str, int] | None:
    """Return where the memory of a tensor begins; None for a tensor that wraps others."""
    try:
        return str(tensor.device), tensor.untyped_storage().data_ptr()
    except RuntimeError:
        return None
