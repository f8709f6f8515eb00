"""One causal layer on CUDA: its exact maps, beside the fused attention that makes its output.

Every way runs in turn, round after round, timed by events of the device; medians are printed. The
numbers are compared with float64 in the same run.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from math import log
from typing import Any

from rich.console import Console
from rich.table import Table

console = Console()
GOALS = {"map pass": 0.6, "capture in all": 1.5}  # of the default attention's time


@dataclass(frozen=True)
class Layer:
    """The shape of an attention: Llama 3.1 8B's by default."""

    tokens: int
    heads: int = 32
    key_heads: int = 8
    width: int = 128


def run(
    tokens: int = 131_072,
    *,
    heads: int = 32,
    key_heads: int = 8,
    width: int = 128,
    cells: int = 1024,
    rounds: int = 5,
    tilings: bool = False,
) -> None:
    """Print a table of times, memory and errors; refuse in one line where it cannot be measured.

    tilings : also compare sizes of the tiles of the map pass.
    """
    import torch

    from attnviz.streaming import gpu

    if not gpu.available():
        raise SystemExit(
            "Expected a CUDA device of capability 8.0 or more, and Triton; run this where both are."
        )
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)
    with torch.no_grad():
        layer = Layer(tokens, heads, key_heads, width)
        half = Measured(replace(layer, tokens=tokens // 2), cells).memory()
        measured = Measured(layer, cells)
        times = alternate(measured.ways(), rounds)
        title = f"{tokens:,} tokens, {heads} heads over {key_heads}, {width} features, bf16, causal"
        show(f"{title}, {cells:,}² map: milliseconds", times, "default attention")
        if tilings:
            show("map pass: milliseconds", alternate(measured.tilings(), rounds), "128 × 64")
        console.print(
            f"memory: {measured.memory():,.0f} MB more, {half:,.0f} with half the tokens; "
            f"both maps {8e-6 * heads * cells**2:,.0f}, all weights {2e-6 * heads * tokens**2:,.0f}"
        )
        wrong = ", ".join(f"{name} {value:.1e}" for name, value in measured.errors().items())
        console.print(f"largest difference from float64: {wrong}")
    names = ("attnviz", "torch", "triton")
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    device = f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"
    console.print(f"{versions}; {device}", style="dim")


class Measured:
    """One layer of random vectors, and what is done with it."""

    def __init__(self, layer: Layer, cells: int) -> None:
        import torch

        from attnviz.results import MaskRule
        from attnviz.streaming import ScoreSpec
        from attnviz.streaming.fused import fused_on_gpu

        self.layer, self.cells = layer, cells
        Q, K, V = (
            torch.randn(count, layer.tokens, layer.width, device="cuda", dtype=torch.bfloat16)
            for count in (layer.heads, layer.key_heads, layer.key_heads)
        )
        self.scoring, self.value = ScoreSpec(Q, K, layer.width**-0.5, MaskRule(after=0)), V
        self.lse = fused_on_gpu(Q, K, V, causal=True, scale=self.scoring.scale)[1]

    def ways(self) -> dict[str, Callable[[], Any]]:
        """Return what is timed: torch's attention as it comes, and what a capture does."""
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention

        from attnviz.streaming import gpu
        from attnviz.streaming.fused import fused_on_gpu

        scoring, Q, K, V = self.scoring, self.scoring.query, self.scoring.key, self.value

        def attention() -> Any:
            return scaled_dot_product_attention(
                Q[None], K[None], V[None], is_causal=True, enable_gqa=True, scale=scoring.scale
            )

        def by(backend: SDPBackend) -> Callable[[], Any]:
            def run_it() -> Any:
                with sdpa_kernel(backend):
                    return attention()

            return run_it

        def telling() -> Any:
            return fused_on_gpu(Q, K, V, causal=True, scale=scoring.scale)

        def capture() -> None:
            self.reduce(telling()[1])

        return {
            "default attention": attention,
            "of which flash": by(SDPBackend.FLASH_ATTENTION),
            "of which cuDNN": by(SDPBackend.CUDNN_ATTENTION),
            "attention that tells its log-sum-exp": telling,
            "log-sum-exp by a kernel": lambda: gpu.log_sum_exp(scoring),
            "map pass": self.pass_over,
            "map pass, itself, previous, first": lambda: self.reduce(self.lse),
            "capture in all": capture,
        }

    def pass_over(self, tiling: Any = None) -> Any:
        """Make the pooled maps and the sums over rows and columns."""
        from attnviz.streaming import gpu

        cell = -(-self.layer.tokens // self.cells)
        return gpu.map_sums(self.scoring, cell=cell, lse=self.lse, tiling=tiling)

    def reduce(self, lse: Any) -> Any:
        """Make all that is kept of the map."""
        from attnviz.streaming import gpu
        from attnviz.streaming.buffers import MapBuffers

        kept = MapBuffers(self.scoring, self.cells, 0, None, None)
        kept.lse = lse
        gpu.reduce_map(self.scoring, kept)
        return kept

    def tilings(self) -> dict[str, Callable[[], Any]]:
        """Return the map pass with tiles of some sizes."""
        from attnviz.streaming.gpu import Tiling

        some = {
            "128 × 64": Tiling(),
            "128 × 64, 2 stages": Tiling(stages=2),
            "128 × 64, 4 stages": Tiling(stages=4),
            "64 × 64": Tiling(rows=64, programs=3),
            "128 × 128, 8 warps": Tiling(columns=128, warps=8, programs=1),
            "256 × 64, 8 warps": Tiling(rows=256, warps=8, programs=1),
        }
        return {name: partial(self.pass_over, tiling) for name, tiling in some.items()}

    def memory(self) -> float:
        """Return by how many MB the map pass grows beyond its input, its results among them."""
        import torch

        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        self.pass_over()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 1e6

    def errors(self) -> dict[str, float]:
        """Return the largest differences from float64 in some rows of the first and last head."""
        import torch

        found, T, cell = self.pass_over(), self.layer.tokens, -(-self.layer.tokens // self.cells)
        shared, largest = self.layer.heads // self.layer.key_heads, dict[str, float]()
        j = torch.arange(T, device="cuda")
        for head in (0, self.layer.heads - 1):
            for row in (0, T // cell // 2):  # of the pooled map
                rows = slice(row * cell, min(T, (row + 1) * cell))
                i = j[rows, None]
                Q, K = self.scoring.query[head, rows], self.scoring.key[head // shared]
                scores = Q.double() @ K.double().mT * self.scoring.scale
                scores.masked_fill_(j > i, -torch.inf)
                P = scores.softmax(-1)
                cells = torch.nn.functional.pad(P, (0, -T % cell)).unflatten(1, (-1, cell))
                pairs = {
                    "log-sum-exp": (self.lse[head, rows], scores.logsumexp(-1)),
                    "entropy, bits": (
                        found.entropy[head, rows],
                        torch.special.entr(P).sum(-1) / log(2),
                    ),
                    "distance ÷ tokens": (
                        found.distance[head, rows] / T,
                        (P * (i - j)).sum(-1) / T,
                    ),
                    "mean, of a row's sum": (
                        found.mean[head, row] / len(P),
                        cells.sum((0, 2)) / len(P),
                    ),
                    "largest": (found.largest[head, row], cells.amax((0, 2))),
                }
                for name, (ours, right) in pairs.items():
                    wrong = float((ours.double() - right).abs().max())
                    largest[name] = max(largest.get(name, 0), wrong)
        return largest


def alternate(ways: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Return milliseconds of each way, in turn, after one round that compiles and warms up."""
    import torch

    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            try:
                start.record()
                way()
                end.record()
                end.synchronize()
            except RuntimeError as error:  # not in this build, or too much for this device
                if number == 0:
                    console.print(f"{name}: {str(error).splitlines()[0]}", style="yellow")
                continue
            if number:
                times[name].append(start.elapsed_time(end))
    return {name: values for name, values in times.items() if values}


def show(title: str, times: dict[str, list[float]], against: str) -> None:
    """Print medians, extremes and ratios, and whether goals are reached."""
    table = Table("", "median", "min – max", f"÷ {against}", "goal", title=title)
    base = statistics.median(times[against])
    for name, values in times.items():
        median, goal = statistics.median(values), GOALS.get(name)
        reached = "" if goal is None else f"≤ {goal} {'✓' if median / base <= goal else '✗'}"
        extremes = f"{min(values):.4g} – {max(values):.4g}"
        table.add_row(name, f"{median:.4g}", extremes, f"{median / base:.2f}", reached)
    console.print(table)
