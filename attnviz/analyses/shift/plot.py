"""Draw what moved a word: its two paths, and the gap between their ends as bricks of words."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure, SubFigure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke

from attnviz.analyses.shift.result import ShiftResult
from attnviz.figures import figure, style
from attnviz.figures.arcs import Word, draw_words, find_blanks
from attnviz.figures.layout import CaptionLength, Page, line_height, new_page, spread
from attnviz.figures.style import FULL_WIDTH, MM, SMALL_SIZE, TEXT_SIZE, WIDE, power, theme
from attnviz.results.text import counted, fraction, literal, raised, source_and_notes

# Inches.
_DOTTED = 12  # states at most that have a dot
_STRONG = 0.04, 0.07  # of the way, and of the gap: words of the text in color, or more
_DOTS, _DASHES = (0, (1, 1.3)), (0, (2, 1.6))
_LEAST, _OTHERS, _COLUMN = 1.1 * MM, 0.3 * MM, 0.6 * MM  # a named brick, others, and a column
_STEP, _OVER, _TICK = 1.2 * MM, 3.0 * MM, 0.4 * MM  # between columns, beyond the panel, at words
_ROW, _LINE = line_height(SMALL_SIZE), line_height(TEXT_SIZE)
# Millimeters: the sides and the numbers left of the panel, the panel at most and its height, what
# is between it and the bricks, a brick, the guide to its word, and the bars behind its numbers.
_WIDE_SIZES, _NARROW_SIZES = (17, 12, 90, 58, 9, 6.5, 4, 22), (12.5, 6.5, 31, 52, 4, 4, 2.4, 8)


@figure
def shift(
    result: ShiftResult,
    *,
    width: float = FULL_WIDTH,
    caption: CaptionLength = "short",
    figure: Figure | SubFigure | None = None,
) -> Figure:
    """Draw what moved a word: two paths through the layers, and their gap as bricks of words.

    One path is that of the word in the text, the other that in the reference. The gap between their
    ends is a stack of bricks, one for each word, as tall as what it adds; a second stack leads
    back. The thin bar beside the numbers of a word is what masking it takes.

    Examples
    --------
    >>> import attnviz
    >>> moved = attnviz.shift("bank", "We sat on the bank of the river.")
    >>> figure = attnviz.plot.shift(moved)
    """
    texts = [*result.words, *result.replaced, *result.regions, result.reference, "■×¹²³"]
    texts += source_and_notes(result.provenance, result.notes)
    with new_page(width, caption, texts, figure) as page:
        top = page.heading(result.headline) + 0.02
        top = page.paragraph(page.left, top, " ".join(result.details), page.room)
        end = _Picture(page, result, _write_text(page, result, top + 0.06) + 0.02).draw()
        parts = _caption_parts(result)
        return page.finish(end + style.CAPTION_GAP, parts, result.checked_agreement)


def _caption_parts(result: ShiftResult) -> list[str]:
    first, *notes = source_and_notes(result.provenance, result.notes)
    split, against = result.decomposition, f"compared with {result.reference}"
    kind = "contributions over all paths" if result.is_all_paths else "direct contributions"
    error = power(split.credit_error if result.is_all_paths else split.error)
    if result.without == "alone":
        against = f"alone: {result.reference.removeprefix('the same text, where ')}"
    unit = f"shares of the way, which is {result.way:.2f} units of the hidden state"
    return [first, against, *notes, f"bricks: {kind}, {unit} (completeness error {error})"]


def _write_text(page: Page, result: ShiftResult, top: float) -> float:
    """Write the text, with strong words on the color of their side; return the lower edge."""
    shares, credit = result.shares(result.parts), result.parts.abs().tolist()
    least = max(_STRONG[0], _STRONG[1] * abs(result.share(result.decomposition.total)))
    strong = {n for n in result.sources if abs(shares[n]) >= least}
    credit[result.at] = math.inf
    words = [
        Word(
            word, theme().side_pale[shares[n] < 0] if n in strong else None, n in result.unread,
            n == result.at, n == result.strongest, value=0.0 if n in result.unread else credit[n],
        )
        for n, word in enumerate(result.words)
    ]  # fmt: skip
    find_blanks(words, result.provenance)
    return draw_words(page, [*itertools.compress(words, ~np.array(result.special))], top, most=12)


@dataclass(frozen=True)
class _Brick:
    """A part of the gap, as shares of the way: positive along the shift, negative back."""

    word: int  # -1 for several words together, and for the word itself
    label: str
    adds: float
    takes: float = math.nan  # what changing the word takes


def _bricks(result: ShiftResult, unit: float) -> list[list[_Brick]]:
    """Return the words along the shift, and those back, in the order of the text.

    Special tokens, the word itself, words with little and those beyond the largest are one brick.
    unit : the length of the way in inches.
    """
    adds, takes = result.along(result.parts), result.along(result.tested)
    largest = sorted(result.sources, key=lambda n: abs(adds[n]), reverse=True)[:14]
    named = {n for n in largest if abs(adds[n]) * unit >= _LEAST}
    sides = [[n for n, share in enumerate(adds) if sign * share > 1e-4] for sign in (1, -1)]
    if -sum(adds[n] for n in sides[1]) * unit < _COLUMN:
        sides = [sides[0] + sides[1], []]
    stacks = []
    for words in sides:
        stack = [_Brick(n, raised(result.names[n]), adds[n], takes[n]) for n in words if n in named]
        others = [n for n in words if n not in named]
        name = "itself" if others == [result.at] else counted(len(others), "other")
        rest = _Brick(-1, name, sum(adds[n] for n in others))
        stacks.append([*stack, *([rest] if abs(rest.adds) * unit >= _OTHERS else [])])
    return stacks


class _Picture:
    """The paths of a shift and the bricks of its gap, in inches from the top left corner."""

    def __init__(self, page: Page, result: ShiftResult, top: float) -> None:
        self.page, self.result, self.width = page, result, page.ruler.width
        self.claim, self.credited = result.strongest, result.credited
        sizes = _WIDE_SIZES if page.width >= WIDE else _NARROW_SIZES
        sides, numbers, most, tall, apart, self.brick, guide, self.bars = (s * MM for s in sizes)
        words = " ".join(result.regions).split()
        longest = max((self.width(word, TEXT_SIZE, "bold") for word in words), default=0.0)
        sides = min(max(sides, longest + 5 * MM), sides + 9 * MM) if words else numbers
        self.has_paths = page.width >= 65 * MM
        self.left, self.top = page.left + self.has_paths * sides, top + _ROW + _OVER
        self.bottom, self.low, high = self.top + tall, *_range(result)
        self.unit = tall / (high - self.low)  # the length of the way
        self.stack()
        self.header = next(iter(result.changed), "")
        widest = max(self.width(brick.label, SMALL_SIZE, "bold") for brick, *_ in self.placed)
        takes = self.width(self.header, SMALL_SIZE) + _STEP if self.header else 0.0
        numbers = takes + self.width("adds", SMALL_SIZE) + 2 * _STEP
        beside = apart + self.brick + (self.brick + _STEP) * self.is_back + guide
        self.bars *= bool(self.header) and self.has_paths
        free = page.right - self.left - beside - numbers - self.bars
        panel = min(most, max(free - widest, free - 16 * MM, 0.0)) if self.has_paths else -apart
        self.right = self.left + panel
        self.first, self.words = self.right + apart, self.right + beside
        self.second = self.first + self.brick + _STEP
        self.takes = min(page.right - self.bars, self.words + widest + numbers)
        self.adds = self.takes - takes
        middles = [edge + tall / 2 for _, edge, tall in self.placed]
        self.rows = spread(middles, _ROW, self.top - 0.5 * _ROW, self.bottom + _OVER)
        rows = zip(self.rows, (brick for brick, *_ in self.placed), strict=True)
        self.tested = [row for row in rows if self.bars and row[1].takes == row[1].takes]
        self.end = max(self.bottom + _ROW + 1.5 * MM, max(self.rows) + 1.6 * _ROW)
        self.ax = page.canvas(page.left, top, page.room, self.end - top)
        self.write = partial(page.label, self.ax)

    def y(self, places: Any) -> Any:
        return self.bottom - (np.asarray(places) - self.low) * self.unit

    def stack(self) -> None:
        """Stack bricks as long as the gap, enlarged if it is small, and within the panel."""
        result = self.result
        here, other = self.y(result.reached).tolist()
        pushed = sum(share for share in result.along(result.parts) if share > 0) * self.unit
        tall = self.bottom - self.top
        is_small = abs(here - other) < 0.38 * tall or pushed > tall
        zoom = 0.72 * tall / pushed if is_small else 1.0
        self.zoom = zoom if abs(zoom - 1) > 0.15 else 1.0
        unit = self.zoom * self.unit
        stacks = _bricks(result, unit)
        there, back = (result.sign * unit * sum(b.adds for b in stack) for stack in stacks)
        start = other if self.zoom == 1 else (here + other + there + back) / 2
        start += max(self.top - min(start, start - there), 0.0)
        start -= max(max(start, start - there) - self.bottom, 0.0)
        # Where the first stack leaves the reference, where the second leads back, and its end.
        self.corners = start, start - there, start - there - back
        self.is_back = bool(stacks[1])
        self.placed: list[tuple[_Brick, float, float]] = []  # with the upper edge and the height
        for number, stack in enumerate(stacks):
            edge = min(self.corners[number : number + 2])
            for brick in stack:
                self.placed.append((brick, edge, abs(brick.adds) * unit))
                edge += abs(brick.adds) * unit

    def draw(self) -> float:
        if self.has_paths:
            self.draw_paths()
            self.draw_sides()
            self.draw_layers()
            self.draw_gap()
        along = np.linspace(0, 1, 12)
        bent = along**2 * (3 - 2 * along)
        for row, (brick, edge, tall) in zip(self.rows, self.placed, strict=True):
            self.draw_brick(brick, edge, tall)
            x, y = self.second + self.brick * (brick.adds < 0), edge + tall / 2
            guide = x + (self.words - _TICK - x) * along, y + (row - y) * bent
            self.ax.plot(*guide, color=theme().gray, linewidth=0.4, zorder=1)
        if self.tested:
            self.draw_bars()
        self.write_words()
        if self.zoom != 1:
            place = self.first + self.brick / 2, min(self.corners[:2]) - 0.6 * _ROW
            look: dict[str, Any] = {"color": theme().muted, "weight": "bold", "ha": "center"}
            self.write(*place, f"× {self.zoom:.1f}", **look)
        key = "" if self.page.caption == "none" else " ".join(self.key())
        return self.page.paragraph(self.page.left, self.end + MM, key, self.page.room)

    def draw_paths(self) -> None:
        result, colors, edges = self.result, theme(), (self.left, self.right)
        xs = np.linspace(*edges, result.place.shape[1])
        here, other = self.y(result.place.numpy())
        if result.rails is not None:
            halves = (self.top, self.y(0.5)), (self.y(0.5), self.bottom)
            for half, rail, n in zip(halves, self.y(result.rails.numpy()), (0, 1), strict=True):
                look: dict[str, Any] = {"color": colors.side_pale[n], "alpha": 0.22}
                self.ax.fill_between(edges, *half, linewidth=0, zorder=0, **look)
                self.ax.plot(xs, rail, color=colors.sides[n], linewidth=1.0, linestyle=_DOTS)
        look = {"color": colors.side_pale[result.sign < 0], "alpha": 0.45}
        self.ax.fill_between(xs, here, other, linewidth=0, zorder=1, **look)
        halo = [withStroke(linewidth=1.8, foreground=colors.ground)]
        word = f"“{literal(result.word, 14)}” " if self.page.width >= WIDE else ""
        for path, end, name, up, line, ink, thick, weight in (
            (other, 1, result.without, -result.sign, colors.gray, colors.muted, 1.4, "normal"),
            (here, 0, "in the text", result.sign, colors.ink, colors.ink, 2.0, "bold"),
        ):
            look = {"color": line, "mew": 0, "zorder": 4}
            size, y = 3.0 * (len(xs) <= _DOTTED), self.y(result.reached[end]).item()
            self.ax.plot(xs, path, "o-", linewidth=thick, ms=size, **look)
            self.ax.plot(self.right, y, "o", ms=4.2, **look)
            text = self.page.ruler.clip(word + name, self.right - self.page.left, TEXT_SIZE)
            place = self.right + 0.3 * MM, y - up * (1.2 * MM + 0.5 * _LINE)
            look = {"fontsize": TEXT_SIZE, "ha": "right", "zorder": 6, "path_effects": halo}
            self.write(*place, text, color=ink, weight=weight, **look)

    def draw_sides(self) -> None:
        """Write the names of the regions at 1 and at 0, in lines if they are long."""
        edge, colors = self.left - 1.6 * MM, theme()
        left = edge - self.width("0", SMALL_SIZE) - 0.9 * MM
        unit, free = f"share of the {'way' if self.result.regions else 'gap'}", self.unit
        for n, y in enumerate(self.y((1, 0)).tolist()):
            self.ax.hlines(y, self.left - MM, self.left, color=colors.muted, linewidth=0.5)
            self.write(edge, y, str(1 - n), color=colors.muted, ha="right")
            if self.result.regions:
                room, most = left - self.page.left, min(3, max(1, int(self.unit / _LINE)))
                name = literal(self.result.regions[n], 60)
                lines = self.page.ruler.wrap(name, room, TEXT_SIZE, "bold")
                lines = lines if len(lines) <= most else [*lines[: most - 1], "…"]
                look = {"color": colors.side_text[n], "fontsize": TEXT_SIZE, "weight": "bold"}
                self.write(left, y, "\n".join(lines), ha="right", va="center", **look)
                free -= len(lines) * _LINE / 2
        if self.width(unit, SMALL_SIZE) < free:
            look = {"color": colors.muted, "rotation": 90, "ha": "right", "va": "center"}
            self.write(left, self.y(0.5), unit, **look)

    def draw_layers(self) -> None:
        last, below, muted = self.result.place.shape[1] - 1, self.bottom + 0.6 * MM, theme().muted
        points = SMALL_SIZE if self.page.width >= WIDE else style.SMALLEST_SIZE
        names = ["static", *map(str, range(1, last)), "output"]
        halves = [self.width(name, points) / 2 + 0.3 * MM for name in names]
        xs = np.linspace(self.left, self.right, last + 1).tolist()

        def fit(one: int, other: int) -> bool:
            return bool(xs[other] - xs[one] >= halves[one] + halves[other])

        for every in (*(1, 2)[: 2 * (last < _DOTTED)], 5, 10, 20, 50, last):
            shown = [0, *(n for n in range(every, last, every) if every == 1 or fit(n, last)), last]
            if all(itertools.starmap(fit, itertools.pairwise(shown))):
                break
        self.ax.hlines(below, self.left, self.right, color=muted, linewidth=0.5)
        self.ax.vlines([xs[n] for n in shown], below, below + 0.6 * MM, color=muted, linewidth=0.5)
        row = below + 0.9 * MM + _ROW / 2
        for n in shown:
            self.write(xs[n], row, names[n], ha="center", fontsize=points)
        if self.page.left + self.width("layer", points) < xs[0] - halves[0]:
            self.write(self.page.left, row, "layer", color=muted, fontsize=points)

    def draw_gap(self) -> None:
        """Draw the gap at the edge of the panel, and as long as it is where the bricks are."""
        (here, other), (start, turn, end) = self.y(self.result.reached).tolist(), self.corners
        edges, pale = (self.right, self.first), theme().side_pale[self.result.sign < 0]
        self.ax.fill_between(edges, (other, start), (here, end), color=pale, alpha=0.3, linewidth=0)
        far = (self.second if self.is_back else self.first) + self.brick
        look: dict[str, Any] = {"color": theme().gray, "linewidth": 0.5, "linestyle": _DASHES}
        self.ax.plot(edges, (other, start), **look)
        self.ax.plot((*edges, far), (here, end, end), **look)
        if self.is_back:
            self.ax.plot((self.first, far), (turn, turn), **look)

    def draw_brick(self, brick: _Brick, top: float, tall: float) -> None:
        """Draw a brick in the color of its side: full for most credit, framed if confirmed."""
        colors, side = theme(), brick.adds * self.result.sign < 0
        left, is_claim = self.second if brick.adds < 0 else self.first, brick.word == self.claim
        look: dict[str, Any] = {"fc": colors.side_pale[side], "ec": colors.ground, "lw": 0.6}
        if brick.word < 0:
            look["fc"] = colors.masked
        elif brick.word == self.credited:
            look |= {"fc": colors.sides[side], "alpha": 1.0 if is_claim else 0.55}
        self.ax.add_patch(Rectangle((left, top), self.brick, tall, zorder=3, **look))
        if is_claim:
            if self.zoom == 1 and not self.is_back:  # its part of the gap
                self.ax.fill_betweenx((top, top + tall), self.right, left, fc=look["fc"], alpha=0.3)
            rim, look = 0.2 * MM, {"fc": "none", "ec": colors.claim, "lw": 1.3, "zorder": 5}
            size = self.brick - 2 * rim, tall - 2 * rim
            self.ax.add_patch(Rectangle((left + rim, top + rim), *size, **look))

    def draw_bars(self) -> None:
        """Draw what changing each word takes over what it adds."""
        ends = [0.0, *(end for _, brick in self.tested for end in (brick.adds, brick.takes))]
        unit = min((self.bars - _STEP) / max(max(ends) - min(ends), 1e-9), self.zoom * self.unit)
        zero = self.takes + _STEP - min(ends) * unit
        for row, brick in self.tested:
            pale = theme().side_pale[brick.adds * self.result.sign < 0]
            dark = theme().claim if brick.word == self.claim else theme().muted
            for share, tall, color in ((brick.adds, 2 * MM, pale), (brick.takes, 0.8 * MM, dark)):
                self.ax.barh(row, share * unit, tall, zero, color=color, linewidth=0)
        edges = self.tested[0][0] - 0.5 * _ROW, self.tested[-1][0] + 0.5 * _ROW
        self.ax.vlines(zero, *edges, color=theme().muted, linewidth=0.5)

    def write_words(self) -> None:
        """Write the word of each brick, what it adds, and what changing it takes; then the sum."""
        ink, muted, top, last = theme().ink, theme().muted, min(self.rows), max(self.rows) + _ROW
        gap = fraction(abs(self.result.share(self.result.decomposition.total)))
        self.write_row(top - _ROW, ("", "adds", self.header), (ink, muted, muted))
        for row, (brick, *_) in zip(self.rows, self.placed, strict=True):
            red, weight = (theme().claim, "bold") if brick.word == self.claim else ("", "normal")
            texts = brick.label, fraction(brick.adds), fraction(brick.takes)
            color = theme().side_text[brick.adds * self.result.sign < 0]
            looks = (red or ink, color, red or muted) if brick.word >= 0 else (muted,) * 3
            self.write_row(row, texts, looks, weight)
        self.write_row(last, ("gap", gap, ""), (ink, ink, ink), "bold")
        self.ax.hlines(last - _ROW / 2, self.adds - 6 * MM, self.adds, color=muted, linewidth=0.4)

    def write_row(
        self, row: float, texts: Sequence[str], colors: Sequence[str], weight: str = "normal"
    ) -> None:
        """Write a row of the table of words: a word without its middle, as long as fits."""
        name, *numbers = texts
        room = self.adds - self.words - self.width("−.00", SMALL_SIZE) - _STEP
        shown = self.page.ruler.squeeze(name, room, SMALL_SIZE)
        bold = weight if name.isascii() else "normal"
        self.write(self.words, row, shown, color=colors[0], weight=bold)
        for x, text, color in zip((self.adds, self.takes), numbers, colors[1:], strict=True):
            self.write(x, row, text, color=color, weight=weight, ha="right")

    def key(self) -> Iterator[str]:
        zoom = "" if self.zoom == 1 else f", {self.zoom:.1f} times as large"
        yield f"The bricks sum to the gap between both ends{zoom}."
        if self.tested:
            yield f"Thin bars: what {self.result.changing} a word takes; wide, pale: what it adds."
        if self.result.rails is not None and self.has_paths:
            yield "Dotted: the regions, as far apart as each layer has them."
        if self.result.unread:
            yield "Gray words come later: they are not read."


def _range(result: ShiftResult) -> tuple[float, float]:
    """Return the lowest and the highest place of the panel, with room for the name of an end."""
    rails = [] if result.rails is None else result.rails.flatten().tolist()
    known = [*result.place.flatten().tolist(), *rails, *result.reached, 0.0, 1.0]
    places = [place for place in known if place == place]
    rim = 0.03 * (max(places) - min(places))
    return min(*places, min(result.reached) - 2 * rim) - rim, max(places) + rim
