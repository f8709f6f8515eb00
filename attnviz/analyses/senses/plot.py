"""Draw how the senses of a word separate: its occurrences in every layer, and the accuracy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnviz.analyses.senses.result import SensesResult
from attnviz.figures import caption
from attnviz.figures.layout import Page, Ruler, line_height
from attnviz.figures.style import (
    AXIS_ROOM,
    CAPTION_GAP,
    CYCLE,
    FAINT,
    FULL_WIDTH,
    INK,
    MARGIN,
    MM,
    MUTED,
    SMALL_SIZE,
    TEXT_SIZE,
    WIDE,
    style,
)
from attnviz.results.words import literal

_MARKERS = "oDs^vP"
_LONGEST = 14  # characters of a label


@dataclass(frozen=True)
class SenseStyle:
    """The color and marker of a sense."""

    color: str
    marker: str


def sense_styles(result: SensesResult) -> dict[str, SenseStyle]:
    """Return the style of each sense. Senses differ in color and marker."""
    return {
        sense: SenseStyle(CYCLE[n % len(CYCLE)], _MARKERS[(n + n // len(CYCLE)) % len(_MARKERS)])
        for n, sense in enumerate(result.senses)
    }


def draw_dots(
    ax: Axes,
    result: SensesResult,
    styles: dict[str, SenseStyle],
    state: int,
    size: tuple[float, float],
    *,
    points: float,
    rim: float = 0.14,
) -> None:
    """Draw the occurrences in the plane of a state, with equal units on both axes.

    size : the size of the axes in inches. points : the area of a dot in points². rim : the empty
    share around the dots.
    """
    places = result.plane[state].numpy()
    right = result.right[state].numpy()
    ax.axhline(0, color=FAINT, linewidth=0.4, zorder=0)
    ax.axvline(0, color=FAINT, linewidth=0.4, zorder=0)
    for sense, look in styles.items():
        of_sense = np.array([occurrence.sense == sense for occurrence in result.occurrences])
        correct, wrong = of_sense & (right > 0.5), of_sense & (right <= 0.5)
        for shown, face in ((correct, look.color), (wrong, "white")):
            full = face != "white"
            ax.scatter(
                places[shown, 0], places[shown, 1], s=points, marker=look.marker, facecolor=face,
                edgecolor="white" if full else look.color, linewidth=0.4 if full else 0.8, zorder=2,
            )  # fmt: skip
    low, high = places.min(0), places.max(0)
    middle, span = (low + high) / 2, np.maximum(high - low, 1e-9) * (1 + rim)
    unit = max(span[0] / size[0], span[1] / size[1])  # of the plane, for each inch
    half = unit * np.array(size) / 2
    ax.set(xlim=middle[0] + half[0] * np.array([-1, 1]), xticks=[], yticks=[])
    ax.set_ylim(*(middle[1] + half[1] * np.array([-1, 1])))


def label_dots(ax: Axes, result: SensesResult, *, points: float) -> None:
    """Label the dots of the best state with the word that each attends to most, if there is room.

    Call it when the axes have their final place, because overlaps are measured on the page.
    points : the area of a dot in points².
    """
    import textalloc

    places = result.plane[result.best].numpy()
    named = [n for n, occurrence in enumerate(result.occurrences) if occurrence.strongest]
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


_LEFT = 0.32  # inches for the numbers and the name of the vertical axis
_TOP = 1.06  # of the axis, so that a point at 1 is not cut
_NUMBER = 0.2  # inches for the number of a layer
_SMALLEST_AXIS = 0.7  # inches between the axis and the names of the lines
_DASHES = {"other words, static": (5, 2), "the word, static": (5, 1.5, 1, 1.5), "guessing": (1, 1)}
_SHORT = {
    "output": "output", "other words, static": "others", "the word, static": "word",
    "guessing": "guess",
}  # fmt: skip


def draw_accuracy(
    page: Page, ruler: Ruler, result: SensesResult, place: tuple[float, float, float, float]
) -> float:
    """Draw the accuracy in every layer, each line labeled at its end; return the lower edge.

    place : left, top, width and height in inches, with all labels.
    """
    left, top, across, high = place
    scores, last = result.scores, len(result.scores) - 1
    values = {
        "output": scores[-1].accuracy,
        "other words, static": result.context.accuracy,
        "the word, static": scores[0].accuracy,
        "guessing": result.chance,
    }
    named = {name: f"{name} {value:.2f}" for name, value in values.items()}
    room = ruler.widest(list(named.values()), SMALL_SIZE) + 0.08
    if across - _LEFT - room < _SMALLEST_AXIS:
        named = {name: f"{short} {values[name]:.2f}" for name, short in _SHORT.items()}
        room = ruler.widest(list(named.values()), SMALL_SIZE) + 0.08
    tall = high - AXIS_ROOM - 0.06
    ax = page.axes(left + _LEFT, top + 0.06, across - _LEFT - room, tall)
    states = range(last + 1)
    shuffled = [score.shuffled for score in scores]
    ax.fill_between(states, shuffled, color=FAINT, alpha=0.6, linewidth=0)
    ax.text(last / 2, 0.04, "95% of shuffles", fontsize=SMALL_SIZE, color=MUTED, ha="center")
    for name, dashes in _DASHES.items():
        ax.axhline(values[name], color=MUTED, linewidth=0.8, dashes=dashes)
    accuracy = [score.accuracy for score in scores]
    below = [score.accuracy - score.low for score in scores]
    above = [score.high - score.accuracy for score in scores]
    ax.errorbar(
        states, accuracy, yerr=[below, above], color=INK, marker="o", markersize=3,
        elinewidth=0.7, capsize=1.5, capthick=0.7, clip_on=False, zorder=3,
    )  # fmt: skip
    ax.plot(result.best, accuracy[result.best], "o", color=INK, markersize=6, clip_on=False)
    ax.set(xlim=(-0.25, last + 0.25), ylim=(0, _TOP), ylabel="accuracy", xlabel="entering layer")
    apart = ruler.width("output", SMALL_SIZE) / 2 + 0.07
    ticks = _ticks(last, (across - _LEFT - room) / (last + 0.5), apart)
    ax.set_xticks(ticks, [*map(str, ticks[:-1]), "output"], fontsize=SMALL_SIZE)
    ax.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", ".25", ".50", ".75", "1"], fontsize=SMALL_SIZE)
    ax.yaxis.labelpad, ax.xaxis.labelpad = 2, 2
    at = left + across - room + 0.05
    spread = _spread(list(values.values()), line_height(SMALL_SIZE) * _TOP / tall)
    for name, y in zip(named, spread, strict=True):
        where = top + 0.06 + tall * (1 - y / _TOP) - line_height(SMALL_SIZE) / 2
        page.write(at, where, [named[name]], color=INK if name == "output" else MUTED)
    return top + high


def _ticks(last: int, step: float, apart: float) -> list[int]:
    """Return the states that are numbered.

    step : inches from one state to the next. apart : inches between a number and the last label.
    """
    every = math.ceil(_NUMBER / step)
    before = [tick for tick in range(0, last, every) if (last - tick) * step >= apart]
    return [*before, last]


def _spread(values: list[float], apart: float) -> list[float]:
    """Move values by as little as needed to be `apart`, in their order and within the axis."""
    order = sorted(range(len(values)), key=lambda n: (values[n], -n))
    placed = list(values)
    for _ in range(200):
        for low, high in itertools.pairwise(order):
            lack = apart - (placed[high] - placed[low])
            if lack > 0:
                placed[low] -= lack / 2
                placed[high] += lack / 2
        placed = [min(max(value, apart / 2), _TOP) for value in placed]
    return placed


_GAP, _BETWEEN = 0.1, 0.16  # inches between panels, and between rows of panels
_SMALLEST = 0.76  # inches of a panel at least
_MOST = 14  # panels
_TALL = 2.5  # inches of the lower panels
_DOT, _LARGE_DOT = 13.0, 22.0  # points² of a dot
_BESIDE = 0.4  # inches between the two lower panels


def senses(result: SensesResult, *, width: float = FULL_WIDTH) -> Figure:
    """Draw how the senses of a word separate, layer by layer.

    On top is every occurrence as it enters each layer, in the plane of the first two principal
    components. Below is the layer with the best accuracy, with the word that each occurrence
    attends to most, and the accuracy in every layer, beside the baselines: guessing, shuffled
    senses, the word without context, and the context without attention.

    Parameters
    ----------
    result : SensesResult
        From `attnviz.senses`.
    width : float, default 183
        The width of the figure in mm. One column of a journal is 89 mm, two are 183.

    Returns
    -------
    Figure
        A new figure.
    """
    names = [
        *result.senses,
        result.word,
        *(occurrence.strongest for occurrence in result.occurrences),
    ]
    with style([*names, result.provenance.model]):
        page, ruler = Page(width * MM), Ruler()
        place = MARGIN, page.width - MARGIN
        styles = sense_styles(result)
        top = _head(page, ruler, result, styles, place)
        shown = shown_states(result)
        top = _planes(page, result, styles, shown, place, top) + _BETWEEN
        room = place[1] - place[0]
        if page.width < WIDE:
            across = room, room
            at = place[0], place[0]
        else:
            across = 0.54 * room, 0.46 * room - _BESIDE
            at = place[0], place[0] + 0.54 * room + _BESIDE
        large, bottom = _best(page, ruler, result, styles, at[0], top, across[0])
        if page.width < WIDE:
            top = bottom + _BETWEEN
        title = ruler.wrap("Accuracy as the word enters each layer", across[1], TEXT_SIZE, "bold")
        below = page.write(at[1], top, title, points=TEXT_SIZE, weight="bold")
        high = bottom - below if page.width >= WIDE else 0.8 * _TALL
        end = draw_accuracy(page, ruler, result, (at[1], below, across[1], high))
        parts = _caption_parts(result, shown)
        end = caption.write_caption(
            page, place, max(bottom, end) + CAPTION_GAP, parts, result.agreement
        )
        figure = page.finish(end + MARGIN)
        label_dots(large, result, points=_LARGE_DOT)
        return figure


def shown_states(result: SensesResult) -> list[int]:
    """Return the states to draw: all, or the first, the last, the best and some in between."""
    count = len(result.scores)
    if count <= _MOST:
        return list(range(count))
    spread = {round(i * (count - 1) / (_MOST - 2)) for i in range(_MOST - 1)}
    return sorted(spread | {result.best})


def _head(
    page: Page,
    ruler: Ruler,
    result: SensesResult,
    styles: dict[str, SenseStyle],
    place: tuple[float, float],
) -> float:
    """Write the title and a legend of the senses; return the lower edge."""
    left, right = place
    title = f"The senses of “{literal(result.word)}”, layer by layer"
    top = page.title(left, MARGIN, title, right - left) + 0.04
    at, high = left, line_height(TEXT_SIZE)
    for sense, look in styles.items():
        name = ruler.clip(literal(sense, 40), right - left - 0.2, TEXT_SIZE)
        wide = 0.14 + ruler.width(name, TEXT_SIZE) + 0.16
        if at > left and at + wide > right:
            at, top = left, top + high
        key = page.axes(at, top, 0.12, high)
        key.axis("off")
        key.set(xlim=(-1, 1), ylim=(-1, 1))
        key.scatter([0], [0.12], s=_LARGE_DOT, color=look.color, marker=look.marker, linewidth=0)
        page.write(at + 0.15, top, [name], points=TEXT_SIZE)
        at += wide
    return top + high + 0.08


def _planes(
    page: Page,
    result: SensesResult,
    styles: dict[str, SenseStyle],
    shown: Sequence[int],
    place: tuple[float, float],
    top: float,
) -> float:
    """Draw the occurrences in the plane of each state, in rows; return the lower edge."""
    left, room = place[0], place[1] - place[0]
    most = int((room + _GAP) / (_SMALLEST + _GAP))
    columns = math.ceil(len(shown) / math.ceil(len(shown) / most))
    size = min((room - (columns - 1) * _GAP) / columns, 1.5)
    line = line_height(SMALL_SIZE)
    high = size + 3 * line + 0.1
    for number, state in enumerate(shown):
        x, y = left + number % columns * (size + _GAP), top + number // columns * (high + 0.06)
        best = state == result.best
        name = "output" if state == len(result.scores) - 1 else f"layer {state}"
        page.write(x, y, [f"{name}, best" if best else name], weight="bold" if best else "normal")
        ax = page.axes(x, y + line + 0.02, size, size)
        draw_dots(ax, result, styles, state, (size, size), points=_DOT)
        ax.spines[:].set(visible=True, color=INK if best else MUTED, linewidth=0.9 if best else 0.4)
        accuracy = (
            f"{_two(result.scores[state].accuracy)} (plane {_two(result.plane_accuracy[state])})"
        )
        shares = f"{sum(result.explained[state]):.0%} of variance"
        page.write(x, y + line + size + 0.06, [accuracy, shares], color=MUTED)
    return top + math.ceil(len(shown) / columns) * (high + 0.06) - 0.06


def _best(
    page: Page,
    ruler: Ruler,
    result: SensesResult,
    styles: dict[str, SenseStyle],
    left: float,
    top: float,
    across: float,
) -> tuple[Axes, float]:
    """Draw the best state; return its axes, to be labeled, and the lower edge."""
    title = f"{_capital(result.state_name(result.best))}, each with the word it attends to most"
    lines = ruler.wrap(title, across, TEXT_SIZE, "bold")
    top = page.write(left, top, lines, points=TEXT_SIZE, weight="bold") + 0.04
    ax = page.axes(left, top, across, _TALL)
    draw_dots(ax, result, styles, result.best, (across, _TALL), points=_LARGE_DOT, rim=0.3)
    ax.spines[:].set(visible=True, color=MUTED, linewidth=0.4)
    first, second = (f"{share:.0%} of variance" for share in result.explained[result.best])
    end = top + _TALL + 0.03
    lines = ruler.wrap(f"across {first}, upwards {second}", across, SMALL_SIZE)
    return ax, page.write(left + across, end, lines, color=MUTED, align="right")


def _caption_parts(result: SensesResult, shown: Sequence[int]) -> list[str]:
    counts = [
        f"{literal(sense)} {sum(occurrence.sense == sense for occurrence in result.occurrences)}"
        for sense in result.senses
    ]
    best, context, n = result.scores[result.best], result.context, len(result.occurrences)
    parts = [
        f"“{literal(result.word)}” {n} times in {result.sentences} sentences "
        f"({', '.join(counts)}), read by {literal(result.provenance.model)}",
        *result.notes,
        "planes: the two main directions of each state, which know no senses, scaled to the panel "
        "and turned to the plane beside it (orthogonal Procrustes)",
        "hollow: nearer to another sense",
        "entering layer 0 the word differs by its position at most, so that dots coincide",
        "numbers: accuracy, in brackets that within the plane",
        "accuracy: nearest centroid by cosine, made without the sentence that is judged; bars: 95% "
        "bootstrap interval over sentences, exact where all are right; grey: what 95% of "
        f"{result.shuffles:,} shuffles of the senses stay within",
        f"best {result.state_name(result.best)}, {_interval(best.accuracy, best.low, best.high)}, "
        f"p = {result.p_best:.4f} over all layers; guessing {_two(result.chance)}; static, the "
        f"word entering layer 0, {_two(result.scores[0].accuracy)}; other words, the mean static "
        f"embedding of the sentence without the word, "
        f"{_interval(context.accuracy, context.low, context.high)}",
        f"labels, where there is room: the content word with most of its attention in layer "
        f"{result.attention_layer}, mean of all heads, special tokens left out",
    ]
    if len(shown) < len(result.scores):
        parts.append(f"{len(shown)} of {len(result.scores)} states drawn")
    return parts


def _interval(value: float, low: float, high: float) -> str:
    return f"{_two(value)} ({_two(low)} to {_two(high)})"


def _two(value: float) -> str:
    return f"{value:.2f}"


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
