"""Numbers of all heads of a model as small maps, layers down and heads across, side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from torch import Tensor

from attnviz.analyses.survey.result import HeadName
from attnviz.figures.layout import (
    Page,
    Ruler,
    colour_bar,
    line_height,
)
from attnviz.figures.style import (
    ACCENT,
    FAINT,
    MUTED,
    SMALL_SIZE,
    value_colours,
    weight_colours,
)

_GAP = 0.18  # inches
_NUMBERS = 0.12  # inches left of a panel
_PANEL = 1.35  # inches of a panel at least
_CELL = 0.2  # inches of a head at most
_NOTHING = 1e-9  # what is no more is 0, and its scale ends at 1
SURE = 0.01  # a p-value below which a difference is
TITLES = {
    "distance": "mean distance, tokens",
    "self": "weight for itself",
    "previous": "for the previous token",
    "next": "for the next token",
    "first": "for the first token",
    "separators": "for special tokens",
    "same token": "for the same token elsewhere",
    "induction": "for what followed it before",
    "punctuation": "for periods and commas",
    "entropy": "entropy, nats",
    "most read": "share of the token read most",
}


@dataclass(frozen=True, eq=False)
class Panel:
    """One number of each of K heads, (K,), and of which it is not sure.

    signed : whether it may be more or less than 0.
    """

    title: str
    values: Tensor
    unsure: Tensor
    signed: bool = False


def head_panels(
    page: Page,
    ruler: Ruler,
    heads: Sequence[HeadName],
    panels: Sequence[Panel],
    place: tuple[float, float],
    top: float,
) -> float:
    """Draw panels in lines from `top` down, and return where they end, in inches.

    What is not sure has a cross, or no colour where it is a change.
    """
    room = place[1] - place[0]
    columns = max(1, int((room + _GAP) / (_PANEL + _GAP)))
    across = (room - (columns - 1) * _GAP) / columns - _NUMBERS
    count, most = _grid(heads)
    high = max(min(across / most, _CELL) * count, 0.4)
    line = line_height(SMALL_SIZE)
    step = line + high + 0.46
    for number, panel in enumerate(panels):
        x = place[0] + number % columns * (across + _NUMBERS + _GAP)
        y = top + number // columns * step
        said = ruler.clip(panel.title, across, SMALL_SIZE)
        page.write(x + _NUMBERS, y, [said], points=SMALL_SIZE, weight="bold")
        ax = page.axes(x + _NUMBERS, y + line + 0.02, across, high)
        drawn = _draw(ax, heads, panel)
        bar = page.axes(
            x + _NUMBERS + 0.5 * across - 0.16, y + line + high + 0.16, 0.5 * across, 0.05
        )
        colour_bar(drawn, bar, "", horizontal=True)
        _, end = drawn.get_clim()
        ticks = [0.0, float(end or 0.0)]
        ticks = [-ticks[1], *ticks] if panel.signed else ticks
        bar.set_xticks(ticks, [f"{tick:g}".replace("-", "\N{MINUS SIGN}") for tick in ticks])
    return top + math.ceil(len(panels) / columns) * step


def _grid(heads: Sequence[HeadName]) -> tuple[int, int]:
    """Return how many layers there are, of all stacks, and heads at most."""
    return len({(each.stack, each.layer) for each in heads}), 1 + max(each.head for each in heads)


def _on_grid(heads: Sequence[HeadName], values: Tensor) -> Tensor:
    """Return values (K,) as (layers, heads), NaN where a layer has fewer heads."""
    layers = list(dict.fromkeys((each.stack, each.layer) for each in heads))
    found = torch.full(_grid(heads), torch.nan, dtype=torch.float64)
    for each, value in zip(heads, values.tolist(), strict=True):
        found[layers.index((each.stack, each.layer)), each.head] = value
    return found


def _draw(ax: Axes, heads: Sequence[HeadName], panel: Panel) -> ScalarMappable:
    values = _on_grid(heads, panel.values)
    unsure = (_on_grid(heads, panel.unsure.double()) == 1) & ~values.isnan()
    most = float(np.nanmax(values.abs().numpy(), initial=0.0))
    most = _rounded_up(most) if most > _NOTHING else 1.0
    if panel.signed:  # what surely is no change has no colour
        values = values.masked_fill(unsure, torch.nan)
    drawn = ax.imshow(
        values.numpy(),
        value_colours() if panel.signed else weight_colours(),
        aspect="auto",
        origin="upper",
        interpolation="nearest",
        norm=Normalize(-most if panel.signed else 0.0, most),
    )
    if not panel.signed:
        rows, columns = np.nonzero(unsure.numpy())
        ax.scatter(columns, rows, s=4, marker="x", color=ACCENT, linewidth=0.5)
    count, most_heads = values.shape
    ax.set_xticks(range(0, most_heads, max(1, most_heads // 4)))
    ax.set_yticks(range(0, count, max(1, -(-count // 4))))
    ax.tick_params(length=0, labelsize=SMALL_SIZE, colors=MUTED, pad=1)
    ax.spines[:].set(visible=True, color=FAINT, linewidth=0.4)
    return drawn


def _rounded_up(number: float) -> float:
    """Return the next number with one digit.

    >>> _rounded_up(0.0031), _rounded_up(17.0), _rounded_up(0.4)
    (0.004, 20.0, 0.4)
    """
    unit = 10.0 ** math.floor(math.log10(number))
    return float(f"{math.ceil(number / unit - 1e-9) * unit:.6g}")
