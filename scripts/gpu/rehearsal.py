"""Run a script, or a module with -m, on a simulated device: see tests/simulated_cuda.py.

Kernels run in Triton's interpreter where Triton is installed, otherwise torch's loops serve.
"""

from __future__ import annotations

import runpy
import sys

from simulated_cuda import SimulatedCuda

if __name__ == "__main__":
    del sys.argv[0]
    with SimulatedCuda():
        if sys.argv[0] == "-m":
            del sys.argv[0]
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
