"""Break down the time of two variants by operator, to explain their ratio."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import torch
from rich.table import Table
from torch.profiler import ProfilerActivity, profile

from benchmarks.measuring import console

_SHOWN = 12  # number of operators


def show_operators(title: str, variants: Mapping[str, Callable[[], object]]) -> None:
    """Print the single-threaded time of each operator in two variants, and the difference.

    The remainder is the time that Python and torch spend between operators.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        (one, plain), (other, ours) = (
            (name, _operators(variant)) for name, variant in variants.items()
        )
    finally:
        torch.set_num_threads(threads)
    whole = sum(plain.values())
    more = Counter({name: ours[name] - plain[name] for name in {*plain, *ours}})
    table = Table("operator", f"{one}: ms", f"{other}: ms", f"difference ÷ {one}", title=title)
    shown = sorted(more, key=lambda name: -abs(more[name]))[:_SHOWN]
    rest = {*more} - {*shown}
    rows = {name: (plain[name], ours[name]) for name in shown}
    rows["all others"] = tuple(sum(times[name] for name in rest) for times in (plain, ours))
    rows["total"] = whole, sum(ours.values())
    for name, (before, after) in rows.items():
        table.add_row(name, f"{before:.1f}", f"{after:.1f}", f"{(after - before) / whole:+.1%}")
    console.print(table)


def _operators(work: Callable[[], object]) -> Counter[str]:
    """Return the milliseconds of each operator, and the time between operators."""
    work()
    with (
        profile(activities=[ProfilerActivity.CPU]) as profiler,
        torch.profiler.record_function("all"),
    ):
        work()
    milliseconds = Counter(
        {event.key: event.self_cpu_time_total / 1e3 for event in profiler.key_averages()}
    )
    milliseconds["between operators"] = milliseconds.pop("all")
    return milliseconds
