"""Measure time and memory of alternatives that alternate in one run.

Absolute times vary with the machine and its load; the ratio of two alternatives that alternate in
the same run is stable.
"""

from __future__ import annotations

import os
import platform
import resource
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich.console import Console
from rich.table import Table

console = Console(width=max(Console().width, 110))  # wide enough for tables in a log
ENTRY = Path(__file__).parents[1] / "bench.py"
Variants = Mapping[str, Callable[[], object]]


def alternate(
    variants: Variants, rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Return the seconds of each variant over `rounds` alternating rounds.

    A warm-up round comes first and is discarded; with 0 rounds it is the measurement.
    """
    times: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(rounds + 1):
        for name, variant in variants.items():
            start = clock()
            variant()
            seconds = clock() - start
            if number or rounds == 0:
                times[name].append(seconds)
    return times


def process(command: Sequence[str]) -> Callable[[], object]:
    """Return a function that runs a command to completion."""
    return lambda: subprocess.run(command, check=True, capture_output=True)


def show(
    title: str,
    times: Mapping[str, Sequence[float]],
    *,
    against: str,
    megabytes: Mapping[str, float | None] | None = None,
) -> None:
    """Print medians, extremes, ratios and peak memory.

    megabytes : peak memory of each variant, if it was measured.
    """
    table = Table("", "median", "min – max", f"÷ {against}", title=title)
    if megabytes:
        table.add_column("added peak MB")
    base = statistics.median(times[against]) if times.get(against) else float("nan")
    for name in dict.fromkeys([*times, *(megabytes or {})]):
        values = times.get(name)
        cells = ["–"] * 3
        if values:
            median = statistics.median(values)
            extremes = f"{min(values):.3g} – {max(values):.3g}"
            cells = [f"{median:.3g}", extremes, f"{median / base:.3g}"]
        if megabytes:
            grown = megabytes.get(name)
            cells.append("–" if grown is None else f"{grown:,.0f}")
        table.add_row(name, *cells)
    console.print(table)


def show_setting(*packages: str) -> None:
    """Print the versions and the machine."""
    console.print(f"{versions(packages)}\n{machine()}", style="dim", highlight=False)


def versions(packages: Sequence[str]) -> str:
    """Return the versions of Python and of the installed packages."""
    versions = [f"Python {platform.python_version()}"]
    for name in packages:
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            versions.append(f"{name} not installed")
    return ", ".join(versions)


def machine() -> str:
    """Return the processor, its cores, the memory and the thread setting."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    threads = os.environ.get("OMP_NUM_THREADS", "not set")
    return (
        f"{model} ({platform.machine()}), {os.cpu_count()} cores, {memory:.0f} GiB of memory, "
        f"OMP_NUM_THREADS {threads}"
    )


def grown(work: Callable[[], object]) -> float:
    """Return the peak memory growth of this process during a call, in MB."""
    samples, done = [resident()], threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            samples.append(resident())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        result = work()
        samples.append(resident())
        del result
    finally:
        done.set()
        thread.join()
    return max(samples) - samples[0]


def resident() -> float:
    """Return the resident memory of this process in MB (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def peak_resident() -> float:
    """Return the peak of the resident memory of this process in MB (Linux).

    `getrusage` also counts the process that started this one: a fork has the memory of its parent.
    """
    status = Path("/proc/self/status").read_text().split()
    return float(status[status.index("VmHWM:") + 1]) * 1024 / 1e6


def available() -> float:
    """Return the available memory of this machine in bytes (Linux)."""
    meminfo = Path("/proc/meminfo").read_text().split()
    return 1024.0 * int(meminfo[meminfo.index("MemAvailable:") + 1])


def peak(*arguments: str, seconds: float | None = None) -> float | None:
    """Run `bench.py memory` in a separate process and return its result in MB.

    Return None and print the reason if it takes longer than `seconds` or fails.
    """
    command = [sys.executable, str(ENTRY), "memory", *arguments]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        console.print(f"{' '.join(arguments)}: stopped after {seconds:.0f} s", style="red")
        return None
    if done.returncode:
        message = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        console.print(f"{' '.join(arguments)}: {message}", style="red", markup=False)
        return None
    return float(done.stdout.split()[-1])
