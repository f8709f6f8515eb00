"""Draw all heads of a model in one figure: 12 × 12 maps of 64 tokens, from weights to files.

Our single mosaic is compared with a grid of axes, one per head: the straightforward version with
`seaborn.heatmap`, and one with `imshow`. All have the same size and resolution. seaborn takes
minutes for a whole grid, so it draws one layer, and its seconds are multiplied. CPU time.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
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
_OURS, _SEABORN, _IMSHOW = "head_grid", "12 × seaborn.heatmap, × 12", "144 × imshow"
_REPEATS = {_SEABORN: _LAYERS}  # how often what is drawn stands for what is reported
Times = Mapping[tuple[str, str], list[float]]
Draw = Callable[[HeadMaps], Figure]


def measure(tokens: int, rounds: int, seaborn_rounds: int) -> None:
    """Print the seconds from the weights to each file, and the file sizes.

    The fast variants are measured before and after each round of the slow one.
    """
    maps = random_maps(tokens)
    fast: dict[str, Draw] = {_OURS: attnviz.plot.heads, _IMSHOW: draw_in_axes(_imshow)}
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _time_formats(fast, maps, folder, defaultdict(list))  # warm up: load fonts and modules
        for number in range(max(1, seaborn_rounds)):
            if number < seaborn_rounds:
                one_layer = replace(maps, weights=maps.weights[:1], layers=(0,))
                _time_formats({_SEABORN: draw_in_axes(_seaborn)}, one_layer, folder, times)
            for _ in range(rounds):
                _time_formats(fast, maps, folder, times)
        sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    _report(times, sizes, tokens, against=_SEABORN if seaborn_rounds else _IMSHOW)


def random_maps(tokens: int) -> HeadMaps:
    """Return random weights of every head, marked as unverified.

    As in a model, most heads attend to a sink or near a certain distance, more or less sharply.
    """
    torch.manual_seed(0)
    scores = torch.randn(_LAYERS, _HEADS, tokens, tokens)
    place = torch.arange(tokens)
    to_key = place - place[:, None]
    distance, sharpness, sink = torch.rand(3, _LAYERS, _HEADS, 1, 1)
    scores = scores - 2 * sharpness**2 * (to_key - (6 * distance - 3).round()).abs()
    scores[..., :1] += 6 * sink**2
    words = tuple((_WORDS.split() * tokens)[:tokens])
    settings = {"weights_sha256": "", "dtype": "float32", "device": "cpu", "versions": {}}
    return HeadMaps(
        weights=scores.softmax(-1),
        rows=words,
        columns=words,
        stack="encoder",
        layers=(*range(_LAYERS),),
        notes=(),
        agreement=AgreementReport(checks=(), not_compared=(), unproven=(), **settings),
        provenance=Provenance(model="random weights", text=" ".join(words), pair=None, **settings),
    )


def draw_in_axes(draw: Callable[[NDArray, Axes], object]) -> Draw:
    """Return a function that draws every head in separate axes, on a page of our size."""

    def drawn(maps: HeadMaps) -> Figure:
        plt.rcdefaults()
        layers, heads = maps.weights.shape[:2]
        size = 7.2, 7.6 * layers / _LAYERS
        figure, axes = plt.subplots(layers, heads, figsize=size)
        for ax, weights in zip(axes.flat, maps.weights.flatten(0, 1).numpy(), strict=True):
            draw(weights, ax)
        return figure

    return drawn


def _seaborn(weights: NDArray, ax: Axes) -> None:
    import seaborn

    seaborn.heatmap(weights, vmin=0, vmax=1, cbar=False, ax=ax)


def _imshow(weights: NDArray, ax: Axes) -> None:
    ax.imshow(weights, vmin=0, vmax=1)


def _time_formats(
    variants: Mapping[str, Draw],
    maps: HeadMaps,
    folder: Path,
    times: dict[tuple[str, str], list[float]],
) -> None:
    """Draw each variant once and write it in every format; each time includes the drawing."""
    for name, draw in variants.items():
        repeats = _REPEATS.get(name, 1)
        start = time.process_time()
        figure = draw(maps)
        drawing = time.process_time() - start
        times[name, "drawn"].append(drawing * repeats)
        for suffix in _SUFFIXES:
            start = time.process_time()
            _write(figure, folder / f"{name}.{suffix}", ours=name == _OURS)
            times[name, suffix].append((drawing + time.process_time() - start) * repeats)
        plt.close(figure)


def _write(figure: Figure, path: Path, *, ours: bool) -> None:
    if ours:
        attnviz.plot.save(figure, path)
    else:
        figure.savefig(path, dpi=300)


def _report(times: Times, sizes: Mapping[str, int], tokens: int, against: str) -> None:
    """Print one table per format, and one of the file sizes."""
    for stage in ("drawn", *_SUFFIXES):
        seconds = {name: values for (name, step), values in times.items() if step == stage}
        target = "in memory" if stage == "drawn" else f"to {stage.upper()}"
        title = f"{_LAYERS} × {_HEADS} heads of {tokens} tokens {target}: CPU seconds"
        show(title, seconds, against=against)
        ratio = statistics.median(seconds[against]) / statistics.median(seconds[_OURS])
        console.print(f"{_OURS} is {ratio:.0f} × as fast as {against}\n", highlight=False)
    table = Table("", *(suffix.upper() for suffix in _SUFFIXES), title="bytes of the file")
    for name in dict.fromkeys(name for name, _ in times):
        of_all = (sizes[f"{name}.{suffix}"] * _REPEATS.get(name, 1) for suffix in _SUFFIXES)
        table.add_row(name, *(f"{size:,}" for size in of_all))
    console.print(table)
    show_setting("attnviz", "torch", "matplotlib", "seaborn", "numpy", "pillow")
