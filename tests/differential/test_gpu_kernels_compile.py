"""The GPU kernels compile for devices that are absent, fit their shared memory, and do not spill.

The launcher runs on tensors without data that say they are on CUDA. Its kernels record their
arguments, which Triton then compiles to machine code for some compute capability.
"""

import inspect
import random
import re
import subprocess
from importlib.util import find_spec

import pytest
import torch

from attnviz.results import MaskRule
from attnviz.streaming import ScoreSpec, gpu
from attnviz.streaming import triton_kernels as kernels
from attnviz.streaming.reference import MapBuffers

pytestmark = pytest.mark.skipif(
    find_spec("triton") is None or not hasattr(kernels.map_pass, "warmup"),
    reason="needs Triton, and not its interpreter",
)


@pytest.fixture(autouse=True)
def no_cache(monkeypatch, tmp_path):
    """Compile every time."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))


# Bytes of shared memory that a program can have.
SHARED_MEMORY = {(8, 0): 166_912, (8, 9): 101_376, (9, 0): 232_448, (10, 0): 232_448}
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
TYPES = {torch.int8: "*i8", torch.float32: "*fp32", **{t: f"*{n}" for n, t in DTYPES.items()}}
OPTIONS = ("num_warps", "num_stages", "enable_fp_fusion")


def launches(monkeypatch, capability, dtype, width, *, cells=90, tokens=100_000, marks=True,
             before=None, after=0, padded=False, cap=None):  # fmt: skip
    """Return the kernels that a map of 4 heads launches on such a device, with their arguments."""
    recorded = {}

    class Recorder:
        def __init__(self, name):
            self.name = name

        def __getitem__(self, grid):
            return lambda **arguments: recorded.setdefault(self.name, arguments)

    with monkeypatch.context() as patch, torch.device("meta"):
        patch.setattr(torch.Tensor, "is_cuda", True)
        for name in ("log_sum_exp", "map_pass"):
            patch.setattr(kernels, name, Recorder(name))
        patch.setattr(gpu, "_capability", lambda device: capability)
        patch.setattr(gpu, "_multiprocessors", lambda device: 100)
        patch.setattr(gpu, "available", lambda device: True)
        Q, K = (torch.empty(h, tokens, width, dtype=dtype) for h in (4, 1))
        keys = torch.empty(tokens, dtype=torch.bool) if padded else None
        rule = MaskRule(before=before, after=after, keys=keys)
        spec = ScoreSpec(Q, K, width**-0.5, rule, soft_cap=cap)
        assert gpu.supports(spec)
        marked = torch.empty(tokens, dtype=torch.bool) if marks else None
        buffers = MapBuffers(spec, cells, 0, marked, None)
        gpu.reduce_map(spec, buffers)
    return recorded


def compiled(name, arguments, capability):
    """Compile a kernel as its launcher would; return shared memory, stack, machine code."""
    from triton import compile as build
    from triton import knobs
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = getattr(kernels, name)
    parameters = inspect.signature(kernel.fn).parameters
    signature, constants, attributes = {}, {}, {}
    for index, (parameter, declared) in enumerate(parameters.items()):
        value, aligned = arguments[parameter], False
        if "constexpr" in str(declared.annotation) or (type(value) is int and value == 1):
            signature[parameter], constants[(index,)] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[parameter], aligned = TYPES[value.dtype], True
        elif isinstance(value, float):
            signature[parameter] = "fp32"
        else:
            signature[parameter] = "i64" if abs(value) >= 2**31 else "i32"
            aligned = value % 16 == 0
        if aligned:
            attributes[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constants, attributes)
    target = GPUTarget("cuda", 10 * capability[0] + capability[1], 32)
    options = {option: arguments[option] for option in OPTIONS}
    return build(source, target=target, options=options), knobs.nvidia


def resources(tmp_path, name, arguments, capability):
    """Return bytes of shared memory, bytes of stack per thread, and spills in loops over tiles."""
    made, tools = compiled(name, arguments, capability)
    binary = tmp_path / f"{name}.cubin"
    binary.write_bytes(made.asm["cubin"])

    def run(tool, *options):
        command = [tool.path, *options, str(binary)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    usage = run(tools.cuobjdump, "--dump-resource-usage")
    stack = int(re.search(r"STACK:(\d+)", usage)[1])
    return made.metadata.shared, stack, spills(run(tools.nvdisasm, "-c"))


def spills(code):
    """Return how many instructions of the innermost loops store, and load, spilled registers.

    A loop ends with a jump to an earlier label; an innermost one contains no other loop.
    """
    labels, lines, last, loops = {}, code.splitlines(), -1, ""
    for number, line in enumerate(lines):
        if label := re.match(r"(\.L_x_\d+):", line):
            labels[label[1]] = number
        target = re.search(r"\bBRA\S*\s.*?(\.L_x_\d+)", line)
        if target and labels.get(target[1], -1) > last:
            loops += "\n".join(lines[labels[target[1]] : number])
            last = number
    return len(re.findall(r"\bSTL\b", loops)), len(re.findall(r"\bLDL\b", loops))


CASES = [
    (capability, dtype, width)
    for capability in SHARED_MEMORY
    for dtype in DTYPES
    for width in (64, 128, 256)
]
# Without `-m long`: what needs most memory, and halves.
SAMPLE = {((8, 9), "fp32", 256), ((8, 0), "bf16", 64)}


@pytest.mark.parametrize(
    ("capability", "dtype", "width"),
    [pytest.param(*case, marks=[] if case in SAMPLE else pytest.mark.long) for case in CASES],
)
def test_the_kernels_of_a_causal_map_do_not_spill(monkeypatch, tmp_path, capability, dtype, width):
    recorded = launches(monkeypatch, capability, DTYPES[dtype], width)
    assert set(recorded) == {"log_sum_exp", "map_pass"}
    for name, arguments in recorded.items():
        shared, stack, (stores, loads) = resources(tmp_path, name, arguments, capability)
        print(name, capability, dtype, width, "shared", shared, "stack", stack, stores, loads)
        assert shared <= SHARED_MEMORY[capability]
        # Hopper's loops with masks, a few tiles of each row, spill numbers that do not change.
        hopper = capability == (9, 0)
        assert stores <= 4 * hopper
        assert loads <= 4 * hopper
        assert stack <= 88 * hopper


@pytest.mark.parametrize(
    "kernel", ["log_sum_exp", pytest.param("map_pass", marks=pytest.mark.long)]
)
def test_a_variant_that_spills_is_detected(monkeypatch, tmp_path, kernel):
    """Tiles of float32 with all features at once need more registers than there are."""
    monkeypatch.setattr(gpu.Tiling, "of", classmethod(lambda cls, spec: cls(128, 64)))
    arguments = launches(monkeypatch, (9, 0), torch.float32, 128)[kernel]
    _, stack, (stores, loads) = resources(tmp_path, kernel, arguments, (9, 0))
    assert stack > 88
    assert stores > 4
    assert loads > 4


def variants(seed):
    """Return the arguments of `launches` that choose a variant of the kernels."""
    chance = random.Random(seed)
    return {
        "dtype": DTYPES[chance.choice(list(DTYPES))],
        "width": chance.choice([16, 40, 64, 80, 96, 128, 160, 256]),
        "tokens": chance.choice([1, 50, 999, 4096, 100_000]),
        "cells": chance.choice([1, 10, 90, 512, 10_000]),
        "marks": chance.random() < 0.5,
        "before": chance.choice([None, 0, 100]),
        "after": chance.choice([None, 0, 5]),
        "padded": chance.random() < 0.5,
        "cap": chance.choice([None, 50.0]),
    }


@pytest.mark.long
@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("capability", SHARED_MEMORY)
def test_every_variant_compiles_and_fits(monkeypatch, tmp_path, capability, seed):
    """Random variants: cells of all sizes, windows, padding, soft caps, widths, precisions."""
    for name, arguments in launches(monkeypatch, capability, **variants(seed)).items():
        shared, stack, _ = resources(tmp_path, name, arguments, capability)
        assert shared <= SHARED_MEMORY[capability]
        assert stack <= 1024  # an assembler that runs out of registers needs kilobytes
