"""Products as precise as their factors, whatever the user allows for speed.

TF32, float32 products in bfloat16 and autocast are off by up to 1e-2. They are settings of the user
for a model; what attnviz computes, compares and shows is exact.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

_lock = threading.Lock()  # the settings belong to the process
_inside = 0  # how many blocks of all threads run
_restore = ExitStack()  # puts the settings back after the last of them


@contextmanager
def full_float32() -> Iterator[None]:
    """Multiply float32 matrices in float32 on every device; blocks may be nested or in threads."""
    global _inside
    with _lock:
        _inside += 1
        if _inside == 1:
            _set_full_float32()
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                _restore.close()


@contextmanager
def exact_products() -> Iterator[None]:
    """Multiply matrices in the dtype of their factors: full float32, and no autocast."""
    with ExitStack() as stack:
        stack.enter_context(full_float32())
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


def _set_full_float32() -> None:
    """Set what TF32 and bfloat16 depend on, where it is not as it should be."""
    mkldnn: Any = torch.backends.mkldnn
    backends = torch.backends.cuda.matmul, mkldnn.matmul
    before = [backend.fp32_precision for backend in backends]
    if all(precision in ("ieee", "none") for precision in before):
        return
    try:
        legacy = torch.get_float32_matmul_precision()
    except RuntimeError:  # only the newer setting was changed
        legacy = "highest"
    # The older setting is changed too: with two settings that differ, torch refuses to read it.
    torch.set_float32_matmul_precision("highest")
    for backend, precision in zip(backends, before, strict=True):
        _restore.callback(setattr, backend, "fp32_precision", precision)
    _restore.callback(torch.set_float32_matmul_precision, legacy)  # the first to be called
