"""Count the softmax calls of a forward, independently of any capture."""

from __future__ import annotations

import math
import statistics
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from architectures.sharpen import sharpness

SOFTMAX = {"aten::_softmax", "aten::_safe_softmax"}


class SoftmaxCounter(TorchDispatchMode):
    """Count softmax calls while it is entered, and note how sharp each was."""

    def __init__(self) -> None:
        super().__init__()
        self.sharpness: list[float] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator; look at what a softmax returns."""
        with self:  # in inference mode composite operators come whole: take them apart
            result = func.decompose(*args, **(kwargs or {}))
        if result is not NotImplemented:
            return result
        result = func(*args, **(kwargs or {}))
        if func._schema.name in SOFTMAX and result.dim() >= 3:
            self.sharpness.append(sharpness(result))
        return result


def count_softmaxes(model: nn.Module, inputs: dict[str, Any]) -> dict[str, Any]:
    """Run the model once; return how many softmaxes it executed and how sharp they were."""
    counter = SoftmaxCounter()
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
            outputs = model(**inputs)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
    known = [value for value in counter.sharpness if not math.isnan(value)]
    return {
        "softmaxes": len(counter.sharpness),
        "sharpness": round(statistics.median(known), 2) if known else None,
        "flattest": round(min(known), 2) if known else None,
        "finite": not any(one.isnan().any().item() for one in tensors(outputs)),
    }


def tensors(value: Any) -> list[torch.Tensor]:
    """Return the numbers in what a model returned; minus infinity may be a mask, nan is none."""
    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() else []
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for one in value for tensor in tensors(one)]
    return []
