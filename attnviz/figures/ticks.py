"""Labels along the sides of a map: words, or a scale of seconds or of rows of patches."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from attnviz.figures.layout import Ruler, line_height
from attnviz.figures.style import LABEL_PAD, SMALL_SIZE, SMALLEST_SIZE, TEXT_SIZE
from attnviz.results import AxisGeometry
from attnviz.results.words import literal

_ROOM_FOR_NUMBER = {"x": 0.4, "y": 0.25}  # inches from one number of a scale to the next


@dataclass(frozen=True)
class Ticks:
    """The labels along one axis.

    Attributes
    ----------
    labels : tuple of str
        The texts.
    places : tuple of float
        Their places, in cells from the first.
    points : float
        The font size.
    marked : bool
        Whether each label has a tick mark.
    rotation : int
        Degrees.
    room : float
        Inches that the labels take, from the axis outwards.
    unit : str
        The unit of a scale.
    """

    labels: tuple[str, ...]
    places: tuple[float, ...]
    points: float
    marked: bool
    rotation: int
    room: float
    unit: str = ""

    def apply(self, ax: Axes, axis: str) -> None:
        """Draw the labels."""
        # Set for each label, because the axes may be the user's and have another style.
        options: dict[str, Any] = {
            "fontsize": self.points,
            "fontfamily": mpl.rcParams["font.family"],
            "parse_math": False,
            "rotation": self.rotation,
        }
        if self.rotation == 45:
            options |= {"ha": "right", "rotation_mode": "anchor"}
        (ax.set_yticks if axis == "y" else ax.set_xticks)(self.places, self.labels, **options)
        ax.tick_params(axis=axis, length=2 if self.marked else 0)  # type: ignore[arg-type]


def fit_ticks(
    tokens: Sequence[str],
    cell: float,
    ruler: Ruler,
    *,
    axis: str,
    side: AxisGeometry | None = None,
    longest: float = math.inf,
    named: int = 0,
) -> Ticks:
    """Choose size, rotation and number of the labels along one axis.

    Parameters
    ----------
    tokens : sequence of str
        The labels of all cells.
    cell : float
        The width of a cell along the axis, in inches.
    ruler : Ruler
        Measures the labels.
    axis : {"x", "y"}
        The axis.
    side : AxisGeometry, optional
        The place of the cells in an image, audio or a long text. Narrow cells then get a scale.
    longest : float, optional
        Inches at which labels are clipped.
    named : int, default 0
        A cell that is labeled even if there is room for only some labels.
    """
    line = cell * 72 / 1.2
    if side is not None and side.seconds is not None and None not in side.seconds:
        return _seconds([s for s in side.seconds if s is not None], cell, ruler, axis)
    if side is not None and side.landmarks and line < SMALLEST_SIZE:
        return _landmarks(side, cell, ruler, axis, longest)
    if side is not None and side.patches is not None and line < SMALLEST_SIZE:
        return _rows(tokens, side.patches, cell, ruler, axis)
    points = min(TEXT_SIZE, max(SMALLEST_SIZE, line))
    every = max(1, math.ceil(SMALLEST_SIZE / line))
    shown = range(named % every, len(tokens), every)
    labels = tuple(ruler.clip(literal(tokens[i]), longest, points) for i in shown)
    places = tuple(i + 0.5 for i in shown)
    widest = ruler.widest(labels, points)
    rotation, room = 90, widest
    if axis == "y":
        rotation = 0
    elif widest <= 0.92 * cell:
        rotation, room = 0, line_height(points)
    elif every == 1 and cell > 1.4 * line_height(points):
        rotation, room = 45, (widest + line_height(points)) * math.sqrt(0.5)
    return Ticks(labels, places, points, every > 1, rotation, room + LABEL_PAD)


def _seconds(seconds: Sequence[float], cell: float, ruler: Ruler, axis: str) -> Ticks:
    """Return a scale of round numbers of seconds. A frame lasts until the next begins."""
    start = seconds[0]
    step = (seconds[-1] - start) / (len(seconds) - 1) if len(seconds) > 1 else 1.0
    end = start + step * len(seconds)
    most = max(1, int(len(seconds) * cell / _ROOM_FOR_NUMBER[axis]))
    values = MaxNLocator(most, steps=[1, 2, 5, 10]).tick_values(start, end)
    inside = [value for value in values if start - 1e-9 <= value <= end + 1e-9]
    labels = tuple(f"{value:g}" for value in np.round(inside, 6))
    places = tuple((value - start) / step for value in inside)
    room = ruler.widest(labels, TEXT_SIZE) if axis == "y" else line_height(TEXT_SIZE)
    return Ticks(labels, places, TEXT_SIZE, True, 0, room + LABEL_PAD, "s")


def _landmarks(side: AxisGeometry, cell: float, ruler: Ruler, axis: str, longest: float) -> Ticks:
    """Return numbers of some positions, with the words there along the rows."""
    marks, numbers = side.landmarks, [f"{mark.position:,}" for mark in side.landmarks]
    apart = (marks[-1].position - marks[0].position) / side.cell * cell / max(1, len(marks) - 1)
    if axis == "x":
        every = math.ceil(1.3 * ruler.widest(numbers, SMALL_SIZE) / apart) if apart else 1
        labels, room = tuple(numbers), line_height(SMALL_SIZE)
    else:
        every = math.ceil(line_height(SMALL_SIZE) / apart) if apart else 1
        left = longest - ruler.widest([f"   {number}" for number in numbers], SMALL_SIZE)
        words = [ruler.clip(literal(mark.words), left, SMALL_SIZE) for mark in marks]
        labels = tuple(f"{word}   {n}".strip() for word, n in zip(words, numbers, strict=True))
        room = ruler.widest(labels, SMALL_SIZE)
    places = tuple((mark.position - side.start) / side.cell for mark in marks)
    return Ticks(
        labels[::every], places[::every], SMALL_SIZE, True, 0, room + LABEL_PAD, "token number"
    )


def _rows(
    tokens: Sequence[str],
    patches: Sequence[tuple[int, int] | None],
    cell: float,
    ruler: Ruler,
    axis: str,
) -> Ticks:
    """Return a label for each row of patches, and for each token that is no patch."""
    names = [
        token if patch is None else f"row {patch[0]}"
        for token, patch in zip(tokens, patches, strict=True)
    ]
    labels: list[str] = []
    places: list[float] = []
    distance, start = line_height(SMALLEST_SIZE) / cell, 0
    for name, group in itertools.groupby(names):
        size = len(list(group))
        middle = start + size / 2
        start += size
        if not places or middle - places[-1] >= distance:
            labels.append(literal(name))
            places.append(middle)
    room = ruler.widest(labels, SMALLEST_SIZE) + LABEL_PAD
    rotation = 0 if axis == "y" else 90
    return Ticks(tuple(labels), tuple(places), SMALLEST_SIZE, True, rotation, room)
