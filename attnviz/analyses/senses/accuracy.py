"""The accuracy with which senses are told apart in every layer, beside what needs no attention."""

from __future__ import annotations

import itertools
import math

from attnviz.analyses.senses.result import SensesResult
from attnviz.figures.layout import Page, Ruler, line_height
from attnviz.figures.style import (
    FAINT,
    INK,
    MUTED,
    SMALL_SIZE,
)

_LEFT, _BELOW = 0.32, 0.34  # inches for the numbers and the names of the axes
_TOP = 1.06  # of the axis, so that a point at 1 is seen whole
_NUMBER = 0.2  # inches for the number of a layer
_SMALLEST = 0.7  # inches between the axis and the names of the lines
_DASHES = {"other words, static": (5, 2), "the word, static": (5, 1.5, 1, 1.5), "guessing": (1, 1)}
_SHORT = {
    "output": "output", "other words, static": "others", "the word, static": "word",
    "guessing": "guess",
}  # fmt: skip


def draw_accuracy(
    page: Page, ruler: Ruler, result: SensesResult, place: tuple[float, float, float, float]
) -> float:
    """Draw the accuracy in every layer, each line named at its end; return where it ends.

    place : left, top, width and height, in inches, with all labels.
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
    if across - _LEFT - room < _SMALLEST:
        named = {name: f"{short} {values[name]:.2f}" for name, short in _SHORT.items()}
        room = ruler.widest(list(named.values()), SMALL_SIZE) + 0.08
    tall = high - _BELOW - 0.06
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
    """Return which states are numbered, beside the last, whose name is longer.

    step : inches from one state to the next. apart : inches from any number to the last state.
    """
    every = math.ceil(_NUMBER / step)
    before = [tick for tick in range(0, last, every) if (last - tick) * step >= apart]
    return [*before, last]


def _spread(values: list[float], apart: float) -> list[float]:
    """Move values as little as needed to be `apart`, in their order, within the axis."""
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
