"""What heads do over a corpus: each statistic as a map of all heads, and which are alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from attnviz.analyses.survey.head_panels import (
    SURE,
    TITLES,
    Panel,
    head_panels,
)
from attnviz.analyses.survey.result import SurveyResult
from attnviz.figures import caption
from attnviz.figures.layout import Page, Ruler, line_height
from attnviz.figures.style import (
    CYCLE,
    FAINT,
    FULL_WIDTH,
    INK,
    MM,
    MUTED,
    SMALL_SIZE,
    TEXT_SIZE,
    style,
)
from attnviz.results.labels import literal

_MARGIN = 0.06  # inches
_TALL = 3.0  # inches of the plane at most
_MARKERS = "oDs^vPX*"


def survey(result: SurveyResult, *, width: float = FULL_WIDTH) -> Figure:
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
        panels = [
            Panel(TITLES.get(name, name), result.mean[:, at], unsure=_p_values(result, at) >= SURE)
            for at, name in enumerate(result.statistics)
            if result.count[:, at].any()
        ]
        top = head_panels(page, ruler, result.heads, panels, place, top)
        top, plane = _plane(page, ruler, result, place, top)
        end = caption.write_caption(page, place, top + 0.1, _said(result), result.agreement)
        figure = page.finish(end + _MARGIN)
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
    centred = squared - squared.mean(0) - squared.mean(1, keepdim=True) + squared.mean()
    values, vectors = torch.linalg.eigh(-centred / 2)
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


def _said(result: SurveyResult) -> list[str]:
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
