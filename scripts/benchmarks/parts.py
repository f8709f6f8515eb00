"""Where the time of two ways goes, operator by operator: what a ratio of them is made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import torch
from rich.table import Table
from torch.profiler import ProfilerActivity, profile

from benchmarks.measuring import console

_SHOWN = 12  # operators


def show_parts(title: str, ways: Mapping[str, Callable[[], object]]) -> None:
    """Print the time of each operator in two ways on one thread, and what it adds to the first.

    The rest is what Python and torch need between operators.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        (one, plain), (other, ours) = ((name, _operators(way)) for name, way in ways.items())
    finally:
        torch.set_num_threads(threads)
    whole = sum(plain.values())
    more = Counter({name: ours[name] - plain[name] for name in {*plain, *ours}})
    table = Table("operator", f"{one}: ms", f"{other}: ms", f"more, of {one}", title=title)
    shown = sorted(more, key=lambda name: -abs(more[name]))[:_SHOWN]
    rest = {*more} - {*shown}
    rows = {name: (plain[name], ours[name]) for name in shown}
    rows["all others"] = tuple(sum(each[name] for name in rest) for each in (plain, ours))
    rows["together"] = whole, sum(ours.values())
    for name, (before, after) in rows.items():
        table.add_row(name, f"{before:.1f}", f"{after:.1f}", f"{(after - before) / whole:+.1%}")
    console.print(table)


def _operators(work: Callable[[], object]) -> Counter[str]:
    """Return the milliseconds of each operator, and of what is none."""
    work()
    with profile(activities=[ProfilerActivity.CPU]) as seen, torch.profiler.record_function("all"):
        work()
    found = Counter({each.key: each.self_cpu_time_total / 1e3 for each in seen.key_averages()})
    found["between operators"] = found.pop("all")
    return found
