"""Measure what each analysis of a pretrained model takes: time beside a forward pass, and memory.

Each is measured in a fresh process, which also loads the model and times its plain forward pass on
the same text. Peak memory is that of the whole process, with torch, the model and its weights.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.table import Table

import attnviz
from attnviz.app import run
from benchmarks.measuring import ENTRY, console, peak_resident, show_setting

TEXT = "The keys to the old cabinet that stood near the window were lost, so the lawyer left early."
WORD = "keys"
SURVEYED = 100  # texts
LIMIT = 3.0  # GB
_WORDS = ["pilot", "judge", "nurse", "baker", "guard", "child", "clerk", "queen", "diver", "monk"]
_ENDS = ("left the house", "read the letter", "closed the door", "saw the train", "lost the key")


def texts(count: int = SURVEYED) -> list[str]:
    """Return different short sentences."""
    pairs = [(one, other) for one in _WORDS for other in _WORDS]
    return [
        f"After the {one} met the {other}, the {one} {_ENDS[n % len(_ENDS)]}."
        for n, (one, other) in enumerate(pairs[:count])
    ]


def measure(name: str, rounds: int) -> None:
    """Print a table of all analyses, each from its own process."""
    table = Table("", "seconds", "÷ forward", "peak GB", title=f"{name}, float32, CPU")
    over = []
    for work in WORKS:
        command = [sys.executable, str(ENTRY), "memory", "models", work, name, str(rounds)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            console.print(f"{work}: {done.stderr.strip()[-300:]}", style="red", markup=False)
            continue
        one = json.loads(done.stdout.splitlines()[-1])
        ratio = one["seconds"] / one["forward"]
        table.add_row(work, f"{one['seconds']:.2f}", f"{ratio:.1f}", f"{one['gigabytes']:.2f}")
        over += [work] if one["gigabytes"] > LIMIT else []
    console.print(table)
    console.print(f"more than {LIMIT:.0f} GB: {', '.join(over) or 'none'}")
    show_setting("attnviz", "torch", "transformers")


def memory(work: str, name: str, rounds: str) -> str:
    """Return as JSON the median seconds of an analysis and of a forward pass, and the peak in GB.

    The first run of each warms up, and does not count. Its memory does.
    """
    model = attnviz.load(None if name == "minilm" else name, dtype="float32", device="cpu")
    assert model.tokenizer is not None
    inputs = model.tokenizer(TEXT, return_tensors="pt")

    def forward() -> None:
        with torch.no_grad():
            model.module(**inputs)

    seconds: dict[str, list[float]] = {"seconds": [], "forward": []}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(int(rounds) + 1):
            for key, once in (
                ("seconds", lambda: WORKS[work](model, name, Path(folder))),
                ("forward", forward),
            ):
                start = time.perf_counter()
                once()
                if number:
                    seconds[key].append(time.perf_counter() - start)
    medians = {key: statistics.median(values) for key, values in seconds.items()}
    return json.dumps({**medians, "gigabytes": peak_resident() / 1000})


def _heatmap(model: attnviz.Model, name: str, folder: Path) -> None:
    """Run the command, which loads the model again."""
    options = [] if name == "minilm" else ["--model", name]
    drawn = ["-o", str(folder / "map.png"), "--force", "--device", "cpu", "--dtype", "float32"]
    with contextlib.redirect_stdout(sys.stderr):
        if run(["heatmap", TEXT, *options, *drawn]):
            raise RuntimeError("attnviz heatmap failed")


WORKS: dict[str, Callable[[attnviz.Model, str, Path], object]] = {
    "attend": lambda model, *_: model.attend(TEXT),
    "attend, all positions": lambda model, *_: model.attend(TEXT, positions="all"),
    "attnviz heatmap": _heatmap,
    "shift": lambda model, *_: attnviz.shift(WORD, TEXT, model=model),
    "attend and view": lambda model, _, folder: attnviz.view(model.attend(TEXT)).save(
        folder / "page.html", force=True
    ),
    f"survey of {SURVEYED} texts": lambda model, *_: attnviz.survey(texts(), model=model),
}
