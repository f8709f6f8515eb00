"""The senses of a word come apart: its occurrences in every layer, and how well they are told."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnviz.analyses.senses.accuracy import draw_accuracy
from attnviz.analyses.senses.occurrences import (
    Look,
    draw_dots,
    label_dots,
    looks,
)
from attnviz.analyses.senses.result import SensesResult
from attnviz.figures import caption
from attnviz.figures.layout import Page, Ruler, line_height
from attnviz.figures.style import (
    FULL_WIDTH,
    INK,
    MM,
    MUTED,
    SMALL_SIZE,
    TEXT_SIZE,
    style,
)
from attnviz.results.labels import literal

_MARGIN, _GAP, _BETWEEN = 0.06, 0.1, 0.16  # inches: around, between panels, and between lines
_SMALLEST = 0.76  # inches of a panel at least
_MOST = 14  # panels
_NARROW = 5.0  # inches of a figure below which the two lower panels stand below each other
_TALL = 2.5  # inches of the lower panels
_DOT, _LARGE_DOT = 13.0, 22.0  # points² of a dot
_BESIDE = 0.4  # inches between the two lower panels


def senses(result: SensesResult, *, width: float = FULL_WIDTH) -> Figure:
    """Draw how the senses of a word come apart, layer by layer.

    On top every occurrence as it enters each layer, in the plane of the two main directions. Below
    the layer that tells the senses apart best, with the word that each occurrence attends to most;
    and the accuracy in every layer, beside what guessing, shuffled senses, the word without its
    context and the context without attention reach.

    Parameters
    ----------
    result : from `senses`.
    width : of the figure, in mm: 89 is one column of a journal, 183 two.
    """
    names = [*result.senses, result.word, *(one.strongest for one in result.occurrences)]
    with style([*names, result.provenance.model]):
        page, ruler = Page(width * MM), Ruler()
        place = _MARGIN, page.width - _MARGIN
        look = looks(result)
        top = _head(page, ruler, result, look, place)
        shown = shown_states(result)
        top = _planes(page, result, look, shown, place, top) + _BETWEEN
        room = place[1] - place[0]
        if page.width < _NARROW:
            across = room, room
            at = place[0], place[0]
        else:
            across = 0.54 * room, 0.46 * room - _BESIDE
            at = place[0], place[0] + 0.54 * room + _BESIDE
        large, bottom = _best(page, ruler, result, look, at[0], top, across[0])
        if page.width < _NARROW:
            top = bottom + _BETWEEN
        said = ruler.wrap("Accuracy as the word enters each layer", across[1], TEXT_SIZE, "bold")
        below = page.write(at[1], top, said, points=TEXT_SIZE, weight="bold")
        high = bottom - below if page.width >= _NARROW else 0.8 * _TALL
        end = draw_accuracy(page, ruler, result, (at[1], below, across[1], high))
        parts = _said(result, shown)
        end = caption.write_caption(page, place, max(bottom, end) + 0.1, parts, result.agreement)
        figure = page.finish(end + _MARGIN)
        label_dots(large, result, points=_LARGE_DOT)
        return figure


def shown_states(result: SensesResult) -> list[int]:
    """Return which states are drawn: all, or the first, the last, the best and some between."""
    count = len(result.scores)
    if count <= _MOST:
        return list(range(count))
    spread = {round(i * (count - 1) / (_MOST - 2)) for i in range(_MOST - 1)}
    return sorted(spread | {result.best})


def _head(
    page: Page,
    ruler: Ruler,
    result: SensesResult,
    look: dict[str, Look],
    place: tuple[float, float],
) -> float:
    """Write the title, and below it the senses with their dots; return where that ends."""
    left, right = place
    title = f"The senses of “{literal(result.word)}”, layer by layer"
    top = page.title(left, _MARGIN, title, right - left) + 0.04
    at, high = left, line_height(TEXT_SIZE)
    for sense, one in look.items():
        name = ruler.clip(literal(sense, 40), right - left - 0.2, TEXT_SIZE)
        wide = 0.14 + ruler.width(name, TEXT_SIZE) + 0.16
        if at > left and at + wide > right:
            at, top = left, top + high
        key = page.axes(at, top, 0.12, high)
        key.axis("off")
        key.set(xlim=(-1, 1), ylim=(-1, 1))
        key.scatter([0], [0.12], s=_LARGE_DOT, color=one.colour, marker=one.marker, linewidth=0)
        page.write(at + 0.15, top, [name], points=TEXT_SIZE)
        at += wide
    return top + high + 0.08


def _planes(
    page: Page,
    result: SensesResult,
    look: dict[str, Look],
    shown: Sequence[int],
    place: tuple[float, float],
    top: float,
) -> float:
    """Draw the occurrences in the plane of each state, some in a line; return where they end."""
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
        draw_dots(ax, result, look, state, (size, size), points=_DOT)
        ax.spines[:].set(visible=True, color=INK if best else MUTED, linewidth=0.9 if best else 0.4)
        told = f"{_two(result.scores[state].accuracy)} (plane {_two(result.plane_accuracy[state])})"
        shares = f"{sum(result.explained[state]):.0%} of variance"
        page.write(x, y + line + size + 0.06, [told, shares], color=MUTED)
    return top + math.ceil(len(shown) / columns) * (high + 0.06) - 0.06


def _best(
    page: Page,
    ruler: Ruler,
    result: SensesResult,
    look: dict[str, Look],
    left: float,
    top: float,
    across: float,
) -> tuple[Axes, float]:
    """Draw the best state large; return its axes, to be labelled, and where it ends."""
    said = f"{_capital(result.state_name(result.best))}, each with the word it attends to most"
    lines = ruler.wrap(said, across, TEXT_SIZE, "bold")
    top = page.write(left, top, lines, points=TEXT_SIZE, weight="bold") + 0.04
    ax = page.axes(left, top, across, _TALL)
    draw_dots(ax, result, look, result.best, (across, _TALL), points=_LARGE_DOT, rim=0.3)
    ax.spines[:].set(visible=True, color=MUTED, linewidth=0.4)
    first, second = (f"{share:.0%} of variance" for share in result.explained[result.best])
    end = top + _TALL + 0.03
    lines = ruler.wrap(f"across {first}, upwards {second}", across, SMALL_SIZE)
    return ax, page.write(left + across, end, lines, color=MUTED, align="right")


def _said(result: SensesResult, shown: Sequence[int]) -> list[str]:
    counts = [
        f"{literal(sense)} {sum(one.sense == sense for one in result.occurrences)}"
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
