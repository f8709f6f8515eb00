"""Occurrences of a word as dots: a colour and a shape for each sense, and labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

from attnviz.analyses.senses.result import SensesResult
from attnviz.figures.style import (
    CYCLE,
    FAINT,
    INK,
    SMALL_SIZE,
)
from attnviz.results.labels import literal

_MARKERS = "oDs^vP"
_LONGEST = 14  # characters of a label


@dataclass(frozen=True)
class Look:
    """How the dots of a sense are drawn."""

    colour: str
    marker: str


def looks(result: SensesResult) -> dict[str, Look]:
    """Return the look of each sense; colours and shapes both tell them apart."""
    return {
        sense: Look(CYCLE[n % len(CYCLE)], _MARKERS[(n + n // len(CYCLE)) % len(_MARKERS)])
        for n, sense in enumerate(result.senses)
    }


def draw_dots(
    ax: Axes,
    result: SensesResult,
    look: dict[str, Look],
    state: int,
    size: tuple[float, float],
    *,
    points: float,
    rim: float = 0.14,
) -> None:
    """Draw the occurrences in the plane of a state, one unit as long across as upwards.

    size : of the axes, in inches. points : of a dot, in points². rim : how much is left free
    around them, as a share of what they span.
    """
    places = result.plane[state].numpy()
    right = result.right[state].numpy()
    ax.axhline(0, color=FAINT, linewidth=0.4, zorder=0)
    ax.axvline(0, color=FAINT, linewidth=0.4, zorder=0)
    for sense, one in look.items():
        mine = np.array([each.sense == sense for each in result.occurrences])
        for kept, face in ((mine & (right > 0.5), one.colour), (mine & (right <= 0.5), "white")):
            full = face != "white"
            ax.scatter(
                places[kept, 0], places[kept, 1], s=points, marker=one.marker, facecolor=face,
                edgecolor="white" if full else one.colour, linewidth=0.4 if full else 0.8, zorder=2,
            )  # fmt: skip
    low, high = places.min(0), places.max(0)
    middle, span = (low + high) / 2, np.maximum(high - low, 1e-9) * (1 + rim)
    unit = max(span[0] / size[0], span[1] / size[1])  # of the plane, for each inch
    half = unit * np.array(size) / 2
    ax.set(xlim=middle[0] + half[0] * np.array([-1, 1]), xticks=[], yticks=[])
    ax.set_ylim(*(middle[1] + half[1] * np.array([-1, 1])))


def label_dots(ax: Axes, result: SensesResult, *, points: float) -> None:
    """Name each dot of the best state after the word that it attends to most, if there is room.

    To be called when the axes have their place: what overlaps is measured on the page. points : of
    a dot, in points².
    """
    import textalloc

    places = result.plane[result.best].numpy()
    named = [n for n, one in enumerate(result.occurrences) if one.strongest]
    if not named:
        return
    radius = (points**0.5 / 2 + 0.5) * ax.figure.dpi / 72  # pixels
    textalloc.allocate(
        ax,
        places[named, 0],
        places[named, 1],
        [literal(result.occurrences[n].strongest, _LONGEST) for n in named],
        x_scatter=places[:, 0],
        y_scatter=places[:, 1],
        scatter_sizes=[radius] * len(places),
        text_scatter_sizes=[radius] * len(named),
        direction=["east", "west", "north", "south"],
        textsize=SMALL_SIZE,
        textcolor=INK,
        linecolor=FAINT,
        linewidth=0.5,
        min_distance=0.004,
        max_distance=0.12,
        margin=0.002,
        nbr_candidates=400,
        draw_all=False,
        avoid_label_lines_overlap=True,
    )
