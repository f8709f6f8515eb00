"""Run a script, or a module with -m, on a simulated device: see tests/simulated_cuda.py.

Kernels run in Triton's interpreter where Triton is installed, otherwise torch's loops serve.
"""

from __future__ import annotations

import runpy
import sys
import time
from unittest.mock import patch

import torch
from simulated_cuda import SimulatedCuda


class Event:
    """A CUDA event that takes the time of the host."""

    def __init__(self, **_: object) -> None:
        self.time = 0.0

    def record(self, *_: object) -> None:
        """Take the time."""
        self.time = time.perf_counter()

    def synchronize(self) -> None:
        """Do nothing, because the host has waited for each operator."""

    wait_event = wait_stream = wait = synchronize

    def elapsed_time(self, end: Event) -> float:
        """Return the milliseconds between two events."""
        return (end.time - self.time) * 1e3


if __name__ == "__main__":
    sys.argv.pop(0)
    as_module = sys.argv[0] == "-m"
    name = sys.argv.pop(0) if not as_module else sys.argv[1]
    host = {
        "Event": Event,
        "reset_peak_memory_stats": lambda device=None: None,
        "max_memory_allocated": lambda device=None: 0,
    }
    with SimulatedCuda(), patch.multiple(torch.cuda, **host):
        if as_module:
            sys.argv[:2] = [name]
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            sys.argv.insert(0, name)
            runpy.run_path(name, run_name="__main__")
