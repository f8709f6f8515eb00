"""One causal head of 64 features, streamed, beside the fused attention that tells its lse.

One thread, CPU time; memory is what a process of its own grows by.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from attnviz.results.attention_record import MaskRule
from attnviz.streaming import (
    ScoreSpec,
    crop,
    log_sum_exp,
    summarise,
)
from benchmarks.measuring import alternate, console, grown, peak, show, show_setting

_FUSED = "fused attention"
_WITH_MEMORY = "summary", "summary and top 8"


def measure(tokens: Sequence[int], rounds: int) -> None:
    """Print the CPU seconds of each way at each length, and the memory of the summaries."""
    torch.set_num_threads(1)
    for T in tokens:
        times = alternate(_ways(T), rounds, time.thread_time)
        megabytes = {way: peak("stream", str(T), way) for way in _WITH_MEMORY}
        show(f"{T:,} tokens: CPU seconds", times, against=_FUSED, megabytes=megabytes)
        console.print(f"the whole map has {4e-6 * T * T:,.0f} MB\n", style="dim")
    show_setting("attnviz", "torch")


def memory(tokens: str, way: str) -> float:
    """Return by how many MB this process grows while it streams one head, Q, K and V apart."""
    torch.set_num_threads(1)
    _ways(2048)[way]()  # whatever is loaded once, numba too
    return grown(_ways(int(tokens))[way])


def _ways(T: int) -> dict[str, Callable[[], object]]:
    """Return what to do at one length; the fused attention leaves its lse to those after it."""
    torch.manual_seed(0)
    Q, K, V = torch.randn(3, 1, 1, T, 64)
    scoring = ScoreSpec(Q[0], K[0], 64**-0.5, MaskRule(after=0))
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    told: list[Tensor] = []

    def attention() -> None:
        told[:] = [flash(Q, K, V, 0.0, True)[1][0]]

    def from_lse(work: Callable[..., object]) -> None:
        work(lse=told[0] if told else log_sum_exp(scoring))

    part = {"rows": slice(T - 512, T), "columns": slice(0, 1024)}
    followers: dict[str, Callable[..., object]] = {
        "summary": partial(summarise, scoring),
        "summary and top 8": partial(summarise, scoring, top=8),
        "512 × 1,024 crop": partial(crop, scoring, **part),
    }
    return {_FUSED: attention} | {name: partial(from_lse, work) for name, work in followers.items()}
