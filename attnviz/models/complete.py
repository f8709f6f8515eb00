"""Every weight of a model comes from its files, is a number, and none of them is left over."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)
from transformers import PreTrainedModel

from attnviz.errors import ModelError
from attnviz.models.parameters import whole
from attnviz.models.weight_files import Weights


@contextmanager
def no_larger_than(name: str, weights: Weights) -> Iterator[None]:
    """Refuse a config that describes far more than its files hold, before room is made for it.

    While a model is built its tensors have a shape and no memory. Tied weights and missing heads
    make it somewhat larger than its file.
    """
    tensors, numbers = 10 * weights.tensors + 2_000, 5 * weights.numbers + 2**26
    thread, there, left = threading.get_ident(), [0], [numbers]

    def count(module: torch.nn.Module, key: str, tensor: torch.Tensor | None) -> None:
        if tensor is None or threading.get_ident() != thread:
            return
        there[0] += 1
        left[0] -= tensor.numel()
        if left[0] < 0 or there[0] > tensors:
            raise ModelError(
                f"{name}: expected a config.json for the {weights.numbers:,} numbers in "
                f"{weights.tensors:,} tensors of its weights, but it describes far more "
                f"({key} of {type(module).__name__}); use the one that was saved with these weights"
            )

    hooks = (
        register_module_parameter_registration_hook(count),
        register_module_buffer_registration_hook(count),
    )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def expect_finite(name: str, module: PreTrainedModel) -> None:
    """Refuse weights that are no numbers: nothing that follows from them would be one."""
    for key, tensor in module.named_parameters():
        if not (tensor.is_floating_point() and tensor.numel() and tensor.element_size() > 1):
            continue
        if not all(bound.isfinite() for bound in whole(module, key, tensor).aminmax()):
            dtype = str(tensor.dtype).removeprefix("torch.")
            narrow = tensor.element_size() < torch.float32.itemsize
            wider = ", or load it in float32 (dtype='float32', --dtype float32)" if narrow else ""
            raise ModelError(
                f"{name}: expected finite weights, but {key:.80} holds NaN or infinity as {dtype}; "
                f"get the file again{wider}"
            )


def complete(name: str, module: Any, report: dict[str, Any]) -> Any:
    """Refuse random weights and lost layers.

    A file that holds nothing of the declared head (sentence-transformers writes such) gives the
    model below the head.
    """
    prefix = f"{module.base_model_prefix}."
    names, missing = set(module.state_dict()), set(report["missing_keys"])
    lost = _lost_layers(module, prefix, report["unexpected_keys"])
    head = {key for key in names if not key.startswith(prefix)} - set(module.all_tied_weights_keys)
    headless = head <= missing and not any(key.startswith(prefix) for key in missing)
    below = module.base_model
    if missing and headless and below is not module and isinstance(below, PreTrainedModel):
        module, missing = below, set()

    wrong = [
        f"{key:.80} is {tuple(got)} in the file and {tuple(shape)} by the config"
        for key, got, shape in sorted(report["mismatched_keys"])
    ]
    wrong += [f"{key:.80} is missing" for key in sorted(missing)]
    wrong += [f"the config has no layer for {key:.80}" for key in lost]
    if wrong:
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise ModelError(
            f"{name}: expected the weights of the {type(module).__name__} in config.json, but "
            f"{wrong[0]}{more}; random weights are never shown: "
            "use the config.json that was saved with these weights"
        )
    return module


def _lost_layers(module: torch.nn.Module, prefix: str, unexpected: set[str]) -> list[str]:
    """Return the keys of the file that number a layer past the last one of the model."""
    stacks = {
        name.removeprefix(prefix): len(stack)
        for name, stack in module.named_modules()
        if isinstance(stack, torch.nn.ModuleList | torch.nn.Sequential)
    }

    def is_lost(key: str) -> bool:
        numbers = re.finditer(r"\.(\d+)(?=\.)", key)
        return any(int(n[1]) >= stacks.get(key[: n.start()], math.inf) for n in numbers)

    return sorted(key for key in unexpected if is_lost(key.removeprefix(prefix)))
