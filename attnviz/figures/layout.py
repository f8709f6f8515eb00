"""Lay out a page in inches from its top left corner, and measure text."""

from __future__ import annotations

import bisect
import unicodedata
from collections.abc import Sequence
from typing import Any, Literal

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch
from matplotlib.text import Text
from matplotlib.ticker import Locator, LogLocator, MaxNLocator

from attnviz.errors import InputError
from attnviz.figures.style import (
    INK,
    LEADING,
    MM,
    MUTED,
    SANS,
    SMALL_SIZE,
    TITLE_SIZE,
    WIDTHS,
    value_colors,
)


def line_height(points: float) -> float:
    """Return the height of one line of text in inches."""
    return points * LEADING / 72


class Ruler:
    """Measures text in inches without drawing it."""

    def __init__(self) -> None:
        self._figure = Figure()
        self._renderer = FigureCanvasAgg(self._figure).get_renderer()  # type: ignore[no-untyped-call]

    def width(
        self, text: str, points: float, weight: str = "normal", *, math: bool = False
    ) -> float:
        """Return the width of one line of text, or of a formula."""
        drawn = Text(0, 0, text, fontsize=points, parse_math=math, **_face(weight))
        drawn.set_figure(self._figure)
        return float(drawn.get_window_extent(self._renderer).width / self._figure.dpi)

    def widest(self, texts: Sequence[str], points: float) -> float:
        """Return the width of the widest of `texts`."""
        return max((self.width(text, points) for text in texts), default=0.0)

    def wrap(self, text: str, width: float, points: float, weight: str = "normal") -> list[str]:
        """Break text into lines of at most `width`."""
        lines: list[str] = []
        for word in text.split():
            longer = f"{lines[-1]} {word}" if lines else word
            if lines and self.width(longer, points, weight) <= width:
                lines[-1] = longer
                continue
            # A very long word, or a script without blanks, breaks anywhere.
            while (fits := self._fitting(word, width, points, weight)) < len(word):
                lines.append(word[:fits])
                word = word[fits:]
            lines.append(word)
        return [_left_to_right(line) for line in lines]

    def clip(self, text: str, width: float, points: float) -> str:
        """Shorten one line of text to at most `width`."""
        if self.width(text, points) <= width:
            return text
        room = width - self.width("…", points)
        return text[: self._fitting(text, room, points)] + "…"

    def longest(self, texts: Sequence[str], width: float, points: float) -> str:
        """Return the first text that fits, else the last. The longest comes first."""
        return next((text for text in texts if self.width(text, points) <= width), texts[-1])

    def _fitting(self, text: str, width: float, points: float, weight: str = "normal") -> int:
        """Return how many characters of `text` fit, at least one."""
        lengths = range(1, len(text) + 1)
        fitting = bisect.bisect(
            lengths, width, key=lambda length: self.width(text[:length], points, weight)
        )
        return max(1, fitting)


class Page:
    """A new figure that is filled from top to bottom and gets its height at the end."""

    def __init__(self, width: float) -> None:
        if not WIDTHS[0] * MM <= width <= WIDTHS[1] * MM:
            raise InputError(
                f"Expected a width from {WIDTHS[0]} to {WIDTHS[1]} mm, got {width / MM:g}. "
                "A column of a journal is 89 mm wide, a page 183."
            )
        self.width = width
        self.figure = plt.figure(figsize=(width, 1.0))
        self._axes: list[tuple[Axes, tuple[float, float, float, float]]] = []
        self._texts: list[tuple[Text, float, float]] = []
        self._lines: list[tuple[Line2D, Sequence[tuple[float, float]]]] = []
        self._arrows: list[tuple[FancyArrowPatch, tuple[float, float], tuple[float, float]]] = []

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        """Add axes at a place."""
        # Without different labels, matplotlib would return the first axes again.
        ax = self.figure.add_axes((0.0, 0.0, 1.0, 1.0), label=str(len(self._axes)))
        self._axes.append((ax, (left, top, width, height)))
        return ax

    def write(
        self,
        left: float,
        top: float,
        lines: Sequence[str],
        *,
        points: float = SMALL_SIZE,
        color: str = INK,
        weight: str = "normal",
        align: Literal["left", "center", "right"] = "left",
        math: bool = False,
    ) -> float:
        """Write lines below each other; return the lower edge.

        math : whether text between dollar signs is a formula.
        """
        for line in lines:
            options: dict[str, Any] = {"color": color, "ha": align, "parse_math": math}
            options |= {"fontsize": points, "va": "top", **_face(weight)}
            text = self.figure.text(0, 0, line, **options)
            self._texts.append((text, left, top))
            top += line_height(points)
        return top

    def title(self, left: float, top: float, text: str, room: float) -> float:
        """Write a title in lines at most `room` wide; return its lower edge."""
        weight = "bold" if all(map(_has_bold, text)) else "normal"
        lines = Ruler().wrap(text, room, TITLE_SIZE, weight)
        return self.write(left, top, lines, points=TITLE_SIZE, weight=weight)

    def arrow(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        """Draw an arrow between two places (left, top)."""
        arrow = FancyArrowPatch(
            (0, 0), (0, 0), arrowstyle="-|>", mutation_scale=5, color=MUTED, linewidth=0.6
        )
        self.figure.add_artist(arrow)
        self._arrows.append((arrow, start, end))

    def line(self, points: Sequence[tuple[float, float]]) -> None:
        """Draw a line through some places (left, top)."""
        line = Line2D([], [], color=MUTED, linewidth=0.6)
        self.figure.add_artist(line)
        self._lines.append((line, points))

    def finish(self, height: float) -> Figure:
        """Set the height of the page, and place everything."""
        self.figure.set_size_inches(self.width, height)
        for ax, (left, top, width, tall) in self._axes:
            box = (left / self.width, 1 - (top + tall) / height, width / self.width, tall / height)
            ax.set_position(box)
        for text, left, top in self._texts:
            text.set_position((left / self.width, 1 - top / height))
        for arrow, *ends in self._arrows:
            arrow.set_positions(*((left / self.width, 1 - top / height) for left, top in ends))
        for line, points in self._lines:
            line.set_data(
                [left / self.width for left, _ in points], [1 - top / height for _, top in points]
            )
        return self.figure


def _left_to_right(line: str) -> str:
    """Keep the order of a sentence with words in right-to-left scripts."""
    has_right_to_left = any(
        unicodedata.bidirectional(character) in ("R", "AL") for character in line
    )
    return f"\N{LEFT-TO-RIGHT MARK}{line}" if has_right_to_left else line


def grow_below(figure: Figure, inches: float) -> float:
    """Add empty space at the bottom of a figure; return its new height."""
    width, height = figure.get_size_inches()
    taller = float(height + inches)
    figure.set_size_inches(width, taller)
    share = height / taller
    engine = figure.get_layout_engine()
    if isinstance(engine, ConstrainedLayoutEngine):
        left, bottom, wide, high = engine.get()["rect"]
        engine.set(rect=(left, 1 - share + bottom * share, wide, high * share))
    else:
        for ax in figure.axes:
            x, y, wide, high = ax.get_position(original=True).bounds
            ax.set_position((x, 1 - share + y * share, wide, high * share))
    for text in figure.texts:
        text.set_y(1 - share + text.get_position()[1] * share)
    return taller


def _has_bold(character: str) -> bool:
    """Whether the bold font has a character: Latin, Greek or Cyrillic."""
    return ord(character) < 0x530 or character in "“”‘’–—…"


def _face(weight: str) -> dict[str, Any]:
    # Few fallback fonts are bold, and bold text here needs none.
    return {"fontweight": weight} | (
        {"fontfamily": [SANS, "sans-serif"]} if weight == "bold" else {}
    )


_EXTENDS = {
    (False, False): "neither",
    (False, True): "max",
    (True, False): "min",
    (True, True): "both",
}


def color_bar(
    drawn: ScalarMappable, ax: Axes, label: str = "weight", *, horizontal: bool = False
) -> None:
    """Draw a labeled color bar into `ax`."""
    values = drawn.get_array()
    norm = drawn.norm
    above = bool(values is not None and norm.vmax is not None and values.max() > norm.vmax)
    below = bool(values is not None and norm.vmin is not None and values.min() < norm.vmin)
    ticks: Locator = MaxNLocator(2 if horizontal else 4, steps=[1, 2, 2.5, 5, 10])
    if isinstance(norm, LogNorm):
        ticks = LogLocator(subs=(1.0,) if horizontal else (1.0, 3.0))
    bar = ax.figure.colorbar(
        drawn,
        cax=ax,
        extend=_EXTENDS[below, above],
        orientation="horizontal" if horizontal else "vertical",
        ticks=ticks,
        format="%g" if isinstance(norm, LogNorm) else None,
    )
    bar.minorticks_off()
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=SMALL_SIZE, length=2, width=0.5, pad=2)
    if horizontal:
        ax.set_ylabel(label, color=MUTED, rotation=0, ha="right", va="center")
    else:
        bar.set_label(label, color=MUTED)


def range_bar(ax: Axes) -> None:
    """Draw into `ax` the color bar of panels that each have their own range."""
    color_bar(ScalarMappable(Normalize(-1, 1), value_colors()), ax, "of the range")
