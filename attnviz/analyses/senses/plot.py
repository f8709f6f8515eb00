"""Draw how the senses of a word separate: one thread for each sentence, which ends in it."""

from __future__ import annotations

from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from attnviz.analyses.senses.result import SensesResult
from attnviz.figures import figure
from attnviz.figures.claims import is_right_to_left, quoted
from attnviz.figures.layout import CaptionLength, Page, face, line_height, new_page, spread
from attnviz.figures.style import FULL_WIDTH, MM, SMALL_SIZE, TEXT_SIZE, WIDE, theme
from attnviz.results.text import fraction, literal

_COLORED = 4  # senses at most; more have the color of ink
_SHALLOW = 12  # states at most, each of which has its number
_BETWEEN, _SMALLEST = 4 * MM, 9 * MM  # strips
_RISE = np.linspace(0, 1, 16)  # along the way from a thread to its sentence


@figure
def senses(
    result: SensesResult,
    *,
    width: float = FULL_WIDTH,
    caption: CaptionLength = "short",
    figure: Figure | SubFigure | None = None,
) -> Figure:
    """Draw how the senses of a word separate.

    Each thread is a sentence, from the word without context to the output. Its height is the cosine
    to the centroid of its own sense minus that of the nearest other. Of two senses the second is
    mirrored, so that the line in the middle is the decision. A thread ends in its sentence, in
    which the content word that gets most attention is underlined. Below is the accuracy by layer.

    Examples
    --------
    >>> import attnviz
    >>> senses = {"river": ["a muddy bank", "a wet bank"], "money": ["a rich bank", "a bank loan"]}
    >>> figure = attnviz.plot.senses(attnviz.senses("bank", senses))
    """
    sentences = (occurrence.sentence for occurrence in result.occurrences)
    texts = [result.word, *result.senses, *sentences, result.provenance.model, "↑↓"]
    with new_page(width, caption, texts, figure) as page:
        threads = _Threads(page, result)
        said = [*result.details, *([] if threads.is_wide else threads.keys)]
        top = page.heading(result.headline) + 0.02
        top = page.paragraph(page.left, top, " ".join(said), page.room)
        end = threads.draw(top + (0.2 if result.claimed else 0.12 if threads.is_wide else 0.06))
        return page.finish(end + 0.1, _caption_parts(result), result.checked_agreement)


def _color(result: SensesResult, kind: str, sense: str | int) -> str:
    """Return a color of a sense from the theme; a sense may be given by its number."""
    if len(result.senses) > _COLORED:
        return theme().masked if kind == "side_pale" else theme().ink
    number = result.senses.index(sense) if isinstance(sense, str) else sense
    return str(getattr(theme(), kind)[number])


class _Threads:
    """The threads with their sentences, and the layers below. Places are in inches on the page."""

    def __init__(self, page: Page, result: SensesResult) -> None:
        self.page, self.result, self.last = page, result, len(result.scores) - 1
        self.is_wide, has_text = page.width >= WIDE, page.width >= 65 * MM
        self.wrong, self.thick = (result.right[-1] <= 0.5).tolist(), result.hesitating
        self.told = result.sample(60 if self.is_wide else 46) if has_text else set()
        size = sum(len(self.told) > count for count in (24, 44))
        self.pitch = ((3.5, 2.9, 2.6) if self.is_wide else (2.9, 2.5, 2.5))[size] * MM
        self.points = (6.0, 6.0, 5.5)[size] if self.is_wide else 5.0  # of the sentences
        share = (0.388 if self.last < _SHALLOW else 0.432) if self.is_wide else 0.371
        self.left = page.left + (20 if self.is_wide else 12.5) * MM
        self.right = self.left + share * page.width if has_text else page.right - 3 * MM
        self.text = self.right + (8 if self.is_wide else 5) * MM
        self.states = np.linspace(self.left, self.right, self.last + 1)

    @property
    def keys(self) -> list[str]:
        """What dashed and thick threads are, and whether all sentences are written."""
        unit, told, count = self.result.unit, len(self.told), self.result.counts.total()
        keys = ["Dashed: ends on the wrong side."] if any(self.wrong) else []
        if self.thick:
            names = f"the {unit[:-1]} that hesitates", "the two that hesitate longest"
            keys.append(f"Thick: {names[len(self.thick) - 1]}.")
        if 0 < told < count:
            rest = "these, and an even sample of the others" if keys else "an even sample"
            keys.append(f"Written out are {told} of {count}: {rest}.")
        if told and any(one.strongest for one in self.result.occurrences):
            keys.append(f"Underlined: gets most attention in layer {self.result.attention_layer}.")
        return keys

    def draw(self, top: float) -> float:
        written = [len(self.told.intersection(strip)) or 1 for strip in self.result.strips]
        whole = max(self.pitch * (sum(written) + 1), (62 if self.is_wide else 52) * MM)
        sizes = [max(whole * count / sum(written), _SMALLEST) for count in written]
        bottom = top + sum(sizes) + _BETWEEN * (len(sizes) - 1)
        left, right = self.left - 0.5 * MM, self.text - MM if self.told else self.right + MM
        ax = self.page.canvas(left, top - 1.7 * MM, right - left, bottom - top + 3.4 * MM)
        if claimed := self.result.claimed:
            x, color = self.states[claimed], theme().claim
            ax.plot([x, x], [top - MM, bottom + 0.6 * MM], c=color, lw=0.8, label="claim")
            lines = ["here" if claimed == self.last else "from here on"]
            above = top - 1.9 * MM - line_height(SMALL_SIZE)
            self.page.write(x, above, lines, color=color, weight="bold", align="center")
        if self.is_wide:
            self.write_scale(top - 1.8 * MM, "margin")
        for number, size in enumerate(sizes):
            self.draw_strip(ax, number, top, size)
            top += size + _BETWEEN
        return max(self.draw_layers(ax, bottom + 0.6 * MM), self.list_alike(bottom + 3 * MM))

    def draw_strip(self, ax: Axes, number: int, top: float, size: float) -> None:
        """Draw the threads of both senses, or those of one among several, with their sentences."""
        result, members = self.result, self.result.strips[number]
        heights = result.heights[:, members].numpy()
        low, high = min(0, heights[1:].min()), max(0, heights[1:].max())  # the first is clipped
        rim = 0.04 * max(high - low, 1e-6)
        low, high = low - rim * (1 if low else 2.5), high + rim * (1 if high else 2.5)
        places = top + size * (high - heights.clip(low, high)) / (high - low)
        zero, bottom = top + size * high / (high - low), top + size
        below = theme().masked if len(result.strips) > 1 else _color(result, "side_pale", 1)
        panel, pale = [self.left, self.right], _color(result, "side_pale", number)
        for edge, color in ((top, pale), (bottom, below)):
            ax.fill_between(panel, edge, zero, color=color, alpha=0.42, linewidth=0)
        ax.plot(panel, [zero, zero], c=theme().muted, lw=0.7, zorder=1, label="decision")
        for tick in MaxNLocator(3).tick_values(low, high) if self.is_wide else ():
            if top <= (y := zero - size * tick / (high - low)) <= bottom:
                ax.plot([self.left - 0.5 * MM, self.left], [y, y], c=theme().muted, lw=0.5)
                self.write_scale(y, fraction(abs(tick) if len(result.strips) == 1 else tick))
        self.name_sides(number, top, zero, bottom)
        self.draw_threads(ax, members, places)
        self.write_sentences(ax, dict(zip(members, places[-1].tolist(), strict=True)), top, bottom)

    def write_scale(self, middle: float, text: str) -> None:
        look = partial(self.page.write, points=5.0, color=theme().muted, va="center_baseline")
        look(self.left - MM, middle, [text], align="right")

    def draw_threads(self, ax: Axes, members: list[int], places: NDArray[np.float64]) -> None:
        """Draw a line for each occurrence, those that are wrong or hesitate above the others."""
        count = len(self.wrong)
        thin, thick = (1.1, 1.7) if count <= 24 else (0.8, 1.5) if count <= 60 else (0.45, 1.2)
        for n, place in zip(members, places.T, strict=True):
            color = _color(self.result, "sides", self.result.occurrences[n].sense)
            is_wrong, is_thick = self.wrong[n], n in self.thick
            face, dashes = (theme().ground, (0, (3, 1.6))) if is_wrong else (color, "solid")
            ax.plot(
                self.states, place, color=color, linestyle=dashes, marker="o", mfc=face, ms=2.6,
                mew=0.8, markevery=[self.last], linewidth=thick if is_thick else thin,
                alpha=None if n in self.told or not self.told else 0.25,
                zorder=3 + is_wrong + is_thick, label=f"thread {n}",
            )  # fmt: skip

    def name_sides(self, number: int, top: float, zero: float, bottom: float) -> None:
        """Name what is above and below the line in the middle, left of the threads."""
        result, line = self.result, line_height(SMALL_SIZE)
        edge = self.left - (6 if self.is_wide else 1.2) * MM
        mute = partial(self.page.write, edge, align="right", color=theme().muted)
        size = TEXT_SIZE if self.is_wide else SMALL_SIZE

        def name(top: float, sense: int) -> float:
            text, color = literal(result.senses[sense], 40), _color(result, "side_text", sense)
            weight, room = face("bold", text)["fontweight"], edge - self.page.left
            if self.page.ruler.width(text, size, weight) > room:
                text = self.page.ruler.clip(text, 0.88 * room, size)  # bold letters are wider
            look = partial(self.page.write, points=size, weight=weight, align="right")
            return look(edge, top, [text], color=color)

        if len(result.strips) == 1:
            above = name(mute(top, ["nearer to"]), 0)
            below = bottom - line - line_height(size)
            name(mute(below, ["nearer to"]), 1)
            if above < zero - line / 2 and zero + line / 2 < below:
                mute(zero - line / 2, ["undecided"])
            return
        members = result.strips[number]
        right = float(result.right[-1, members].sum())
        up = ["nearer to", "its own ↑"] if bottom - top > 5 * line else []
        below = max(zero, mute(name(top, number), [f"{right:.3g} of {len(members)}", *up]))
        if below + 2 * line <= bottom + MM:
            mute(below, ["nearer to", "another ↓"])

    def write_sentences(self, ax: Axes, ends: dict[int, float], top: float, bottom: float) -> None:
        """Write the sentences of the threads that end there, each as near to its end as it can."""
        told, rim = {n: end for n, end in ends.items() if n in self.told}, 1.5 * MM
        places = spread([*told.values()], self.pitch, top - rim, bottom + rim)
        x = self.right + 0.6 * MM + (self.text - self.right - 1.8 * MM) * _RISE
        for (n, end), middle in zip(told.items(), places, strict=True):
            color = _color(self.result, "sides", self.result.occurrences[n].sense)
            y = end + (middle - end) * _RISE**2 * (3 - 2 * _RISE)
            ax.plot(x, y, color=color, linewidth=0.45, alpha=0.75, label=f"leader {n}")
            self.write_sentence(n, middle)

    def write_sentence(self, n: int, middle: float) -> None:
        """Write what fits of a sentence, gray where it was not read."""
        one, page, points = self.result.occurrences[n], self.page, self.points
        room = page.right - self.text - 0.15 * page.ruler.advance(one.word, points)
        ink, gray = theme().ink, theme().gray
        colors = {"after": gray if self.result.is_causal else ink}
        colors |= {"word": _color(self.result, "side_text", one.sense)}
        if n in self.result.alike:
            ink = gray
        left, em = self.text, points / 72
        parts = one.parts(lambda text: page.ruler.advance(text, points) <= room)
        for text, kind in parts[:: -1 if is_right_to_left(one.sentence) else 1]:
            weight = face("bold" if kind == "word" else "normal", text)["fontweight"]
            color = colors.get(kind, ink)
            right = page.piece(left, middle - 0.49 * em, text, points, color, weight)
            if kind == "attended" and ink != gray:
                page.line((left, middle + 0.43 * em), (right, middle + 0.43 * em))
            left = right

    def draw_layers(self, ax: Axes, top: float) -> float:
        """Name the layers, and show how many are on their own side; return the lower edge."""
        page, scores, points = self.page, self.result.scores, SMALL_SIZE if self.is_wide else 5.0
        names = ["static", *map(str, range(1, self.last)), "output"]
        claimed, placed = self.result.claimed or -1, dict[float, float]()
        below, line = top + 1.2 * MM, line_height(points)
        has_shares, context = self.is_wide and self.last < _SHALLOW, self.result.context
        ax.plot([self.left, self.right], [top, top], color=theme().muted, linewidth=0.5)
        every = range(0, self.last, 1 if self.last < _SHALLOW else 5)
        for n in dict.fromkeys([claimed % (self.last + 1), self.last, 0, *every]):
            lines = [names[n], f"{scores[n].accuracy:.0%}"][: 1 + has_shares]
            x, half = self.states[n], page.ruler.widest(lines, points) / 2 + 0.4 * MM
            if any(abs(x - other) < half + wide for other, wide in placed.items()):
                continue
            placed[x] = half
            ax.plot([x, x], [top, top + 0.6 * MM], color=theme().muted, linewidth=0.5)
            color, weight = (theme().claim, "bold") if n == claimed else (None, "normal")
            page.write(x, below, lines, points=points, color=color, weight=weight, align="center")
        if has_shares:
            edge, mute = self.left - 6.5 * MM, partial(page.write, color=theme().muted)
            end = mute(edge, below, ["layer", "own side"], align="right")
            mute(page.left, end, [name := "other words alone"])
            start, y = page.left + page.ruler.width(name, SMALL_SIZE) + MM, end + 0.45 * line
            page.line((start, y), (self.right - 4 * MM, y))
            return mute(self.right, end, [f"{context.accuracy:.0%}"], align="center")
        top = below + line + MM
        _draw_accuracy(page.axes(self.left, top, self.right - self.left, _SMALLEST), self.result)
        lines, top = [f"{scores[-1].accuracy:.0%} on their own side"], top + _SMALLEST + 0.5 * MM
        alone = f"gray line: {context.accuracy:.0%} by the other words alone"
        lines += page.ruler.wrap(alone, self.right - page.left, points)
        return page.write(self.right, top, lines, points=points, align="right")

    def list_alike(self, top: float) -> float:
        alike, word = self.result.alike if self.told else (), quoted(self.result.word)
        keys, room = self.keys * self.is_wide, self.page.right - self.text
        top = self.page.paragraph(self.text, top, " ".join(keys), room)
        if alike:
            names = [f"alike up to {word}, not read further: in no score", "alike, in no score"]
            head = self.page.ruler.longest(names, room, self.points)
            top = self.page.write(self.text, top, [head], points=self.points, color=theme().muted)
        for n in alike[:8]:
            self.write_sentence(n, top + self.pitch / 2)
            top += self.pitch
        return top


def _draw_accuracy(ax: Axes, result: SensesResult) -> None:
    low, high, accuracy = zip(*((s.low, s.high, s.accuracy) for s in result.scores), strict=True)
    states = range(len(accuracy))
    ax.fill_between(states, low, high, color=theme().faint, linewidth=0)
    ax.axhline(result.chance, color=theme().gray, linewidth=0.5, dashes=(4, 4))
    ax.axhline(result.context.accuracy, color=theme().gray, linewidth=1)
    ax.plot(states, accuracy, color=theme().ink, linewidth=1)
    ends = ((0.0, "0"), (1.0, "100%"))
    ticks = {y: name for y, name in ends if abs(y - result.chance) > 0.3} | {result.chance: "guess"}
    ax.set(xlim=(0, states[-1]), ylim=(0, 1), xticks=[], facecolor=theme().masked)
    ax.set_yticks([*ticks], [*ticks.values()], fontsize=SMALL_SIZE, color=theme().muted)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)


def _caption_parts(result: SensesResult) -> list[str]:
    senses = ", ".join(f"{literal(sense)} {result.counts[sense]}" for sense in result.senses)
    since = "" if result.since is None else "; from that layer on p ≤ 0.01 in each"
    down = f" ({literal(result.senses[1])}: down, mirrored)" if len(result.senses) == 2 else ""
    return [
        f"{quoted(result.word)} {len(result.occurrences)} times in {result.sentences} sentences "
        f"({senses}{' counted' if result.alike else ''}), read by {result.provenance.model_name}"
        f"{result.provenance.with_changes}",
        f"margin{down}: cosine to the centroid of its own sense minus that of the nearest other, "
        "both without its sentence; clipped without context",
        "attention to underlined words: mean of all heads, special tokens left out",
        "band: 95% interval (Wilson), wider by refits of the centroids with weighted sentences",
        "right, on its own side: nearest by cosine to the centroid of its own sense, computed "
        f"without its sentence{since}",
        f"output {result.scores[-1].interval}; guessing {result.chance:.2f}; other words, the mean "
        f"static embedding of the sentence without the word, {result.context.interval}; the p "
        "after them is that of a sign test of the output against them",
        *result.notes,
    ]
