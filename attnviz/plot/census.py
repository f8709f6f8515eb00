"""What heads do over a corpus: each statistic as a map of all heads, and which are alike."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from attnviz.captions import literal
from attnviz.plot import caption
from attnviz.plot.layout import Page, Ruler, colour_bar, line_height
from attnviz.plot.style import (
    ACCENT,
    CYCLE,
    FAINT,
    FULL_WIDTH,
    INK,
    MM,
    MUTED,
    SMALL_SIZE,
    TEXT_SIZE,
    style,
    weight_colours,
)
from attnviz.records import Census

_MARGIN, _GAP = 0.06, 0.18  # inches
_NUMBERS = 0.12  # inches left of a panel
_PANEL = 1.35  # inches of a panel at least
_CELL = 0.2  # inches of a head at most
_TALL = 3.0  # inches of the plane
_SURE = 0.01
_MARKERS = "oDs^vPX*"
_TITLES = {
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


def census(result: Census, *, width: float = FULL_WIDTH) -> Figure:
    """Draw each statistic as a map of all heads, and the heads in a plane by how alike they are.

    Parameters
    ----------
    result : from `survey`.
    width : of the figure, in mm: 89 is one column of a journal, 183 two.
    """
    with style([result.provenance.model, *result.statistics]):
        page, ruler = Page(width * MM), Ruler()
        place = _MARGIN, page.width - _MARGIN
        title = (
            f"What {len(result.heads)} heads of {literal(result.provenance.model)} do, "
            f"on {result.texts:,} texts"
        )
        top = page.title(place[0], _MARGIN, title, place[1] - place[0]) + 0.06
        top = _maps(page, ruler, result, place, top)
        top, plane = _plane(page, result, place, top)
        end = caption.write_caption(page, place, top + 0.1, _said(result), result.agreement)
        figure = page.finish(end + _MARGIN)
        _label(plane, result)
        return figure


def _maps(
    page: Page, ruler: Ruler, result: Census, place: tuple[float, float], top: float
) -> float:
    """Draw the statistics in lines of panels; return where they end."""
    room = place[1] - place[0]
    columns = max(1, int((room + _GAP) / (_PANEL + _GAP)))
    across = (room - (columns - 1) * _GAP) / columns - _NUMBERS
    rows, heads = _grid(result)
    cell = min(across / heads, _CELL)
    high = max(cell * rows, 0.4)
    line = line_height(SMALL_SIZE)
    step = line + high + 0.46
    for number, name in enumerate(result.statistics):
        x = place[0] + number % columns * (across + _NUMBERS + _GAP)
        y = top + number // columns * step
        said = ruler.clip(_TITLES.get(name, name), across, SMALL_SIZE)
        page.write(x + _NUMBERS, y, [said], points=SMALL_SIZE, weight="bold")
        ax = page.axes(x + _NUMBERS, y + line + 0.02, across, high)
        drawn = _map(ax, result, name)
        bar = page.axes(x + _NUMBERS + 0.6 * across, y + line + high + 0.16, 0.4 * across, 0.05)
        colour_bar(drawn, bar, "", horizontal=True)
    return top + math.ceil(len(result.statistics) / columns) * step


def _grid(result: Census) -> tuple[int, int]:
    """Return how many layers there are, of all stacks, and heads at most."""
    layers = {(each.stack, each.layer) for each in result.heads}
    return len(layers), 1 + max(each.head for each in result.heads)


def _on_grid(result: Census, values: Tensor) -> Tensor:
    """Return values (K,) as (layers, heads), NaN where a layer has fewer heads."""
    layers = list(dict.fromkeys((each.stack, each.layer) for each in result.heads))
    found = torch.full(_grid(result), torch.nan, dtype=torch.float64)
    for each, value in zip(result.heads, values.tolist(), strict=True):
        found[layers.index((each.stack, each.layer)), each.head] = value
    return found


def _map(ax: Axes, result: Census, name: str) -> ScalarMappable:
    """Draw one statistic of all heads, with a cross where it is not surely more than chance."""
    at = result.of(name)
    values = _on_grid(result, result.mean[:, at])
    unsure = _on_grid(result, (_p_values(result, at) >= _SURE).double())
    top = float(np.nanmax(values.numpy()))
    drawn = ax.imshow(
        values.numpy(),
        weight_colours(),
        aspect="auto",
        interpolation="nearest",
        norm=Normalize(0.0, max(top, 1e-12)),
    )
    rows, columns = np.nonzero(unsure.numpy() == 1)
    ax.scatter(columns, rows, s=4, marker="x", color=ACCENT, linewidth=0.5)
    count, heads = values.shape
    ax.set_xticks(range(0, heads, max(1, heads // 4)))
    ax.set_yticks(range(0, count, max(1, -(-count // 4))))
    ax.tick_params(length=0, labelsize=SMALL_SIZE, colors=MUTED, pad=1)
    ax.spines[:].set(visible=True, color=FAINT, linewidth=0.4)
    return drawn


def _p_values(result: Census, at: int) -> Tensor:
    """Return the p-values of a statistic: against even weights, else against shuffled tokens."""
    even = result.p_even[:, at]
    return torch.where(result.even[:, at].isnan(), result.p_shuffled[:, at], even)


def _plane(
    page: Page, result: Census, place: tuple[float, float], top: float
) -> tuple[float, Axes]:
    """Draw the heads in the plane that keeps their distances best; return where it ends."""
    room = place[1] - place[0]
    said = "Heads that read alike stand together"
    top = page.write(place[0], top, [said], points=TEXT_SIZE, weight="bold") + 0.03
    key = min(1.7, 0.35 * room)
    ax = page.axes(place[0], top, room - key, _TALL)
    places = _scaled(result.distances)
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set(visible=True, color=MUTED, linewidth=0.4)
    roles = sorted({role for role in result.roles if role})
    y = top
    for number, role in enumerate([*roles, ""]):
        mine = np.array([each == role for each in result.roles])
        colour = CYCLE[number % len(CYCLE)] if role else FAINT
        marker = _MARKERS[number % len(_MARKERS)] if role else "o"
        look: dict[str, Any] = {
            "s": 16,
            "marker": marker,
            "color": colour,
            "linewidth": 0.3,
            "edgecolor": INK,
        }
        ax.scatter(places[mine, 0], places[mine, 1], zorder=2 if role else 1, **look)
        if mine.any():
            dot = page.axes(place[1] - key + 0.1, y, 0.12, line_height(SMALL_SIZE))
            dot.axis("off")
            dot.scatter([0], [0], **look)
            named = f"{role or 'not named'} ({mine.sum()})"
            y = page.write(place[1] - key + 0.26, y, [named], points=SMALL_SIZE) + 0.03
    ax.set_aspect("equal", adjustable="datalim")
    return top + _TALL, ax


def _scaled(distances: Tensor) -> NDArray[np.float64]:
    """Return places (K, 2) whose distances are those given as nearly as a plane allows.

    Classical scaling (Torgerson 1952).
    """
    squared = distances.double() ** 2
    centred = squared - squared.mean(0) - squared.mean(1, keepdim=True) + squared.mean()
    values, vectors = torch.linalg.eigh(-centred / 2)
    places: NDArray[np.float64] = (
        (vectors[:, -2:] * values[-2:].clamp(min=0).sqrt()).flip(1).numpy()
    )
    return places


def _label(ax: Axes, result: Census) -> None:
    """Name heads in the plane where there is room: those with a role first."""
    import textalloc

    places = _scaled(result.distances)
    named = [n for n, role in enumerate(result.roles) if role and not role.startswith("rests")]
    if not named:
        return
    textalloc.allocate(
        ax,
        places[named, 0],
        places[named, 1],
        [str(result.heads[n]) for n in named],
        x_scatter=places[:, 0],
        y_scatter=places[:, 1],
        textsize=SMALL_SIZE,
        textcolor=INK,
        linecolor=FAINT,
        linewidth=0.5,
        draw_all=False,
    )


def _said(result: Census) -> list[str]:
    named = [
        f"{name} {role}"
        for name, role in zip(result.heads, result.roles, strict=True)
        if role and not role.startswith("rests")
    ]
    return [
        f"{result.texts:,} texts, {result.tokens:,} tokens, read by "
        f"{literal(result.provenance.model)}",
        "each panel: layers down, heads across; means over texts of the mean over tokens that are "
        "no special ones",
        "a cross: no sure difference (p ≥ 0.01 by flips of signs, corrected for all heads and "
        "statistics) from what the keys of each query give when they are shuffled; of entropy and "
        "of the token read most, from what the model does on shuffled tokens",
        "named: heads whose weight exceeds that of shuffled keys by a quarter on half of the "
        f"texts, surely so on the other half: {', '.join(named) or 'none'}",
        "plane: classical scaling of the root of the Jensen–Shannon divergence of what two heads "
        "give to the same keys",
        *result.notes,
        f"on {result.compared:,} texts the statistics differ from those of the model's own weights "
        f"by at most {result.agreement.largest_difference('statistics'):.0e} of the most they can "
        "be",
    ]
