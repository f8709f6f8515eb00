"""The user's model stays as it was: what a run must change is put back, whatever happens."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnviz.capture.projections import Holder
from attnviz.models.parameters import devices, held_whole

# What is put back belongs to the model and to torch, which all threads share. A thread that has it
# may ask again.
one_at_a_time = threading.RLock()


@contextmanager
def unchanged(model: nn.Module, attention: Literal["eager", "sdpa"] = "eager") -> Iterator[None]:
    """Put `model` into eval mode with such attention, and restore every trace on leaving.

    One thread at a time: others wait.

    Restored: training flags, hooks (transformers installs some of its own when attentions are
    asked for), plain attributes, the attention implementation of every config, TF32, torch's fused
    attention, and the state of its random numbers, which are the same in every run.
    """
    # Eager code may still call torch's fused attention, in which no softmax is seen.
    kernel = sdpa_kernel(SDPBackend.MATH) if attention == "eager" else nullcontext()
    with one_at_a_time, _restored(model, attention), kernel:
        yield


@contextmanager
def _restored(model: nn.Module, attention: str) -> Iterator[None]:
    attributes = [(module.__dict__, module.__dict__.copy()) for module in model.modules()]
    registries = [
        (value, value.copy())
        for _, before in attributes
        for name, value in before.items()
        if "_hooks" in name or name == "_buffers"
        if isinstance(value, dict)
    ]
    configs = _configs(model)
    implementations = [config._attn_implementation_internal for config in configs]
    precision = torch.backends.cuda.matmul.fp32_precision
    fused = torch.backends.mha.get_fastpath_enabled()
    try:
        model.eval()
        for config in configs:
            config._attn_implementation_internal = attention
        torch.backends.cuda.matmul.fp32_precision = "ieee"
        torch.backends.mha.set_fastpath_enabled(False)
        with torch.random.fork_rng(_gpus(model)):
            torch.manual_seed(0)
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)
        torch.backends.cuda.matmul.fp32_precision = precision
        for config, implementation in zip(configs, implementations, strict=True):
            config._attn_implementation_internal = implementation
        for members, before in attributes + registries:
            for added in members.keys() - before.keys():
                del members[added]
            members.update(before)


@contextmanager
def readable(holders: Iterable[Holder | None]) -> Iterator[None]:
    """Have all weights of some attentions where they can be read, also of a model that is spread.

    One thread at a time, as in `unchanged`.
    """
    found = [holder for holder in holders if holder is not None]
    modules = [each for holder in found for each in (holder.module, holder.output) if each]
    with one_at_a_time, held_whole(dict.fromkeys(modules)):
        yield


def _configs(model: nn.Module) -> list[Any]:
    """Return every config in the model once; submodules may hold copies of their parent's."""
    found = {
        id(config): config
        for module in model.modules()
        if hasattr(config := getattr(module, "config", None), "_attn_implementation_internal")
    }
    return list(found.values())


def _gpus(model: nn.Module) -> list[int]:
    return sorted(device.index or 0 for device in devices(model) if device.type == "cuda")
