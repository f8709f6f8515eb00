"""Pool the maps of one Mamba-2 layer of a long text; compare with the model alone.

One thread, CPU time; memory is the peak growth of a separate process over the loaded model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from transformers import Mamba2Config, Mamba2Model

from attnviz.capture.streamed import capture_pooled, linear_calls
from attnviz.results import Axis
from benchmarks.measuring import alternate, console, grown, peak, show, show_setting

_ALONE, _MAPS = "model alone", "pooled maps"
_CELLS = 512  # rows and columns of the maps
_MOST_FACTOR, _MOST_MEGABYTES = 1.3, 64  # of the model alone, and beside it


def measure(tokens: Sequence[int], rounds: int) -> None:
    """Print the CPU seconds and the memory of each variant at each length."""
    torch.set_num_threads(1)
    for T in tokens:
        times = alternate(_variants(T), rounds, time.thread_time)
        megabytes = {variant: peak("linear", str(T), variant) for variant in (_ALONE, _MAPS)}
        show(f"{T:,} tokens: CPU seconds", times, against=_ALONE, megabytes=megabytes)
        alone, maps = megabytes.values()
        if alone and maps:
            allowed = _MOST_FACTOR * alone + _MOST_MEGABYTES
            console.print(f"{maps:,.0f} MB of {allowed:,.0f} MB allowed", style="dim")
        console.print(f"the full maps take {4e-6 * 8 * T * T:,.0f} MB\n", style="dim")
    show_setting("attnviz", "torch", "transformers")


def memory(tokens: str, variant: str) -> float:
    """Return the peak memory growth of one variant in this process, in MB."""
    torch.set_num_threads(1)
    _variants(128)[variant]()  # warm up: load everything that is loaded once
    return grown(_variants(int(tokens))[variant])


def _variants(T: int) -> dict[str, Callable[[], object]]:
    """Return the work to measure at one length."""
    torch.manual_seed(0)
    config = Mamba2Config(
        vocab_size=1000, hidden_size=256, num_hidden_layers=1, num_heads=8, head_dim=64,
        state_size=16, n_groups=1, chunk_size=64,
    )  # fmt: skip
    model = Mamba2Model(config).eval()
    inputs = {"input_ids": torch.randint(1000, (1, T))}

    def pooled_maps() -> object:
        linear = linear_calls(model, inputs)
        assert linear is not None
        return capture_pooled(model, inputs, Axis.numbered(T), linear.calls, -(-T // _CELLS))

    alone = torch.no_grad()(partial(model, **inputs, use_cache=False))
    return {_ALONE: alone, _MAPS: pooled_maps}
