"""Draw how the senses of a word separate: three planes, some sentences, and the accuracy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import matplotlib as mpl
import regex
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

from attnviz.analyses.senses.result import Occurrence, SensesResult
from attnviz.figures import figure
from attnviz.figures.claims import quoted
from attnviz.figures.layout import CaptionLength, Page, line_height, new_page
from attnviz.figures.style import (
    AXIS_ROOM,
    CAPTION_GAP,
    FULL_WIDTH,
    SMALL_SIZE,
    SMALLEST_SIZE,
    TEXT_SIZE,
    WIDE,
    theme,
)
from attnviz.results.text import literal

# Inches unless stated otherwise.
_GAP, _BETWEEN, _BESIDE = 0.12, 0.14, 0.4  # between planes, rows, and the planes and the accuracy
_SMALLEST, _LARGEST = 0.76, 1.5  # the size of a plane
_ACCURACY = 1.2  # the height of the accuracy below the planes
_DOT, _NUMBERED_DOT = 13.0, 52.0  # points² of a dot
_APART = 0.1  # the numbers of two dots
_LISTED = 6  # sentences at most, and at least one of each sense
_LINES = 2  # of a sentence at most
_INDENT = 0.13  # the number of a sentence
_MARKERS = "oDs^vP"
_LEFT = 0.32  # the numbers and the name of the vertical axis
_TOP = 1.06  # of the axis, so that a point at 1 is not cut
_NUMBER = 0.2  # the number of a layer
_SMALLEST_AXIS = 0.7  # between the axis and the names of the lines
_DASHES = {"other words alone": (5, 2), "without context": (5, 1.5, 1, 1.5), "chance": (1, 1)}
_SHORTER = {"other words alone": "others alone", "without context": "no context"}
_SHORTEST = {"other words alone": "others", "without context": "word", "chance": "guess"}


@figure
def senses(
    result: SensesResult,
    *,
    width: float = FULL_WIDTH,
    caption: CaptionLength = "short",
    figure: Figure | SubFigure | None = None,
) -> Figure:
    """Draw how the senses of a word separate.

    Three planes show every occurrence: without context, in the layer that separates the senses
    best, and at the output. Some dots have the number of their sentence, which is written below
    with the word that the occurrence attends to most. Beside them is the accuracy in every layer
    with its baselines: guessing, shuffled senses, the word without context, and the context
    without attention.

    Examples
    --------
    >>> import attnviz
    >>> senses = {"river": ["a muddy bank", "a wet bank"], "money": ["a rich bank", "a bank loan"]}
    >>> figure = attnviz.plot.senses(attnviz.senses("bank", senses))
    """
    words = [result.word, *(occurrence.sentence for occurrence in result.occurrences)]
    with new_page(
        width, caption, [*result.senses, *words, result.provenance.model], figure
    ) as page:
        top = page.heading(result.headline) + 0.02
        room, is_wide = page.room, page.width >= WIDE
        top = page.lead(top, " ".join(result.details)) + 0.06
        top = _draw_legend(page, result, top)
        listed, shown = _listed_sentences(page, result), shown_states(result)
        columns = min(len(shown), max(1, int((room + _GAP) / (_SMALLEST + _GAP))))
        size = _LARGEST if is_wide else min((room - (columns - 1) * _GAP) / columns, _LARGEST)
        end = _draw_planes(page, result, listed, size, top)
        if is_wide:
            left = page.left + len(shown) * (size + _GAP) - _GAP + _BESIDE
            below = page.subtitle(left, top, "Right in each layer", page.right - left)
            _draw_accuracy(page, result, left, below, end - below)
        end = _write_sentences(page, result, listed, end + _BETWEEN)
        if not is_wide:
            below = page.subtitle(page.left, end + _BETWEEN, "Right in each layer", room)
            _draw_accuracy(page, result, page.left, below, _ACCURACY)
            end = below + _ACCURACY
        return page.finish(end + CAPTION_GAP, _caption_parts(result), result.checked_agreement)


def shown_states(result: SensesResult) -> list[int]:
    """Return the states to draw, each once: the first, the best, and the output."""
    return sorted({0, result.best, len(result.scores) - 1})


def _listed_sentences(page: Page, result: SensesResult) -> list[int]:
    """Return the occurrences whose sentences are written: the first of each sense that fit.

    The first that is nearer to another sense in the best layer is the last of its sense.
    """
    count = max(1, _LISTED // len(result.senses))
    right = result.right[result.best] > 0.5
    _, room = _columns(page, result)
    listed = []
    for sense in result.senses:
        own = [n for n, one in enumerate(result.occurrences) if one.sense == sense]
        own = [n for n in own if n not in result.alike]
        lines = {n: page.ruler.wrap(_written(result.occurrences[n]), room, SMALL_SIZE) for n in own}
        fitting = [n for n in own if len(lines[n]) <= _LINES] or own[:1]
        wrong = [n for n in fitting if not right[n]][:1]
        others = [n for n in fitting if n not in wrong][: count - len(wrong)]
        listed += [*others, *wrong]
    return listed


def _columns(page: Page, result: SensesResult) -> tuple[int, float]:
    """Return how many senses are side by side, and the width of a sentence."""
    columns = min(len(result.senses), 3) if page.width >= WIDE else 1
    return columns, (page.room - (columns - 1) * 2 * _GAP) / columns - _INDENT


def _written(occurrence: Occurrence) -> str:
    return literal(occurrence.sentence, len(occurrence.sentence) + 1)


def _styles(result: SensesResult) -> dict[str, tuple[str, str]]:
    """Return the color and the marker of each sense. Senses differ in both."""
    cycle = theme().cycle
    return {
        sense: (cycle[n % len(cycle)], _MARKERS[(n + n // len(cycle)) % len(_MARKERS)])
        for n, sense in enumerate(result.senses)
    }


def _draw_legend(page: Page, result: SensesResult, top: float) -> float:
    """Write a legend of the senses, and of hollow marks if there are any; return the lower edge."""
    left, line = page.left, line_height(TEXT_SIZE)
    entries = [(name, color, color, marker) for name, (color, marker) in _styles(result).items()]
    if (result.right[shown_states(result)] <= 0.5).any():
        _, (_, marker) = next(iter(_styles(result).items()))
        name = "hollow: nearer to another sense"
        entries.append((name, theme().ground, theme().muted, marker))
    if result.alike:
        name = "gray: alike up to the word, not counted"
        entries.append((name, theme().faint, theme().muted, _MARKERS[0]))
    for name, face, edge, marker in entries:
        shown = page.ruler.clip(literal(name, 40), page.room - 0.2, TEXT_SIZE)
        width = 0.14 + page.ruler.width(shown, TEXT_SIZE) + 0.16
        if left > page.left and left + width > page.right:
            left, top = page.left, top + line
        key = page.axes(left, top + 0.005, 0.12, line - 0.01, bare=True)
        key.set(xlim=(-1, 1), ylim=(-1, 1))
        key.scatter([0], [0.12], s=20, facecolor=face, edgecolor=edge, marker=marker, linewidth=0.8)
        page.write(left + 0.15, top, [shown], points=TEXT_SIZE)
        left += width
    return top + line + 0.08


def _draw_planes(
    page: Page, result: SensesResult, listed: list[int], size: float, top: float
) -> float:
    """Draw the occurrences in the plane of some states, in rows; return the lower edge."""
    columns = max(1, int((page.room + _GAP + 1e-9) / (size + _GAP)))
    shown, edge = shown_states(result), top
    for start in range(0, len(shown), columns):
        top = edge + (_BETWEEN if start else 0)
        row = [(page.left + n * (size + _GAP), s) for n, s in enumerate(shown[start:][:columns])]
        titles = [(left, *_title_of(result, state)) for left, state in row]
        below = 0.03 + max(
            page.paragraph(left, page.subtitle(left, top, title, size), share, size)
            for left, title, share in titles
        )
        for left, state in row:
            ax = page.axes(left, below, size, size)
            _draw_dots(ax, result, state, size, listed)
            ax.spines[:].set(visible=True, color=theme().muted, linewidth=0.4)
        edge = below + size
    return edge


def _title_of(result: SensesResult, state: int) -> tuple[str, str]:
    """Return the name and the accuracy of a state."""
    name = result.state_name(state)
    name = f"{name[0].upper()}{name[1:]}" if state else "Without context"
    share = f"{result.scores[state].accuracy:.0%} right"
    if state == result.best and state != len(result.scores) - 1:
        count = 1 + len(result.as_good)
        share += ", best" if count == 1 else f", the first of {count} that are best"
    return name, share


def _draw_dots(ax: Axes, result: SensesResult, state: int, size: float, listed: list[int]) -> None:
    """Draw the occurrences in the plane of a state, with equal units on axes `size` inches long."""
    places = result.plane[state].numpy()
    right = result.right[state].numpy() > 0.5
    ax.axhline(0, color=theme().faint, linewidth=0.4, zorder=0)
    ax.axvline(0, color=theme().faint, linewidth=0.4, zorder=0)
    low, high = places.min(0), places.max(0)
    middle, half = (low + high) / 2, max(*(high - low), 1e-9) * 0.6
    numbered: dict[int, int] = {}
    for number, index in enumerate(listed, start=1):
        steps = [places[index] - places[other] for other in numbered]
        if all(abs(step).max() * size / (2 * half) >= _APART for step in steps):
            numbered[index] = number
    styles = _styles(result)
    for index, occurrence in enumerate(result.occurrences):
        color, marker = styles[occurrence.sense]
        x, y = places[index].tolist()
        is_numbered = index in numbered
        face, edge = (color, theme().ground) if right[index] else (theme().ground, color)
        if index in result.alike:
            face, edge = theme().faint, theme().muted
        ax.scatter(
            x, y, s=_NUMBERED_DOT if is_numbered else _DOT, marker=marker, facecolor=face,
            edgecolor=edge, linewidth=0.4 if right[index] else 0.8, zorder=3 if is_numbered else 2,
        )  # fmt: skip
        if is_numbered:
            ax.text(
                x, y, str(numbered[index]), fontsize=SMALLEST_SIZE, ha="center",
                va="center", color=theme().ground if right[index] else theme().ink, zorder=4,
            )  # fmt: skip
    ax.set(xticks=[], yticks=[])
    ax.set_xlim(middle[0] - half, middle[0] + half)
    ax.set_ylim(middle[1] - half, middle[1] + half)


def _write_sentences(page: Page, result: SensesResult, listed: Sequence[int], top: float) -> float:
    """Write some sentences, sense by sense, with the most attended word in color."""
    title = "The numbered sentences, with the word that each attends to most"
    top = page.subtitle(page.left, top, title, page.room) + 0.03
    columns, room = _columns(page, result)
    edge = top
    for number, sense in enumerate(result.senses):
        if number % columns == 0:
            top = edge + 0.06 * bool(number)
        left = page.left + number % columns * (room + _INDENT + 2 * _GAP)
        below = top
        for place, index in enumerate(listed, start=1):
            occurrence = result.occurrences[index]
            if occurrence.sense == sense:
                page.write(left, below, [str(place)], color=_styles(result)[sense][0])
                below = _write_sentence(page, result, occurrence, left, below, room) + 0.03
        edge = max(edge, below)
    return edge


def _write_sentence(
    page: Page, result: SensesResult, occurrence: Occurrence, left: float, top: float, room: float
) -> float:
    """Write one sentence; return the lower edge."""
    color, _ = _styles(result)[occurrence.sense]
    text = _written(occurrence)
    attended = _find_attended(occurrence)
    looks = [(theme().muted, "normal")] * len(text)
    for (start, end), look in (
        ((occurrence.start, occurrence.end), (theme().ink, "normal")),
        (attended, (color, "bold")),
    ):
        while start < end < len(text) and not (text[end].isalnum() or text[end].isspace()):
            end += 1  # punctuation looks like the word before it
        looks[start:end] = [look] * (end - start)
    offset = 0
    lines = page.ruler.wrap(text, room - 0.05, SMALL_SIZE)
    if len(lines) > _LINES:
        lines = [*lines[: _LINES - 1], page.ruler.clip(lines[_LINES - 1] + " …", room, SMALL_SIZE)]
    for line in lines:
        offset += len(text[offset:]) - len(text[offset:].lstrip())
        end = offset + len(line)
        if text[offset:end] == line:
            _write_line(page, line, looks[offset:end], left + _INDENT, top)
        else:  # clipped, or with a mark of its direction
            page.write(left + _INDENT, top, [line], color=theme().muted)
        offset, top = end, top + line_height(SMALL_SIZE)
    return top


def _write_line(
    page: Page, line: str, looks: Sequence[tuple[str, str]], left: float, top: float
) -> None:
    """Write a line of colored characters, word by word: pixels round the widths of long texts."""
    blank = _exact_width("a a") - _exact_width("aa")
    for piece in regex.finditer(r"\S+", line):
        for look, group in itertools.groupby(range(*piece.span()), key=looks.__getitem__):
            text = "".join(line[n] for n in group)
            color, weight = look[0], look[1] if text.isascii() else "normal"
            page.write(left, top, [text], color=color, weight=weight)
            left += _exact_width(text, weight)
        left += blank


def _exact_width(text: str, weight: str = "normal") -> float:
    """Return the width of a text in inches, not rounded to pixels like that of a drawn one."""
    font = FontProperties(family=mpl.rcParams["font.family"], size=SMALL_SIZE, weight=weight)
    width, _, _ = text_to_path.get_text_width_height_descent(text, font, ismath=False)
    return float(width) / 72


def _find_attended(occurrence: Occurrence) -> tuple[int, int]:
    """Return the span of the most attended content word in the sentence; (0, 0) without one."""
    word = regex.escape(occurrence.strongest)
    pattern = regex.compile(rf"(?<!\w){word}(?!\w)", regex.IGNORECASE)
    for match in pattern.finditer(occurrence.sentence) if occurrence.strongest else ():
        start, end = match.span()
        if end <= occurrence.start or start >= occurrence.end:
            return start, end
    return 0, 0


def _draw_accuracy(page: Page, result: SensesResult, left: float, top: float, high: float) -> None:
    """Draw the accuracy in every layer up to the right edge, each line labeled at its end."""
    scores, last = result.scores, len(result.scores) - 1
    values = {
        "output": scores[-1].accuracy,
        "other words alone": result.context.accuracy,
        "without context": scores[0].accuracy,
        "chance": result.chance,
    }
    across, labels = page.right - left - _LEFT - 0.08, []
    for names in ({}, _SHORTER, _SHORTEST):
        labels = [f"{names.get(name, name)} {value:.2f}" for name, value in values.items()]
        if across - page.ruler.widest(labels, SMALL_SIZE) >= _SMALLEST_AXIS:
            break
    across -= page.ruler.widest(labels, SMALL_SIZE)
    tall = high - AXIS_ROOM - 0.06
    ax = page.axes(left + _LEFT, top + 0.06, across, tall)
    states = range(last + 1)
    shuffled = [score.shuffled for score in scores]
    ax.fill_between(states, shuffled, color=theme().faint, alpha=0.6, linewidth=0)
    ax.text(last / 2, 0.04, "95% of shuffles", size=SMALL_SIZE, color=theme().muted, ha="center")
    for name, dashes in _DASHES.items():
        ax.axhline(values[name], color=theme().muted, linewidth=0.8, dashes=dashes)
    accuracy = [score.accuracy for score in scores]
    below = [score.accuracy - score.low for score in scores]
    above = [score.high - score.accuracy for score in scores]
    ax.errorbar(
        states, accuracy, yerr=[below, above], color=theme().ink, marker="o", markersize=3,
        elinewidth=0.7, capsize=1.5, capthick=0.7, clip_on=False, zorder=3,
    )  # fmt: skip
    ax.plot(result.best, accuracy[result.best], "o", color=theme().ink, markersize=6, clip_on=False)
    ax.set(xlim=(-0.25, last + 0.25), ylim=(0, _TOP), ylabel="right", xlabel="entering layer")
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
        color = theme().ink if name == "output" else theme().muted
        page.write(left + _LEFT + across + 0.05, label_top, [label], color=color)


def _spread(values: list[float], apart: float) -> list[float]:
    """Move values by as little as needed to be `apart`, in their order and within the axis."""
    order = sorted(range(len(values)), key=lambda n: (values[n], -n))
    placed = list(values)
    for _ in range(200):
        for low, high in itertools.pairwise(order):
            if (lack := apart - (placed[high] - placed[low])) > 0:
                placed[low] -= lack / 2
                placed[high] += lack / 2
        placed = [min(max(value, apart / 2), _TOP) for value in placed]
    return placed


def _caption_parts(result: SensesResult) -> list[str]:
    senses = ", ".join(f"{literal(sense)} {result.counts[sense]}" for sense in result.senses)
    since = "" if result.since is None else "; from that layer on p ≤ 0.01 in each"
    return [
        f"{quoted(result.word)} {len(result.occurrences)} times in {result.sentences} sentences "
        f"({senses}{' counted' if result.alike else ''}), read by {result.provenance.model_name}"
        f"{result.provenance.with_changes}",
        "right: nearest by cosine to the centroid of its own sense, computed without its sentence"
        f"{since}",
        f"colored: the content word with most of its attention in layer {result.attention_layer}",
        "planes: the first two principal components of each state, computed without the senses, "
        "scaled to the panel and rotated to fit the best one (orthogonal Procrustes); they show "
        + ", ".join(f"{sum(result.explained[n]):.0%}" for n in shown_states(result))
        + " of the variance",
        "entering layer 0 the word differs only by its position, so dots may coincide",
        "numbers that would overlap are left out",
        "bars: 95% interval (Wilson), wider by refits of the centroids with weighted sentences; "
        f"gray: range of 95% of {result.shuffles:,} shuffles of the senses",
        f"best {result.state_name(result.best)}, chosen on the same sentences, "
        f"{result.scores[result.best].accuracy:.2f}, p = {result.p_best:.4f} over all layers; "
        f"output {result.scores[-1].interval}; "
        f"guessing {result.chance:.2f}; static, the "
        f"word entering layer 0, {result.scores[0].accuracy:.2f}; other words, the mean static "
        f"embedding of the sentence without the word, {result.context.interval}; the p after them "
        "is that of a sign test of the output against them",
        "attention: mean of all heads, special tokens left out",
        *result.notes,
    ]
