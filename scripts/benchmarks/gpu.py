"""Exact maps of one causal layer on CUDA, compared with the fused attention of its output.

The variants alternate over several rounds and are timed by CUDA events; medians are printed. The
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
GOALS = {"map pass": 0.6, "capture in all": 1.5}  # relative to the default attention


@dataclass(frozen=True)
class Layer:
    """The shape of an attention layer; the defaults are those of Llama 3.1 8B."""

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
) -> dict[str, float]:
    """Print a table of times, memory and errors, and return the figures.

    Exits with one line if they cannot be measured.

    tilings : also compare tile sizes of the map pass.
    """
    import torch

    from attnviz.streaming import gpu

    if not gpu.available():
        raise SystemExit(
            "This benchmark needs Triton and a CUDA device of capability 8.0 or higher."
        )
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.manual_seed(0)
    with torch.no_grad():
        layer = Layer(tokens, heads, key_heads, width)
        half = LayerBenchmark(replace(layer, tokens=tokens // 2), cells).memory()
        measured = LayerBenchmark(layer, cells)
        times = alternate(measured.variants(), rounds)
        figures = {f"{name}, ms": statistics.median(values) for name, values in times.items()}
        title = f"{tokens:,} tokens, {heads} heads over {key_heads}, {width} features, bf16, causal"
        show(f"{title}, {cells:,}² map: milliseconds", times, "default attention")
        if tilings:
            show("map pass: milliseconds", alternate(measured.tilings(), rounds), "128 × 64")
        figures["memory added, MB"] = added = measured.memory()
        console.print(
            f"memory: {added:,.0f} MB added, {half:,.0f} with half the tokens; "
            f"both maps {8e-6 * heads * cells**2:,.0f}, all weights {2e-6 * heads * tokens**2:,.0f}"
        )
        errors = measured.errors()
        figures |= {f"error of {name}": error for name, error in errors.items()}
        listed = ", ".join(f"{name} {error:.1e}" for name, error in errors.items())
        console.print(f"largest difference from float64: {listed}")
    versions = f"torch {torch.__version__}, triton {version('triton')}"
    device = f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"
    console.print(f"{versions}; {device}", style="dim")
    return figures


class LayerBenchmark:
    """One layer of random vectors, and the operations measured on it."""

    def __init__(self, layer: Layer, cells: int) -> None:
        import torch

        from attnviz.results import MaskRule
        from attnviz.streaming import ScoreSpec, gpu

        self.layer, self.cells = layer, cells
        Q, K, V = (
            torch.randn(count, layer.tokens, layer.width, device="cuda", dtype=torch.bfloat16)
            for count in (layer.heads, layer.key_heads, layer.key_heads)
        )
        self.scoring, self.value = ScoreSpec(Q, K, layer.width**-0.5, MaskRule(after=0)), V
        self.lse = gpu.log_sum_exp(self.scoring)

    def variants(self) -> dict[str, Callable[[], Any]]:
        """Return the timed operations: torch's attention, and the steps of a capture."""
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention

        from attnviz.streaming import gpu

        scoring, Q, K, V = self.scoring, self.scoring.query, self.scoring.key, self.value

        def attention() -> Any:
            return scaled_dot_product_attention(
                Q[None], K[None], V[None], is_causal=True, enable_gqa=True, scale=scoring.scale
            )

        def by(backend: SDPBackend) -> Callable[[], Any]:
            def run_backend() -> Any:
                with sdpa_kernel(backend):
                    return attention()

            return run_backend

        def capture() -> None:
            attention()
            self.pass_over()

        return {
            "default attention": attention,
            "of which flash": by(SDPBackend.FLASH_ATTENTION),
            "of which cuDNN": by(SDPBackend.CUDNN_ATTENTION),
            "log-sum-exp by our kernel": lambda: gpu.log_sum_exp(scoring),
            "map pass": self.pass_over,
            "capture in all": capture,
        }

    def pass_over(self, tiling: Any = None, lse: Any = None) -> Any:
        """Reduce the map, from a known log-sum-exp."""
        from attnviz.streaming import gpu
        from attnviz.streaming.reference import MapBuffers

        buffers = MapBuffers(self.scoring, self.cells, 0, None, None)
        gpu.reduce_map(self.scoring, buffers, self.lse if lse is None else lse, tiling)
        return buffers

    def tilings(self) -> dict[str, Callable[[], Any]]:
        """Return the map pass with several tile sizes."""
        from attnviz.streaming.gpu import Tiling

        tilings = {
            "128 × 64": Tiling(),
            "128 × 64, 2 stages": Tiling(stages=2),
            "128 × 64, 4 stages": Tiling(stages=4),
            "64 × 64": Tiling(rows=64, programs=3),
            "128 × 128, 8 warps": Tiling(columns=128, warps=8, programs=1),
            "256 × 64, 8 warps": Tiling(rows=256, warps=8, programs=1),
        }
        return {name: partial(self.pass_over, tiling) for name, tiling in tilings.items()}

    def memory(self) -> float:
        """Return the memory growth of the map pass in MB, including its results."""
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

        sums, T = self.pass_over(), self.layer.tokens
        cell = sums.cell
        shared, largest = self.layer.heads // self.layer.key_heads, dict[str, float]()
        j = torch.arange(T, device="cuda")
        for head in (0, self.layer.heads - 1):
            for row in (0, T // cell // 2):  # rows of the pooled map
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
                        sums.entropy[head, rows],
                        torch.special.entr(P).sum(-1) / log(2),
                    ),
                    "distance ÷ tokens": (
                        sums.distance[head, rows] / T,
                        (P * (i - j)).sum(-1) / T,
                    ),
                    "mean, of a row's sum": (
                        sums.mean[head, row] / len(P),
                        cells.sum((0, 2)) / len(P),
                    ),
                    "largest": (sums.largest[head, row], cells.amax((0, 2))),
                }
                for name, (ours, expected) in pairs.items():
                    error = float((ours.double() - expected).abs().max())
                    largest[name] = max(largest.get(name, 0), error)
        return largest


def alternate(variants: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Return the milliseconds of each variant, in turn, after one warm-up round that compiles."""
    import torch

    times: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(rounds + 1):
        for name, variant in variants.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            try:
                start.record()
                variant()
                end.record()
                end.synchronize()
            except RuntimeError as error:  # not in this build, or out of memory on this device
                if number == 0:
                    console.print(f"{name}: {str(error).splitlines()[0]}", style="yellow")
                continue
            if number:
                times[name].append(start.elapsed_time(end))
    return {name: values for name, values in times.items() if values}


def show(title: str, times: dict[str, list[float]], against: str) -> None:
    """Print medians, extremes, ratios and whether the goals are met."""
    table = Table("", "median", "min – max", f"÷ {against}", "goal", title=title)
    base = statistics.median(times[against])
    for name, values in times.items():
        median, goal = statistics.median(values), GOALS.get(name)
        reached = "" if goal is None else f"≤ {goal} {'✓' if median / base <= goal else '✗'}"
        extremes = f"{min(values):.4g} – {max(values):.4g}"
        table.add_row(name, f"{median:.4g}", extremes, f"{median / base:.2f}", reached)
    console.print(table)
