"""The user's model stays as it was: whatever a run changes is restored afterwards."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Literal

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnviz.capture.projections import AttentionModule
from attnviz.models.parameters import devices, held_whole
from attnviz.runtime.compat import (
    attention_configs,
    attention_implementation,
    set_attention_implementation,
    state_of,
)

# What is restored belongs to the model and to torch, which all threads share. The thread that holds
# the lock may acquire it again.
model_lock = threading.RLock()


@contextmanager
def restoring(model: nn.Module, attention: Literal["eager", "sdpa"] = "eager") -> Iterator[None]:
    """Put `model` into eval mode with this attention, and restore every trace on leaving.

    One thread at a time: others wait.

    Restored: training flags, hooks (transformers installs some of its own when attentions are
    asked for), plain attributes, the attention implementation of every config, TF32, torch's fused
    attention, and the state of its random numbers, which are the same in every run.
    """
    # Eager code may still call torch's fused attention, which shows no softmax.
    kernel = sdpa_kernel(SDPBackend.MATH) if attention == "eager" else nullcontext()
    with model_lock, _restoring(model, attention), kernel:
        yield


@contextmanager
def _restoring(model: nn.Module, attention: str) -> Iterator[None]:
    states = [(state, state.copy()) for module in model.modules() for state in state_of(module)]
    implementations = [
        (config, attention_implementation(config)) for config in attention_configs(model)
    ]
    precision = torch.backends.cuda.matmul.fp32_precision
    fast_path = torch.backends.mha.get_fastpath_enabled()
    gpus = sorted(device.index or 0 for device in devices(model) if device.type == "cuda")
    try:
        model.eval()
        for config, _ in implementations:
            set_attention_implementation(config, attention)
        torch.backends.cuda.matmul.fp32_precision = "ieee"
        torch.backends.mha.set_fastpath_enabled(False)
        with torch.random.fork_rng(gpus):
            torch.manual_seed(0)
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        torch.backends.cuda.matmul.fp32_precision = precision
        for config, implementation in implementations:
            set_attention_implementation(config, implementation)
        for state, before in states:
            for added in state.keys() - before.keys():
                del state[added]
            state.update(before)


@contextmanager
def weights_in_memory(attentions: Iterable[AttentionModule | None]) -> Iterator[None]:
    """Hold all weights of some attention modules in memory, also those that are offloaded.

    One thread at a time, as in `restoring`.
    """
    modules = [
        module
        for attention in attentions
        if attention is not None
        for module in (attention.module, attention.output)
        if module
    ]
    with model_lock, held_whole(dict.fromkeys(modules)):
        yield
