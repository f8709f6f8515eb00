"""Draw how the senses of a word separate: its occurrences in every layer, and the accuracy."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnviz.analyses.senses.result import SenseScore, SensesResult
from attnviz.figures.layout import CaptionLength, Page, line_height
from attnviz.figures.style import (
    AXIS_ROOM,
    CAPTION_GAP,
    CYCLE,
    FAINT,
    FULL_WIDTH,
    INK,
    MM,
    MUTED,
    SMALL_SIZE,
    TEXT_SIZE,
    WIDE,
    style,
)
from attnviz.results.axis import literal

# Inches unless stated otherwise.
_GAP, _BETWEEN, _BESIDE = 0.1, 0.16, 0.4  # between panels, rows of panels, and the lower panels
_SMALLEST, _LARGEST, _TALL = 0.76, 1.5, 2.5  # the size of a panel; the height of the lower panels
_MOST = 14  # panels
_DOT, _LARGE_DOT = 13.0, 22.0  # points² of a dot
_MARKERS = "oDs^vP"
_LEFT = 0.32  # the numbers and the name of the vertical axis
_TOP = 1.06  # of the axis, so that a point at 1 is not cut
_NUMBER = 0.2  # the number of a layer
_SMALLEST_AXIS = 0.7  # between the axis and the names of the lines
_DASHES = {"other words, static": (5, 2), "the word, static": (5, 1.5, 1, 1.5), "guessing": (1, 1)}
_SHORT = {"other words, static": "others", "the word, static": "word", "guessing": "guess"}


def senses(
    result: SensesResult, *, width: float = FULL_WIDTH, caption: CaptionLength = "short"
) -> Figure:
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
    caption : {"short", "full"}
        Whether the caption has two lines, or also says how everything was measured. The file always
        says so in its metadata.

    Returns
    -------
    Figure
        A new figure.
    """
    labels = [occurrence.strongest for occurrence in result.occurrences]
    with style([*result.senses, result.word, *labels, result.provenance.model]):
        page = Page(width * MM, caption)
        shown = shown_states(result)
        top = _draw_planes(page, result, shown, _draw_legend(page, result)) + _BETWEEN
        room, is_wide = page.right - page.left, page.width >= WIDE
        size = (0.54 * room if is_wide else room), _TALL
        title = f"{result.state_name(result.best)}, each with the word it attends to most"
        below = page.subtitle(page.left, top, title[0].upper() + title[1:], size[0]) + 0.04
        ax = page.axes(page.left, below, *size)
        _draw_dots(ax, result, result.best, size, points=_LARGE_DOT, rim=0.3)
        ax.spines[:].set(visible=True, color=MUTED, linewidth=0.4)
        first, second = (f"{share:.0%} of variance" for share in result.explained[result.best])
        lines = page.ruler.wrap(f"across {first}, upwards {second}", size[0], SMALL_SIZE)
        edge = page.left + size[0], below + _TALL + 0.03
        bottom = page.write(*edge, lines, color=MUTED, align="right")
        if is_wide:
            left = edge[0] + _BESIDE
        else:
            left, top = page.left, bottom + _BETWEEN
        title = "Accuracy as the word enters each layer"
        below = page.subtitle(left, top, title, page.right - left)
        end = max(bottom, below + 0.8 * _TALL) if not is_wide else bottom
        _draw_accuracy(page, result, left, below, end - below)
        parts = _caption_parts(result, shown)
        figure = page.finish_with_caption(end + CAPTION_GAP, parts, result.checked_agreement)
        _label_dots(ax, result)
        return figure


def shown_states(result: SensesResult) -> list[int]:
    """Return the states to draw: all, or the first, the last, the best and some in between."""
    count = len(result.scores)
    if count <= _MOST:
        return list(range(count))
    spread = {round(i * (count - 1) / (_MOST - 2)) for i in range(_MOST - 1)}
    return sorted(spread | {result.best})


def _styles(result: SensesResult) -> dict[str, tuple[str, str]]:
    """Return the color and the marker of each sense. Senses differ in both."""
    return {
        sense: (CYCLE[n % len(CYCLE)], _MARKERS[(n + n // len(CYCLE)) % len(_MARKERS)])
        for n, sense in enumerate(result.senses)
    }


def _draw_legend(page: Page, result: SensesResult) -> float:
    """Write the title and a legend of the senses; return the lower edge."""
    top = page.heading(f"The senses of “{literal(result.word)}”, layer by layer") + 0.04
    left, line = page.left, line_height(TEXT_SIZE)
    for sense, (color, marker) in _styles(result).items():
        name = page.ruler.clip(literal(sense, 40), page.right - page.left - 0.2, TEXT_SIZE)
        width = 0.14 + page.ruler.width(name, TEXT_SIZE) + 0.16
        if left > page.left and left + width > page.right:
            left, top = page.left, top + line
        key = page.axes(left, top, 0.12, line)
        key.axis("off")
        key.set(xlim=(-1, 1), ylim=(-1, 1))
        key.scatter([0], [0.12], s=_LARGE_DOT, color=color, marker=marker, linewidth=0)
        page.write(left + 0.15, top, [name], points=TEXT_SIZE)
        left += width
    return top + line + 0.08


def _draw_planes(page: Page, result: SensesResult, shown: list[int], top: float) -> float:
    """Draw the occurrences in the plane of each state, in rows; return the lower edge."""
    room, line = page.right - page.left, line_height(SMALL_SIZE)
    rows = math.ceil(len(shown) / int((room + _GAP) / (_SMALLEST + _GAP)))
    columns = math.ceil(len(shown) / rows)
    size = min((room - (columns - 1) * _GAP) / columns, _LARGEST)
    row_height = size + 3 * line + 0.16
    for number, state in enumerate(shown):
        x = page.left + number % columns * (size + _GAP)
        y = top + number // columns * row_height
        best = state == result.best
        name = "output" if state == len(result.scores) - 1 else f"layer {state}"
        page.write(x, y, [f"{name}, best" if best else name], weight="bold" if best else "normal")
        ax = page.axes(x, y + line + 0.02, size, size)
        _draw_dots(ax, result, state, (size, size), points=_DOT)
        ax.spines[:].set(visible=True, color=INK if best else MUTED, linewidth=0.9 if best else 0.4)
        accuracy, in_plane = result.scores[state].accuracy, result.plane_accuracy[state]
        shares = f"{sum(result.explained[state]):.0%} of variance"
        lines = [f"{accuracy:.2f} (plane {in_plane:.2f})", shares]
        page.write(x, y + line + size + 0.06, lines, color=MUTED)
    return top + math.ceil(len(shown) / columns) * row_height - 0.06


def _draw_dots(
    ax: Axes,
    result: SensesResult,
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
    for sense, (color, marker) in _styles(result).items():
        of_sense = np.array([occurrence.sense == sense for occurrence in result.occurrences])
        correct, wrong = places[of_sense & (right > 0.5)], places[of_sense & (right <= 0.5)]
        scatter = partial(ax.scatter, s=points, marker=marker, zorder=2)
        scatter(*correct.T, facecolor=color, edgecolor="white", linewidth=0.4)
        scatter(*wrong.T, facecolor="white", edgecolor=color, linewidth=0.8)
    low, high = places.min(0), places.max(0)
    middle, span = (low + high) / 2, np.maximum(high - low, 1e-9) * (1 + rim)
    half = max(span / size) * np.array(size) / 2
    ax.set(xticks=[], yticks=[])
    ax.set_xlim(middle[0] - half[0], middle[0] + half[0])
    ax.set_ylim(middle[1] - half[1], middle[1] + half[1])


def _label_dots(ax: Axes, result: SensesResult) -> None:
    """Label the dots of the best state with the word that each attends to most, if there is room.

    Call it when the axes have their final place, because overlaps are measured on the page.
    """
    import textalloc

    places = result.plane[result.best].numpy()
    named = [n for n, occurrence in enumerate(result.occurrences) if occurrence.strongest]
    if not named:
        return
    radius = (_LARGE_DOT**0.5 / 2 + 0.5) * ax.figure.dpi / 72  # pixels
    textalloc.allocate(
        ax,
        places[named, 0],
        places[named, 1],
        [literal(result.occurrences[n].strongest, 14) for n in named],
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


def _draw_accuracy(
    page: Page, result: SensesResult, left: float, top: float, height: float
) -> None:
    """Draw the accuracy in every layer, each line labeled at its end.

    left, top, height : the place in inches, with all labels, up to the right edge of the page.
    """
    scores, last = result.scores, len(result.scores) - 1
    values = {
        "output": scores[-1].accuracy,
        "other words, static": result.context.accuracy,
        "the word, static": scores[0].accuracy,
        "guessing": result.chance,
    }
    labels = [f"{name} {value:.2f}" for name, value in values.items()]
    across = page.right - left - _LEFT - 0.08
    if across - page.ruler.widest(labels, SMALL_SIZE) < _SMALLEST_AXIS:
        labels = [f"{_SHORT.get(name, name)} {value:.2f}" for name, value in values.items()]
    across -= page.ruler.widest(labels, SMALL_SIZE)
    tall = height - AXIS_ROOM - 0.06
    ax = page.axes(left + _LEFT, top + 0.06, across, tall)
    states = range(last + 1)
    ax.fill_between(
        states, [score.shuffled for score in scores], color=FAINT, alpha=0.6, linewidth=0
    )
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
    step = across / (last + 0.5)  # inches from one state to the next
    apart = page.ruler.width("output", SMALL_SIZE) / 2 + 0.07  # from a number to the last label
    numbers = range(0, last, math.ceil(_NUMBER / step))
    ticks = [tick for tick in numbers if (last - tick) * step >= apart]
    ax.set_xticks([*ticks, last], [*map(str, ticks), "output"], fontsize=SMALL_SIZE)
    ax.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", ".25", ".50", ".75", "1"], fontsize=SMALL_SIZE)
    ax.yaxis.labelpad, ax.xaxis.labelpad = 2, 2
    line = line_height(SMALL_SIZE)
    places = _spread(list(values.values()), line * _TOP / tall)
    for name, label, y in zip(values, labels, places, strict=True):
        label_top = top + 0.06 + tall * (1 - y / _TOP) - line / 2
        color = INK if name == "output" else MUTED
        page.write(left + _LEFT + across + 0.05, label_top, [label], color=color)


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


def _caption_parts(result: SensesResult, shown: list[int]) -> list[str]:
    counts = Counter(occurrence.sense for occurrence in result.occurrences)
    senses = ", ".join(f"{literal(sense)} {counts[sense]}" for sense in result.senses)
    drawn = f"{len(shown)} of {len(result.scores)} states drawn"
    return [
        f"“{literal(result.word)}” {len(result.occurrences)} times in {result.sentences} sentences "
        f"({senses}), read by {literal(result.provenance.model)}{result.provenance.with_changes}",
        *result.notes,
        "planes: the first two principal components of each state, computed without the senses, "
        "scaled to the panel and rotated to fit the plane beside it (orthogonal Procrustes)",
        "hollow: nearer to another sense",
        "entering layer 0 the word differs only by its position, so dots may coincide",
        "numbers: accuracy, and in brackets the accuracy within the plane",
        "accuracy: nearest centroid by cosine, computed without the classified sentence; bars: 95% "
        "interval (Wilson), wider by refits of the centroids with weighted sentences; gray: range "
        f"of 95% of {result.shuffles:,} shuffles of the senses",
        f"best {result.state_name(result.best)}, {result.scores[result.best].accuracy:.2f}, "
        f"p = {result.p_best:.4f} over all layers; output {_interval(result.scores[-1])}; "
        f"guessing {result.chance:.2f}; static, the "
        f"word entering layer 0, {result.scores[0].accuracy:.2f}; other words, the mean static "
        f"embedding of the sentence without the word, {_interval(result.context)}",
        f"labels, where there is room: the content word with most of its attention in layer "
        f"{result.attention_layer}, mean of all heads, special tokens left out",
        *([drawn] if len(shown) < len(result.scores) else []),
    ]


def _interval(score: SenseScore) -> str:
    return f"{score.accuracy:.2f} ({score.low:.2f} to {score.high:.2f})"
