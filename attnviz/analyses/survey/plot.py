"""What heads do over a corpus: each statistic as a map of all heads, and which are alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from attnviz.analyses.survey.result import HeadName, SurveyResult
from attnviz.analyses.survey.statistics import TITLES
from attnviz.figures import caption
from attnviz.figures.layout import Page, Ruler, color_bar, line_height
from attnviz.figures.style import (
    ACCENT,
    CYCLE,
    FAINT,
    FULL_WIDTH,
    INK,
    MARGIN,
    MM,
    MUTED,
    SMALL_SIZE,
    TEXT_SIZE,
    style,
    value_colors,
    weight_colors,
)
from attnviz.results.words import literal

_TALL = 3.0  # inches of the plane at most
_MARKERS = "oDs^vPX*"
_GAP = 0.18  # inches
_NUMBERS = 0.12  # inches left of a panel
_PANEL = 1.35  # inches of a panel at least
_CELL = 0.2  # inches of a head at most
_NOTHING = 1e-9  # what is no more is 0, and its scale ends at 1
SURE = 0.01  # a p-value below which a difference is


def survey(result: SurveyResult, *, width: float = FULL_WIDTH) -> Figure:
    """Draw each statistic as a map of all heads, and the heads in a plane by how alike they are.

    Parameters
    ----------
    result : from `survey`.
    width : of the figure, in mm: 89 is one column of a journal, 183 two.
    """
    with style([result.provenance.model, *result.statistics]):
        page, ruler = Page(width * MM), Ruler()
        place = MARGIN, page.width - MARGIN
        title = (
            f"What {len(result.heads)} heads of {literal(result.provenance.model)} do, "
            f"on {result.texts:,} texts"
        )
        top = page.title(place[0], MARGIN, title, place[1] - place[0]) + 0.06
        panels = [
            Panel(TITLES.get(name, name), result.mean[:, at], unsure=_p_values(result, at) >= SURE)
            for at, name in enumerate(result.statistics)
            if result.count[:, at].any()
        ]
        top = head_panels(page, ruler, result.heads, panels, place, top)
        top, plane = _plane(page, ruler, result, place, top)
        end = caption.write_caption(page, place, top + 0.1, _caption(result), result.agreement)
        figure = page.finish(end + MARGIN)
        _label(plane, result)
        return figure


def _p_values(result: SurveyResult, at: int) -> Tensor:
    """Return the p-values of a statistic: against even weights, else against shuffled tokens."""
    even = result.p_even[:, at]
    return torch.where(result.even[:, at].isnan(), result.p_shuffled[:, at], even)


def _plane(
    page: Page, ruler: Ruler, result: SurveyResult, place: tuple[float, float], top: float
) -> tuple[float, Axes]:
    """Draw the heads in the plane that keeps their distances best; return where it ends."""
    said = "Heads that read alike stand together"
    top = page.write(place[0], top, [said], points=TEXT_SIZE, weight="bold") + 0.03
    kinds = [*sorted({role for role in result.roles if role}), ""]
    counts = [result.roles.count(kind) for kind in kinds]
    names = [f"{kind or 'not named'} ({count})" for kind, count in zip(kinds, counts, strict=True)]
    key = ruler.widest(names, SMALL_SIZE) + 0.3
    across = place[1] - place[0] - key
    high = min(_TALL, 0.7 * across)
    ax = page.axes(place[0], top, across, high)
    places = _scaled(result.distances)
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set(visible=True, color=MUTED, linewidth=0.4)
    y = top
    for number, (kind, name) in enumerate(zip(kinds, names, strict=True)):
        mine = np.array([each == kind for each in result.roles])
        look: dict[str, Any] = {
            "s": 16,
            "marker": _MARKERS[number % len(_MARKERS)] if kind else "o",
            "color": CYCLE[number % len(CYCLE)] if kind else FAINT,
            "linewidth": 0.3,
            "edgecolor": INK,
        }
        if mine.any():
            ax.scatter(places[mine, 0], places[mine, 1], zorder=2 if kind else 1, **look)
            dot = page.axes(place[1] - key + 0.1, y, 0.12, line_height(SMALL_SIZE))
            dot.axis("off")
            dot.scatter([0], [0], **look)
            y = page.write(place[1] - key + 0.26, y, [name], points=SMALL_SIZE) + 0.03
    ax.set_aspect("equal", adjustable="datalim")
    return max(top + high, y), ax


def _scaled(distances: Tensor) -> NDArray[np.float64]:
    """Return places (K, 2) whose distances are those given as nearly as a plane allows.

    Classical scaling (Torgerson 1952).
    """
    squared = distances.double() ** 2
    centered = squared - squared.mean(0) - squared.mean(1, keepdim=True) + squared.mean()
    values, vectors = torch.linalg.eigh(-centered / 2)
    found = (vectors[:, -2:] * values[-2:].clamp(min=0).sqrt()).flip(1)
    # Either end of an axis may be its start: the same one everywhere.
    largest = found.gather(0, found.abs().argmax(0, keepdim=True))
    places: NDArray[np.float64] = (found * largest.sign()).numpy()
    return places


def _label(ax: Axes, result: SurveyResult) -> None:
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


def _caption(result: SurveyResult) -> list[str]:
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
        "a cross: no sure difference (p ≥ 0.01 by the bootstrap or Hoeffding's bound, corrected "
        "for all heads and statistics) from what the keys of each query give when they are "
        "shuffled; of entropy and of the token read most, from what the model does on shuffled "
        "tokens",
        "named: heads whose weight exceeds that of shuffled keys by a quarter on half of the "
        f"texts, surely so on the other half: {', '.join(named) or 'none'}",
        "plane: classical scaling of the root of the Jensen–Shannon divergence of what two heads "
        f"give to the same keys, on {result.sampled} of the texts; clusters by Ward's method have "
        f"{', '.join(map(str, result.cluster_sizes))} heads",
        *_without(result),
        *result.notes,
        f"in {result.compared:,} of the texts the statistics differ from those of the model's own "
        f"weights by at most {result.agreement.largest_difference('statistics'):.0e} of the most "
        "they can be",
    ]


def _without(result: SurveyResult) -> list[str]:
    """Return what is said of statistics that no text has."""
    none = ~result.count.any(0)
    missing = [name for name, left_out in zip(result.statistics, none, strict=True) if left_out]
    return [f"no text has tokens for: {', '.join(missing)}"] if missing else []


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

    What is not sure has a cross, or no color where it is a change.
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
        color_bar(drawn, bar, "", horizontal=True)
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
    if panel.signed:  # what surely is no change has no color
        values = values.masked_fill(unsure, torch.nan)
    drawn = ax.imshow(
        values.numpy(),
        value_colors() if panel.signed else weight_colors(),
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
