"""Count the softmax calls of a forward pass, independently of any capture."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from architectures.sharpen import sharpness

SOFTMAX = {"aten::_softmax", "aten::_safe_softmax"}


class SoftmaxCounter(TorchDispatchMode):
    """Count softmax calls while active; record the sharpness and the module of each."""

    def __init__(self, inside: list[str]) -> None:
        super().__init__()
        self.sharpness: list[float] = []
        self.paths: Counter[str] = Counter()
        self._inside = inside

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and record the result if it is a softmax."""
        with self:  # inference mode dispatches composite operators whole: decompose them
            result = func.decompose(*args, **(kwargs or {}))
        if result is not NotImplemented:
            return result
        result = func(*args, **(kwargs or {}))
        if func._schema.name in SOFTMAX and result.dim() >= 3:
            self.sharpness.append(sharpness(result))
            self.paths[self._inside[-1] if self._inside else ""] += 1
        return result


def count_softmaxes(model: nn.Module, inputs: dict[str, Any]) -> dict[str, Any]:
    """Run the model once; return the number, location and sharpness of its softmaxes."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with (
            entered_modules(model) as inside,
            SoftmaxCounter(inside) as counter,
            torch.no_grad(),
            sdpa_kernel(SDPBackend.MATH),
        ):
            outputs = model(**inputs)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    known = [value for value in counter.sharpness if not math.isnan(value)]
    return {
        "softmaxes": len(counter.sharpness),
        "softmax_paths": dict(counter.paths),
        "sharpness": round(statistics.median(known), 2) if known else None,
        "flattest": round(min(known), 2) if known else None,
        "finite": not any(tensor.isnan().any().item() for tensor in tensors(outputs)),
    }


@contextmanager
def entered_modules(model: nn.Module) -> Iterator[list[str]]:
    """Yield the paths of the modules that are currently running, innermost last.

    A module without parameters (an activation, a dropout) counts as part of its parent.
    """
    inside: list[str] = []
    handles = []
    for path, module in model.named_modules():
        if next(module.parameters(), None) is not None:
            handles += [
                module.register_forward_pre_hook(lambda *_, path=path: inside.append(path)),
                module.register_forward_hook(lambda *_: inside.pop() and None, always_call=True),
            ]
    try:
        yield inside
    finally:
        for handle in handles:
            handle.remove()


def tensors(value: Any) -> list[torch.Tensor]:
    """Return the float tensors in a model's output; -inf is allowed as a mask, nan is not."""
    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for one in value for tensor in tensors(one)]
    return []
