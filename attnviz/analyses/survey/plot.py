"""Draw a survey: each statistic as a map of all heads, and which heads are alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from attnviz.analyses.survey.result import HeadName, SurveyResult
from attnviz.analyses.survey.statistics import TITLES
from attnviz.figures.layout import CaptionLength, Page, color_bar, line_height
from attnviz.figures.style import (
    ACCENT,
    CYCLE,
    FAINT,
    FULL_WIDTH,
    INK,
    MM,
    MUTED,
    SMALL_SIZE,
    style,
    value_colors,
    weight_colors,
)
from attnviz.results.axis import literal

_TALL = 3.0  # inches of the plane at most
_MARKERS = "oDs^vPX*"
_GAP = 0.18  # inches between panels
_NUMBERS = 0.12  # inches left of a panel
_PANEL = 1.35  # inches of a panel at least
_CELL = 0.2  # inches of a head at most
_ZERO = 1e-9  # smaller values count as 0, and their scale ends at 1
SURE = 0.01  # a difference with a smaller p-value is sure


def survey(
    result: SurveyResult, *, width: float = FULL_WIDTH, caption: CaptionLength = "short"
) -> Figure:
    """Draw each statistic as a map of all heads, and the heads in a plane by how alike they are.

    Parameters
    ----------
    result : SurveyResult
        From `attnviz.survey`.
    width : float, default 183
        The width of the figure in mm. One column of a journal is 89 mm, two are 183.
    caption : {"short", "full"}
        Whether the caption has two lines, or also says how everything was measured. The file always
        says so in its metadata.

    Returns
    -------
    Figure
        A new figure.
    """
    with style([result.provenance.model, *result.statistics]):
        page = Page(width * MM, caption)
        model = literal(result.provenance.model)
        title = f"What {len(result.heads)} heads of {model} do, on {result.texts:,} texts"
        top = page.heading(title) + 0.06
        # Statistics without even weights are compared with shuffled tokens.
        p_values = torch.where(result.even.isnan(), result.p_shuffled, result.p_even)
        panels = [
            Panel(TITLES.get(name, name), result.mean[:, column], p_values[:, column] >= SURE)
            for column, name in enumerate(result.statistics)
            if result.count[:, column].any()
        ]
        top = head_panels(page, result.heads, panels, top)
        places = _plane_of(result.distances)
        top, plane = _draw_plane(page, result, places, top)
        figure = page.finish_with_caption(top + 0.1, _caption(result), result.checked_agreement)
        _label_plane(plane, result, places)
        return figure


def _draw_plane(
    page: Page, result: SurveyResult, places: NDArray[np.float64], top: float
) -> tuple[float, Axes]:
    """Draw the heads in a plane, with a key of their roles; return the lower edge and the axes."""
    inner = page.right - page.left
    top = page.subtitle(page.left, top, "Heads with similar maps stand together", inner) + 0.03
    roles = [*sorted({role for role in result.roles if role}), ""]
    names = [f"{role or 'not named'} ({result.roles.count(role)})" for role in roles]
    key = page.ruler.widest(names, SMALL_SIZE) + 0.3
    across = inner - key
    high = min(_TALL, 0.7 * across)
    ax = page.axes(page.left, top, across, high)
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set(visible=True, color=MUTED, linewidth=0.4)
    y = top
    for number, (role, name) in enumerate(zip(roles, names, strict=True)):
        with_role = np.array([other == role for other in result.roles])
        if not with_role.any():
            continue
        look: dict[str, Any] = {
            "s": 16,
            "marker": _MARKERS[number % len(_MARKERS)] if role else "o",
            "color": CYCLE[number % len(CYCLE)] if role else FAINT,
            "linewidth": 0.3,
            "edgecolor": INK,
        }
        ax.scatter(*places[with_role].T, zorder=2 if role else 1, **look)
        dot = page.axes(page.right - key + 0.1, y, 0.12, line_height(SMALL_SIZE))
        dot.axis("off")
        dot.scatter([0], [0], **look)
        y = page.write(page.right - key + 0.26, y, [name], points=SMALL_SIZE) + 0.03
    ax.set_aspect("equal", adjustable="datalim")
    return max(top + high, y), ax


def _plane_of(distances: Tensor) -> NDArray[np.float64]:
    """Return places (K, 2) whose distances are close to those given.

    Classical scaling (Torgerson 1952).
    """
    squared = distances.double() ** 2
    centered = squared - squared.mean(0) - squared.mean(1, keepdim=True) + squared.mean()
    values, vectors = torch.linalg.eigh(-centered / 2)
    plane = (vectors[:, -2:] * values[-2:].clamp(min=0).sqrt()).flip(1)
    # The sign of an axis is arbitrary: the same one on every machine.
    largest = plane.gather(0, plane.abs().argmax(0, keepdim=True))
    places: NDArray[np.float64] = (plane * largest.sign()).numpy()
    return places


def _label_plane(ax: Axes, result: SurveyResult, places: NDArray[np.float64]) -> None:
    """Name heads with a role other than resting, where there is room."""
    import textalloc

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
    columns = zip(result.statistics, result.count.any(0).tolist(), strict=True)
    missing = [name for name, measured in columns if not measured]
    return [
        f"{result.texts:,} texts, {result.tokens:,} tokens, read by "
        f"{literal(result.provenance.model)}{result.provenance.with_changes}",
        "each panel: layers down, heads across; means over texts of the mean over tokens other "
        "than special tokens",
        "a cross: no significant difference (p ≥ 0.01 by sign flips of the texts, corrected for "
        "all heads and statistics) from what the keys of each query give when they are shuffled; "
        "of entropy and of the token read most, from what the model does on shuffled tokens",
        "named: heads whose weight exceeds that of shuffled keys by a quarter on half of the "
        f"texts, significantly so on the other half: {', '.join(named) or 'none'}",
        "plane: classical scaling of the root of the Jensen–Shannon divergence of what two heads "
        f"give to the same keys, on {result.sampled} of the texts; clusters by Ward's method have "
        f"{', '.join(map(str, result.cluster_sizes))} heads",
        *([f"no text has tokens for: {', '.join(missing)}"] if missing else []),
        *result.notes,
        f"in {result.compared:,} of the texts the statistics differ from those of the model's own "
        f"weights by at most {result.agreement.largest_difference('statistics'):.0e} of the most "
        "they can be",
    ]


@dataclass(frozen=True, eq=False)
class Panel:
    """One number of each of K heads, (K,), and which heads are unsure.

    signed : whether numbers may be negative.
    """

    title: str
    values: Tensor
    unsure: Tensor
    signed: bool = False


def head_panels(
    page: Page, heads: Sequence[HeadName], panels: Sequence[Panel], top: float
) -> float:
    """Draw panels in rows, layers down and heads across; return the lower edge.

    Unsure heads have a cross, or no color in a signed panel.
    """
    inner = page.right - page.left
    columns = max(1, int((inner + _GAP) / (_PANEL + _GAP)))
    across = (inner - (columns - 1) * _GAP) / columns - _NUMBERS
    layers = list(dict.fromkeys((head.stack, head.layer) for head in heads))
    most_heads = 1 + max(head.head for head in heads)
    high = max(min(across / most_heads, _CELL) * len(layers), 0.4)
    line = line_height(SMALL_SIZE)
    step = line + high + 0.46
    rows = [layers.index((head.stack, head.layer)) for head in heads]
    cells = rows, [head.head for head in heads]
    for number, panel in enumerate(panels):
        x = page.left + number % columns * (across + _NUMBERS + _GAP) + _NUMBERS
        y = top + number // columns * step
        title = page.ruler.clip(panel.title, across, SMALL_SIZE)
        page.write(x, y, [title], points=SMALL_SIZE, weight="bold")
        ax = page.axes(x, y + line + 0.02, across, high)
        bar = page.axes(x + 0.5 * across - 0.16, y + line + high + 0.16, 0.5 * across, 0.05)
        values = torch.full((len(layers), most_heads), torch.nan, dtype=torch.float64, device="cpu")
        values[cells] = panel.values.double()
        unsure = torch.zeros_like(values, dtype=torch.bool)
        unsure[cells] = panel.unsure & ~panel.values.isnan()
        _draw_panel(ax, bar, values, unsure, signed=panel.signed)
    return top + math.ceil(len(panels) / columns) * step


def _draw_panel(ax: Axes, bar: Axes, values: Tensor, unsure: Tensor, *, signed: bool) -> None:
    """Draw numbers and unsure marks, (layers, heads), and a color bar that ends at one digit."""
    end = float(np.nanmax(values.abs().numpy(), initial=0.0))
    end = _rounded_up(end) if end > _ZERO else 1.0
    drawn = ax.imshow(
        (values.masked_fill(unsure, torch.nan) if signed else values).numpy(),
        value_colors() if signed else weight_colors(),
        aspect="auto",
        origin="upper",
        interpolation="nearest",
        norm=Normalize(-end if signed else 0.0, end),
    )
    if not signed:
        rows, columns = np.nonzero(unsure.numpy())
        ax.scatter(columns, rows, s=4, marker="x", color=ACCENT, linewidth=0.5)
    layers, heads = values.shape
    ax.set_xticks(range(0, heads, max(1, heads // 4)))
    ax.set_yticks(range(0, layers, math.ceil(layers / 4)))
    ax.tick_params(length=0, labelsize=SMALL_SIZE, colors=MUTED, pad=1)
    ax.spines[:].set(visible=True, color=FAINT, linewidth=0.4)
    color_bar(drawn, bar, "", horizontal=True)
    ticks = [-end, 0.0, end] if signed else [0.0, end]
    bar.set_xticks(ticks, [f"{tick:g}".replace("-", "\N{MINUS SIGN}") for tick in ticks])


def _rounded_up(number: float) -> float:
    """Return the next number with one digit.

    >>> _rounded_up(0.0031), _rounded_up(17.0), _rounded_up(0.4)
    (0.004, 20.0, 0.4)
    """
    unit = 10.0 ** math.floor(math.log10(number))
    return float(f"{math.ceil(number / unit - 1e-9) * unit:.6g}")
