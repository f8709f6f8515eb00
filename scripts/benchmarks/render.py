"""All heads of a model in one figure: 12 × 12 maps of 64 tokens, from the weights to the files.

Ours, one mosaic, beside a grid of axes, one for each head: with `seaborn.heatmap`, as one would
write it first, and with `imshow`. All have the same size and resolution. CPU time.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

import matplotlib as mpl

mpl.use("agg")

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.table import Table

import attnviz
from attnviz.analyses.maps.result import HeadMaps
from attnviz.results import AgreementReport, Provenance
from benchmarks.measuring import console, show, show_setting

_LAYERS, _HEADS = 12, 12
_WORDS = "the old station master watched as another crowded train left for the northern coast"
_SUFFIXES = "png", "svg", "pdf"
_OURS, _SEABORN, _IMSHOW = "head_grid", "144 × seaborn.heatmap", "144 × imshow"
Times = Mapping[tuple[str, str], list[float]]
Draw = Callable[[HeadMaps], Figure]


def measure(tokens: int, rounds: int, seaborn_rounds: int) -> None:
    """Print the seconds from the weights to each file, and the sizes of the files.

    The fast ways take turns before and after each turn of the slow one.
    """
    maps = made_up(tokens)
    fast: dict[str, Draw] = {_OURS: attnviz.plot.heads, _IMSHOW: in_axes(_imshow)}
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _take_turns(fast, maps, folder, defaultdict(list))  # loads fonts and modules
        for number in range(max(1, seaborn_rounds)):
            if number < seaborn_rounds:
                _take_turns({_SEABORN: in_axes(_seaborn)}, maps, folder, times)
            for _ in range(rounds):
                _take_turns(fast, maps, folder, times)
        sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    _report(times, sizes, tokens, against=_SEABORN if seaborn_rounds else _IMSHOW)


def made_up(tokens: int) -> HeadMaps:
    """Return random weights of every head, that say of themselves that nothing was proven.

    As in a model, most heads look at a sink or near some distance, each more or less closely.
    """
    torch.manual_seed(0)
    scores = torch.randn(_LAYERS, _HEADS, tokens, tokens)
    place = torch.arange(tokens)
    to_key = place - place[:, None]
    distance, closely, sink = torch.rand(3, _LAYERS, _HEADS, 1, 1)
    scores = scores - 2 * closely**2 * (to_key - (6 * distance - 3).round()).abs()
    scores[..., :1] += 6 * sink**2
    words = tuple((_WORDS.split() * tokens)[:tokens])
    made = {"weights_sha256": "", "dtype": "float32", "device": "cpu", "versions": {}}
    return HeadMaps(
        weights=scores.softmax(-1),
        rows=words,
        columns=words,
        stack="encoder",
        layers=(*range(_LAYERS),),
        notes=(),
        agreement=AgreementReport(checks=(), not_compared=(), unproven=(), **made),
        provenance=Provenance(model="random weights", text=" ".join(words), pair=None, **made),
    )


def in_axes(draw: Callable[[NDArray, Axes], object]) -> Draw:
    """Return what draws every head into axes of its own, on a page as large as ours."""

    def drawn(maps: HeadMaps) -> Figure:
        plt.rcdefaults()
        layers, heads = maps.weights.shape[:2]
        figure, axes = plt.subplots(layers, heads, figsize=(7.2, 7.6))
        for ax, each in zip(axes.flat, maps.weights.flatten(0, 1).numpy(), strict=True):
            draw(each, ax)
        return figure

    return drawn


def _seaborn(weights: NDArray, ax: Axes) -> None:
    import seaborn

    seaborn.heatmap(weights, vmin=0, vmax=1, cbar=False, ax=ax)


def _imshow(weights: NDArray, ax: Axes) -> None:
    ax.imshow(weights, vmin=0, vmax=1)


def _take_turns(
    ways: Mapping[str, Draw],
    maps: HeadMaps,
    folder: Path,
    times: dict[tuple[str, str], list[float]],
) -> None:
    """Draw each way once and write it in every format; a format's time is that of both."""
    for name, draw in ways.items():
        start = time.process_time()
        figure = draw(maps)
        drawing = time.process_time() - start
        times[name, "drawn"].append(drawing)
        for suffix in _SUFFIXES:
            start = time.process_time()
            _write(figure, folder / f"{name}.{suffix}", ours=name == _OURS)
            times[name, suffix].append(drawing + time.process_time() - start)
        plt.close(figure)


def _write(figure: Figure, path: Path, *, ours: bool) -> None:
    if ours:
        attnviz.plot.save(figure, path)
    else:
        figure.savefig(path, dpi=300)


def _report(times: Times, sizes: Mapping[str, int], tokens: int, against: str) -> None:
    """Print one table for each format, and one of what was written."""
    for part in ("drawn", *_SUFFIXES):
        found = {name: seconds for (name, of), seconds in times.items() if of == part}
        what = "in memory" if part == "drawn" else f"to {part.upper()}"
        title = f"{_LAYERS} × {_HEADS} heads of {tokens} tokens {what}: CPU seconds"
        show(title, found, against=against)
        ratio = statistics.median(found[against]) / statistics.median(found[_OURS])
        console.print(f"{_OURS} is {ratio:.0f} × as fast as {against}\n", highlight=False)
    table = Table("", *(suffix.upper() for suffix in _SUFFIXES), title="bytes of the file")
    for name in dict.fromkeys(name for name, _ in times):
        table.add_row(name, *(f"{sizes[f'{name}.{suffix}']:,}" for suffix in _SUFFIXES))
    console.print(table)
    show_setting("attnviz", "torch", "matplotlib", "seaborn", "numpy", "pillow")
