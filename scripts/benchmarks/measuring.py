"""Ways of doing the same, alternating in one run: their times, their memory, and on what machine.

Another machine, or the same one an hour later, has other times; a ratio of two ways that took
turns holds.
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

console = Console(width=max(Console().width, 110))  # tables stay whole in a log, too
ENTRY = Path(__file__).parents[1] / "bench.py"
Ways = Mapping[str, Callable[[], object]]


def alternate(
    ways: Ways, rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Return the seconds of each way, that took turns `rounds` times.

    A round before these fills the caches; with 0 rounds it is the one that counts.
    """
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            start = clock()
            way()
            seconds = clock() - start
            if number or rounds == 0:
                times[name].append(seconds)
    return times


def process(command: Sequence[str]) -> Callable[[], object]:
    """Return a way that runs a command to its end."""
    return lambda: subprocess.run(command, check=True, capture_output=True)


def show(
    title: str,
    times: Mapping[str, Sequence[float]],
    *,
    against: str,
    megabytes: Mapping[str, float | None] | None = None,
) -> None:
    """Print medians, extremes, ratios and peak memory.

    megabytes : of each way, where memory was measured.
    """
    table = Table("", "median", "min – max", f"÷ {against}", title=title)
    if megabytes:
        table.add_column("peak MB more")
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
    """Print what ran, in which versions, and on what machine."""
    console.print(f"{versions(packages)}\n{machine()}", style="dim", highlight=False)


def versions(packages: Sequence[str]) -> str:
    """Return the version of Python and of each package that is there."""
    found = [f"Python {platform.python_version()}"]
    for name in packages:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"{name} not installed")
    return ", ".join(found)


def machine() -> str:
    """Return the processor, how many cores and threads of it, and the memory."""
    model = platform.processor() or platform.machine()
    told = Path("/proc/cpuinfo")
    if told.exists():
        names = [line for line in told.read_text().splitlines() if line.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    threads = os.environ.get("OMP_NUM_THREADS", "not set")
    return (
        f"{model} ({platform.machine()}), {os.cpu_count()} cores, {memory:.0f} GiB of memory, "
        f"OMP_NUM_THREADS {threads}"
    )


def grown(work: Callable[[], object]) -> float:
    """Return by how many MB this process grows at most while it works."""
    most, done = [resident()], threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            most.append(resident())

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        kept = work()
        most.append(resident())
        del kept
    finally:
        done.set()
        watching.join()
    return max(most) - most[0]


def resident() -> float:
    """Return how much memory this process holds, in MB (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def available() -> float:
    """Return how many bytes this machine could still hand out (Linux)."""
    told = Path("/proc/meminfo").read_text().split()
    return 1024.0 * int(told[told.index("MemAvailable:") + 1])


def peak(*arguments: str, seconds: float | None = None) -> float | None:
    """Return what `bench.py memory` says of one way, in a process of its own.

    None where it takes longer than `seconds` or fails; why is printed.
    """
    command = [sys.executable, str(ENTRY), "memory", *arguments]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        console.print(f"{' '.join(arguments)}: stopped after {seconds:.0f} s", style="red")
        return None
    if done.returncode:
        said = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        console.print(f"{' '.join(arguments)}: {said}", style="red", markup=False)
        return None
    return float(done.stdout.split()[-1])
