"""Stream one causal head with 64 features; compare with torch's fused attention.

One thread, CPU time; memory is the growth of a separate process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch.nn.functional import scaled_dot_product_attention

from attnviz.results.attention_record import MaskRule
from attnviz.streaming import ScoreSpec, attend
from benchmarks.measuring import alternate, console, grown, peak, show, show_setting

_FUSED = "fused attention"
_WITH_MEMORY = "summary", "summary and top 8"


def measure(tokens: Sequence[int], rounds: int) -> None:
    """Print the CPU seconds of each variant at each length, and the memory of the summaries."""
    torch.set_num_threads(1)
    for T in tokens:
        times = alternate(_variants(T), rounds, time.thread_time)
        megabytes = {variant: peak("stream", str(T), variant) for variant in _WITH_MEMORY}
        show(f"{T:,} tokens: CPU seconds", times, against=_FUSED, megabytes=megabytes)
        console.print(f"the full map takes {4e-6 * T * T:,.0f} MB\n", style="dim")
    show_setting("attnviz", "torch")


def memory(tokens: str, variant: str) -> float:
    """Return the memory growth while this process streams one head, in MB, without Q, K, V."""
    torch.set_num_threads(1)
    _variants(2048)[variant]()  # warm up: load everything that is loaded once, including numba
    return grown(_variants(int(tokens))[variant])


def _variants(T: int) -> dict[str, Callable[[], object]]:
    """Return the work to measure at one length."""
    torch.manual_seed(0)
    Q, K, V = torch.randn(3, 1, T, 64)
    spec = ScoreSpec(Q, K, 64**-0.5, MaskRule(after=0))
    return {
        _FUSED: partial(scaled_dot_product_attention, Q[None], K[None], V[None], is_causal=True),
        "summary": partial(attend, spec),
        "summary and top 8": partial(attend, spec, top=8),
    }
