"""The summaries of the GPU kernels equal those of the full map, in float64.

The kernels run on a CUDA device if there is one. Otherwise, with Triton installed, they run in its
interpreter, tile by tile on the CPU, in a separate process, because Triton decides on import. The
torch operators that return a log-sum-exp need a device.
"""

import importlib.util
import os
import random
import re
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import full_maps
import pytest
import torch
from torch.testing import assert_close

from attnviz import AttnvizWarning
from attnviz.results import MaskRule
from attnviz.streaming import ScoreSpec, gpu, reference
from attnviz.streaming import triton_kernels as kernels
from attnviz.streaming.gpu import Tiling
from attnviz.streaming.reference import MapBuffers

TRITON = find_spec("triton") is not None
INTERPRETED = TRITON and os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
HALVES = [torch.bfloat16, torch.float16]
HARMLESS = "ignore:Conversion of an array with ndim > 0:DeprecationWarning"  # Triton before 3.7
somewhere = [] if INTERPRETED else [pytest.mark.gpu]
for_real = pytest.mark.skipif(
    not TRITON or INTERPRETED, reason="needs Triton, and not its interpreter"
)

if INTERPRETED:
    import triton_interpreter  # noqa: F401

TILINGS = [Tiling(32, 16), Tiling(16, 32, programs=3, features=16), Tiling(64, 64, programs=1)]


def scoring_of(shape, rule, *, dtype=torch.float32, padded=False, spread=1.5, **terms):
    """Return an attention of this shape, on the device."""
    m, offset, beyond, H, G, d = shape
    n = m + offset + beyond
    keys = (torch.rand(n) < 0.7).to(DEVICE) if padded else None
    Q, K = (
        (torch.randn(h, length, d) * spread).to(DEVICE, dtype) for h, length in ((H, m), (G, n))
    )
    return ScoreSpec(Q, K, d**-0.5, MaskRule(offset=offset, keys=keys, **rule), **terms)


def on_cpu(scoring):
    """Return an attention whose tensors are on the CPU."""
    rule, sinks = scoring.visible, scoring.sinks
    return replace(
        scoring,
        query=scoring.query.cpu(),
        key=scoring.key.cpu(),
        visible=replace(rule, keys=None if rule.keys is None else rule.keys.cpu()),
        sinks=None if sinks is None else sinks.cpu(),
    )


def whole(scoring):
    """Return the weights and the log-sum-exp by the formula, in float64."""
    return full_maps.whole(on_cpu(scoring)), full_maps.log_sum_exp(on_cpu(scoring))


def statistics(P, cell, offset, marks):
    """Return the summary of a full map."""
    H, m, n = P.shape
    gap = (torch.arange(m)[:, None] + offset - torch.arange(n)).abs()
    M, N = -(-m // cell), -(-n // cell)
    filled = torch.full((H, M * cell, N * cell), torch.nan, dtype=torch.float64)
    filled[:, :m, :n] = P
    cells = filled.view(H, M, cell, N, cell).permute(0, 1, 3, 2, 4).flatten(3)
    i = torch.arange(m) + offset
    near = []
    for keys in (i, i - 1, torch.zeros_like(i)):
        inside = (keys >= 0) & (keys < n)
        index = keys.clamp(0, n - 1)[None, :, None].expand(H, -1, 1)
        near.append(P.gather(2, index)[..., 0] * inside)
    return {
        "near": torch.stack(near, 1),
        "mean": cells.nansum(-1),
        "largest": cells.nan_to_num(0).amax(-1),
        "received": P.sum(1),
        "entropy": -(P * P.clamp(min=1e-300).log2()).sum(-1),
        "distance": (P * gap).sum(-1),
        "marked": P[..., marks].sum(-1),
    }


def check(sums, P, cell, offset, marks, near):
    """Compare the results of the kernels with those of the full map."""
    farthest = max(P.shape[1] + abs(offset), P.shape[2])
    for name, values in statistics(P, cell, offset, marks).items():
        assert_close(
            getattr(sums, name).cpu().double(), values,
            atol=near * (farthest if name == "distance" else 1), rtol=near,
            msg=lambda message, name=name: f"{name}: {message}",
        )  # fmt: skip


def compare(scoring, cell, tiling=None, near=2e-5):
    """Run the kernels with a computed log-sum-exp, and compare the results with the full map."""
    P, expected = whole(scoring)
    marks = torch.rand(scoring.shape[2]) < 0.4
    sums = reduced(scoring, cell, marks.to(DEVICE), tiling)
    assert_close(sums.lse.cpu().double(), expected, atol=near, rtol=near)
    check(sums, P, cell, scoring.visible.offset, marks, near)


def reduced(scoring, cell, marks=None, tiling=None):
    """Run the kernels on a map with cells of this size."""
    buffers = MapBuffers(scoring, -(-max(scoring.shape[1:]) // cell), 0, marks, None)
    buffers.cell = cell
    pooled = [-(-length // cell) for length in scoring.shape[1:]]
    buffers.mean, buffers.largest = torch.zeros(2, len(scoring.query), *pooled, device=DEVICE)
    gpu.reduce_map(scoring, buffers, tiling=tiling)
    return buffers


class TestLaunches:
    """The results do not depend on the division into launches and programs."""

    pytestmark = somewhere

    def test_few_heads_and_rows_at_a_time(self, monkeypatch):
        """One key head per launch, and incomplete cells of a few rows of tiles at a time."""
        monkeypatch.setattr(gpu, "_KEYS", 1)
        for cell, size, rows in ((4, 8000, 20), (32, 1, 40)):
            monkeypatch.setattr(gpu, "_CELLS", size)
            torch.manual_seed(cell)
            compare(scoring_of((rows, 3, 2, 4, 2, 16), {"after": 0}), cell, Tiling(16, 16))

    def test_every_run_gives_the_same_numbers(self):
        torch.manual_seed(2)
        scoring = scoring_of((200, 0, 0, 2, 1, 32), {"after": 0}, dtype=HALVES[0])
        once, twice = (vars(reduced(scoring, 8)) for _ in range(2))
        for name, values in once.items():
            if isinstance(values, torch.Tensor):
                assert torch.equal(values, twice[name]), name

    def test_queries_that_are_slices_of_a_projection(self):
        """Strides as left by a model, and non-contiguous vectors."""
        torch.manual_seed(3)
        scoring = scoring_of((20, 0, 0, 4, 2, 16), {"after": 0})
        Q, K = (
            each.transpose(0, 1).contiguous().transpose(0, 1)
            for each in (scoring.query, scoring.key)
        )
        compare(replace(scoring, query=Q, key=K), 16, Tiling(16, 16))
        compare(replace(scoring, query=Q.mT.contiguous().mT), 16, Tiling(16, 16))

    def test_scores_of_hundreds(self):
        torch.manual_seed(4)
        compare(scoring_of((40, 0, 0, 2, 1, 16), {"after": 0}, spread=12), 8, Tiling(32, 16), 2e-4)


# What stands in the source of the kernels, and the fault in its place.
USED = "return begin, clear, cloudy, end"
FAULTS = {
    "strides of a row and a feature swapped": (
        "index[:, None].to(tl.int64) * row + feature[None, :]",
        "index[:, None].to(tl.int64) + feature[None, :] * row",
    ),
    "strides of the heads swapped": ("k += head // shared * k_head", "k += head // shared * k_row"),
    "keys of another group": ("head // shared * k_head", "head % shared * k_head"),
    "last tile left out": (USED, "return begin, clear, cloudy, end - 1"),
    "first tile left out": (USED, "return begin + 1, clear + 1, cloudy, end"),
    "one tile too many without a mask": (
        USED,
        "return begin, clear, min(cloudy + 1, end), end",
    ),
    "mask off by one": ("(gap < -after)", "(gap <= -after)"),
    "cells of the next tile": ("+ tile * CELLS + tl.arange", "+ (tile + 1) * CELLS + tl.arange"),
    "earlier rows forgotten": ("received_sum + by_key", "by_key"),
}  # fmt: skip


class TestPlantedFaults:
    """As many queries and keys as features, so that no fault reads outside of a tensor.

    One program reads all rows of a head, as a program reads many rows of a long map.
    """

    pytestmark = somewhere

    @pytest.fixture
    def scoring(self, monkeypatch):
        monkeypatch.setattr("attnviz.streaming.gpu._multiprocessors", lambda device: 1)
        torch.manual_seed(6)
        return scoring_of((32, 0, 0, 4, 2, 32), {"after": 0})

    def test_the_kernels_as_they_are(self, scoring):
        compare(scoring, 16, Tiling(16, 16, programs=1))

    @pytest.mark.parametrize("fault", FAULTS)
    def test_a_fault_in_a_kernel_is_detected(self, fault, scoring, monkeypatch, tmp_path):
        text, faulty = Path(kernels.__file__).read_text(), tmp_path / "faulty_kernels.py"
        right, wrong = FAULTS[fault]
        assert right in text
        faulty.write_text(text.replace(right, wrong))
        module_spec = importlib.util.spec_from_file_location("faulty_kernels", faulty)
        module = importlib.util.module_from_spec(module_spec)
        module_spec.loader.exec_module(module)
        monkeypatch.setattr("attnviz.streaming.triton_kernels", module)
        with pytest.raises(AssertionError):
            compare(scoring, 16, Tiling(16, 16, programs=1))


@pytest.fixture
def on_cuda(monkeypatch):
    """Let tensors without data pass for those of a CUDA device."""
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    monkeypatch.setattr(gpu, "available", lambda device=None: True)
    with torch.device("meta"):
        yield


def test_inputs_that_the_kernels_support(on_cuda):
    Q, long = torch.empty(2, 5, 8), torch.empty(2, 5, 300)
    plain = ScoreSpec(Q, Q, 0.5)
    window = MaskRule(before=3, after=0, keys=torch.empty(5, dtype=torch.bool))
    for terms in ({}, {"visible": window}, {"soft_cap": 50.0}, {"sinks": torch.empty(2)}):
        assert gpu.supports(replace(plain, **terms))
    bias = torch.empty(1, 5, 5)
    for terms in ({"bias": bias}, {"capped_bias": bias}, {"query": Q.double()}):
        assert not gpu.supports(replace(plain, **terms))
    assert not gpu.supports(ScoreSpec(long, long, 0.5))


def test_inputs_that_the_kernels_do_not_support():
    Q = torch.randn(2, 5, 8)
    assert not gpu.supports(ScoreSpec(Q, Q, 0.5))  # not on CUDA
    assert gpu.available() == (torch.cuda.is_available() and TRITON)


def test_cells_on_a_gpu_are_whole_tiles(on_cuda):
    sizes = {(90, 90): 1, (300, 90): 4, (8640, 90): 128, (131_072, 90): 1536, (131_072, 1024): 128}
    for (length, cells), size in sizes.items():
        Q = torch.empty(1, length, 8)
        buffers = MapBuffers(ScoreSpec(Q, Q, 1.0), cells, 0, None, None)
        assert buffers.cell == size
        assert buffers.mean.shape[1] == -(-length // size) <= cells


@pytest.mark.parametrize("name", ["log_sum_exp", "map_pass"])
class TestKernelsThatDoNotRun:
    """Torch computes the same numbers, whatever a compiler or a launch raises."""

    @pytest.fixture
    def scoring(self, monkeypatch):
        monkeypatch.setattr(sys.modules[__name__], "DEVICE", "cpu")
        monkeypatch.setattr(gpu, "_refused", set())
        monkeypatch.setattr(gpu, "_KEYS", 1)  # one launch for each key head
        torch.manual_seed(0)
        sinks = torch.randn(4)
        return scoring_of((50, 7, 0, 4, 2, 16), {"after": 0}, soft_cap=20.0, sinks=sinks)

    def break_kernels(self, monkeypatch, name, error):
        """Let the second launch of this kernel raise an error; the first returns nonsense."""
        calls = []

        class Broken:
            def __init__(self, kernel):
                self.kernel = kernel

            def __getitem__(self, grid):
                return self.launch

            def launch(self, **arguments):
                calls.append(self.kernel)
                for result in ("lse", "received", "sums", "entropy", "distance", "marked"):
                    if result in arguments and (self.kernel == "map_pass" or result == "lse"):
                        arguments[result].fill_(7)
                if self.kernel == name and calls.count(name) == 2:
                    raise error

        for kernel in ("log_sum_exp", "map_pass"):
            monkeypatch.setattr(kernels, kernel, Broken(kernel))
        return calls

    def test_the_numbers_are_those_of_the_full_map(self, monkeypatch, scoring, name):
        class OutOfResources(Exception):  # noqa: N818
            """As in Triton: not a RuntimeError."""

        calls = self.break_kernels(monkeypatch, name, OutOfResources("out of resource"))
        marks = torch.arange(57) % 3 == 0
        for turn in range(2):
            with nullcontext() if turn else pytest.warns(AttnvizWarning, match="OutOfResources"):
                lse = gpu.log_sum_exp(scoring) if name == "log_sum_exp" else None
                sums = reduced(scoring, 8, marks) if name == "map_pass" else None
            P, expected = whole(scoring)
            if name == "map_pass":
                assert_close(sums.lse.double(), expected, atol=2e-5, rtol=2e-5)
                check(sums, P, 8, 7, marks, 2e-5)
            else:
                assert_close(lse.double(), expected, atol=2e-5, rtol=2e-5)
        assert calls.count(name) == 2  # not tried again

    @pytest.mark.parametrize("error", [torch.OutOfMemoryError, torch.AcceleratorError])
    def test_a_device_that_fails_is_an_error(self, monkeypatch, scoring, name, error):
        self.break_kernels(monkeypatch, name, error("CUDA error"))
        with pytest.raises(error):
            reduced(scoring, 8)
        assert not gpu._refused


def test_a_device_is_asked_for_itself(monkeypatch):
    """Not the current one, and no device of ROCm, whose version of CUDA is None."""
    old, new = torch.device("cuda:0"), torch.device("cuda:1")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        torch.cuda, "get_device_capability", lambda device=None: (9, 0) if device == new else (7, 5)
    )
    monkeypatch.setattr(gpu, "find_spec", lambda name: name)
    assert gpu.available(new)
    assert not gpu.available(old)
    assert not gpu.available()
    monkeypatch.setattr(torch.version, "cuda", None)
    assert not gpu.available(new)


SAMPLE = "(TestLaunches and not every_run) or TestPlantedFaults or come_from_the_kernels"
SAMPLE += " or fused_attention_runs_once or RandomMaps"


@for_real
@pytest.mark.slow
@pytest.mark.parametrize(
    ("tests", "marks"),
    [
        (SAMPLE, "not long"),
        pytest.param("not (RandomMaps and 1000)", "", marks=pytest.mark.long),
    ],
)
def test_in_the_interpreter(tests, marks):
    """Run the tests that need no device on the CPU: a sample of them, or with `-m long` all."""
    import numpy
    import triton

    if triton.__version__ < "3.7" and numpy.__version__ >= "2.4":
        pytest.skip("Triton's interpreter before 3.7 does not go with numpy 2.4")
    env = os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    files = [__file__, str(Path(__file__).with_name("test_simulated_cuda.py"))]
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-x", "-W", HARMLESS]
    command += ["-k", tests, "-m", marks, *files]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
    assert re.search(r"\d\d passed", done.stdout), done.stdout[-400:]


# What an error is relative to, where all values are smaller. A distance is a sum of distances from
# the first row of a tile, up to 128 tokens.
UNITS = {"lse": 1, "entropy": 1, "distance": 8}


def random_case(seed, most):
    """Return a random attention of so many queries at most, the size of its cells, and a tiling."""
    torch.manual_seed(seed)
    chance = random.Random(seed)
    m = round(most ** chance.random())
    beyond = chance.choice([0, 0, 0, chance.randint(0, 60)])
    offset = chance.choice([0, 0, chance.randint(0, 60), -chance.randint(0, m - 1)])
    shared, G = (chance.choice([1, 1, 2, 4]), chance.choice([1, 2])) if m < 200 else (1, 1)
    width = chance.choice([16, 40, 64, 64, 80, 96, 128, 160, 256][: 4 if most < 100 else None])
    window = {"after": chance.randint(-2, 20), "before": chance.choice([0, 1, 7, 64, 300])}
    rule = chance.choice([{}, {"after": 0}, {"after": 0}, window, window | {"after": 0}])
    scoring = scoring_of(
        (m, offset, beyond, G * shared, G, width), rule,
        dtype=chance.choice([torch.bfloat16, torch.float16, torch.float32]),
        spread=chance.choice([0.1, 1.0, 2.0]),
        soft_cap=chance.choice([None, None, None, 5.0, 50.0]),
        sinks=chance.choice(
            [None, None, *(torch.randn(size).to(DEVICE) for size in (G * shared, (G * shared, m)))]
        ),
    )  # fmt: skip
    n = scoring.shape[2]
    hidden = chance.choice([None, None, 0.3, 1.0, (n - 1) / n])  # the part of the keys
    if hidden is not None:
        keys = (torch.rand(n) >= hidden).to(DEVICE)
        scoring = replace(scoring, visible=replace(scoring.visible, keys=keys))
    cell = chance.choice([1, 2, 4, 8, 16, 32, 64, 128, 256, 384])
    return scoring, cell, chance.choice([None, None, None, *(t for t in TILINGS)])


@pytest.mark.parametrize(
    ("block", "most"),
    [(0, 40), *(pytest.param(block, 1000, marks=pytest.mark.long) for block in range(100))],
)
class TestRandomMaps:
    """Each block is 20 maps; the largest error of every number is printed."""

    pytestmark = somewhere

    def test_every_number(self, block, most):
        largest = {}
        for seed in range(20 * block, 20 * block + 20):
            scoring, cell, tiling = random_case(seed, most)
            P, lse = whole(scoring)
            marks = torch.rand(P.shape[2]) < 0.4
            sums = reduced(scoring, cell, marks.to(DEVICE), tiling)
            empty = lse == -torch.inf
            assert torch.equal(sums.lse.cpu() == -torch.inf, empty), seed
            expected = statistics(P, cell, scoring.visible.offset, marks)
            expected["lse"] = lse.masked_fill(empty, 0)
            sums.lse = sums.lse.masked_fill(empty.to(DEVICE), 0)
            for name, values in expected.items():
                error = (getattr(sums, name).cpu().double() - values).abs().max()
                error = float(error / max(values.abs().max(), UNITS.get(name, 1e-6)))
                assert error < 2e-5, f"{name} of case {seed}: {error}"
                largest[name] = max(largest.get(name, 0), error)
        print(block, {name: f"{error:.1e}" for name, error in largest.items()})


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [*HALVES, torch.float32], ids=str)
@pytest.mark.parametrize("length", [(2048, 0), (3001, 77)], ids=str)
@pytest.mark.parametrize("cell", [4, 64, 128, 256])
def test_tiles_of_full_size(length, cell, dtype):
    """Full-size tiles, which are too slow in the interpreter."""
    torch.manual_seed(0)
    for width in (64, 80, 128):
        scoring = scoring_of((*length, 0, 4, 2, width), {"after": 0}, dtype=dtype)
        compare(scoring, cell, near=1e-4 if dtype == torch.float32 else 2e-5)


@pytest.mark.gpu
def test_a_long_map_matches_the_reference():
    """32,768 tokens, compared with torch in float32 on the same device."""
    torch.manual_seed(0)
    scoring = scoring_of((32768, 0, 0, 8, 2, 128), {"after": 0}, dtype=torch.bfloat16)
    summaries = []
    for engine in (reference, gpu):
        buffers = MapBuffers(scoring, 256, 0, torch.arange(32768, device=DEVICE) % 7 == 0, None)
        engine.reduce_map(scoring, buffers)
        summaries.append(buffers.summary(torch.zeros(32768, dtype=bool, device=DEVICE)))
    expected, found = summaries
    for name, values in vars(found).items():
        assert_close(values, getattr(expected, name), atol=1e-4, rtol=1e-3)
