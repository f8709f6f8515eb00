"""Draw a text: as the upper axis of its map, with arcs above its words, or in lines."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import Colormap, to_rgb
from matplotlib.patches import PathPatch, Polygon, Rectangle
from matplotlib.path import Path
from matplotlib.patheffects import AbstractPathEffect, withStroke
from matplotlib.transforms import Bbox, ScaledTranslation
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from attnviz.figures import style
from attnviz.figures.cells import Edges, frame
from attnviz.figures.claims import is_right_to_left, spelled
from attnviz.figures.layout import Page, Pair, Place, Ruler, face, line_height
from attnviz.figures.style import MM, SMALLEST_SIZE, TEXT_SIZE, WIDE, text_scale, theme
from attnviz.heads import OneMap
from attnviz.results import Provenance
from attnviz.results.axis import is_word, number_sentences, place_words
from attnviz.results.text import literal

Link: TypeAlias = tuple[int, int, float]  # query, key and weight
Cell: TypeAlias = tuple[int, int]  # query and key
_Set: TypeAlias = tuple[float, float, float]  # left edge, baseline and width of a word

_MOST_LINKS, _LEAST = 5, 0.12  # arcs at most, and the least weight of one
_GAP = 1.2 * MM  # between the words of a line
_BREAK = 1.4 * MM  # more before the second text, and before what was generated
_SIZE, _LINE = 8.0, 14.5 / 72  # points; inches of a line
_PAD, _BESIDE = 0.3 * MM, 1.0 * MM  # around a word on its color, and beside one in a box
_READABLE = 4.5  # the least contrast of a word and its color (WCAG 2)
_CAP = 5.2 / 72  # inches of a capital letter, in a paragraph
_HEAD = 1.5 * MM  # the height of an arrow's head
_APART = 1.3 * MM  # between the arcs that end at one word
_CURVE = [Path.MOVETO, *[Path.CURVE4] * 3]
ARROW = 4.2 * MM  # from a row's label to its cells
PITCH = 1.15 * SMALLEST_SIZE / 72  # inches of the narrowest column with an upright word


def strongest_links(weights: Tensor, words: Tensor, claimed: Collection[Cell]) -> list[Link]:
    """Return at most five links of the cells `words` (m, n), and those that are claimed."""
    links = weights.nan_to_num(0.0).masked_fill(~words, 0.0)
    least = max(_LEAST, float(links.max()) / 4, 1.5 / links.shape[1])
    strongest = links.flatten().argsort(descending=True)[:_MOST_LINKS].tolist()
    cells = [divmod(cell, links.shape[1]) for cell in strongest]
    others = [cell for cell in cells if links[cell] >= least and cell not in claimed]
    drawn = [*claimed, *others[: max(0, _MOST_LINKS - len(claimed))]]
    return [(*cell, float(weights[cell])) for cell in drawn]


@dataclass
class Word:
    """A word of the text, and how it is drawn."""

    text: str
    fill: Any = None  # the color behind it
    is_gray: bool = False  # a special or unknown token, or a word that was not read
    is_asked: bool = False  # the word in question
    is_claimed: bool = False  # the title names it
    is_written: bool = False  # the model wrote it
    blank: str = " "  # what is before it in the text
    value: float = 0.0  # how much is said of it; lines with little are left out of a long text
    line: int = 0
    left: float = 0.0  # inches from the left edge of its line
    wide: float = 0.0

    @property
    def is_boxed(self) -> bool:
        """Whether it has a frame."""
        return self.is_asked or self.is_claimed

    @property
    def weight(self) -> str:
        """That of its font."""
        return str(face("bold" if self.is_boxed else "normal", self.text)["fontweight"])

    @property
    def slant(self) -> str:
        """The style of its font."""
        return "italic" if self.is_written else "normal"

    @property
    def look(self) -> dict[str, Any]:
        """The color and the font of a label."""
        color = theme().gray if self.is_gray else theme().ink
        return {"color": color, "fontstyle": self.slant, **face(self.weight, self.text)}


def _widths(words: Sequence[Word], ruler: Ruler, points: float) -> list[float]:
    return [ruler.width(word.text, points, word.weight) for word in words]


@dataclass(frozen=True)
class Grid:
    """The words of a map and the places of its cells, in inches."""

    rows: Sequence[Word]
    columns: Sequence[Word]
    points: float
    breaks: tuple[int, ...]  # the words before which there is a gap
    left: float  # of the cells
    pitch: float  # from one column to the next
    height: float  # of a row
    right_to_left: bool

    @classmethod
    def of(cls, page: Page, drawn: OneMap, right: float, claimed: Sequence[int] = ()) -> Grid:
        """Fit a map, with the query and the key of the claim, between the left and a right edge."""
        ruler, room, n = page.ruler, right - page.left, len(drawn.rows)
        points = TEXT_SIZE - page.smaller
        longest, widest = (34, 20) if room > WIDE else (22, 11)  # mm of a label and of a column
        gray, start = (~drawn.is_word[1]).tolist(), drawn.generated_from
        gray[0] |= drawn.starts_with_sink
        rows = [
            Word(
                ruler.squeeze(literal(spelled(word), 60), longest * MM, points), is_gray=gray[m],
                is_claimed=m in claimed[:1], is_written=start is not None and m >= start,
            )
            for m, word in enumerate(drawn.rows)
        ]  # fmt: skip
        columns = [replace(word, is_claimed=m in claimed) for m, word in enumerate(rows)]
        for word in itertools.compress(columns, drawn.sides[1].unknown):
            word.text = word.text.rpartition(" ")[0]
        breaks = tuple(one for one in parts_of(drawn)[:1] if one)
        side = max(_widths(rows, ruler, points)) + ARROW
        pitch = min((room - side - len(breaks) * _BREAK) / n, widest * MM)
        height = min(pitch, (7 if n <= 14 else max(3.0, min(5.0, 118 / n))) * MM)
        from_right = is_right_to_left("".join(word.text for word in rows))
        left = page.left + side * (not from_right)
        return cls(rows, columns, points, breaks, left, pitch, height, from_right)

    @classmethod
    def of_sentences(
        cls, page: Page, drawn: OneMap, place: tuple[float, float], claimed: int, *, named: bool
    ) -> Grid:
        """Fit a map of the sentences of a text between a left and a right edge.

        claimed : the row of the claim, or -1. named : whether labels have the first words.
        """
        ruler, points, (left, right) = page.ruler, TEXT_SIZE - page.smaller, place
        numbers, (start, _), room = sentences_of(drawn), parts_of(drawn), right - left - ARROW
        second = None if start is None else numbers[start]
        texts = [""] * (n := max(numbers) + 1)
        for number, word in zip(numbers, words_of(drawn), strict=True):
            texts[number] += (word.blank + word.text) * (number >= 0)
        texts = [" ".join(text.split()) for text in texts]
        longest = min(max(room - 10 * MM * n, 0.27 * room), 60 * MM)
        labels = [f"{m + 1} {text}" if named else f"{m + 1}" for m, text in enumerate(texts)]
        rows = [
            Word(
                ruler.clip(literal(label, 200), longest, points), is_claimed=m == claimed,
                is_written=drawn.generated_from is not None and m >= (second or 0),
            )
            for m, label in enumerate(labels)
        ]  # fmt: skip
        breaks = () if second is None else (second,)
        side = max(_widths(rows, ruler, points)) + ARROW
        pitch = min((right - left - side - len(breaks) * _BREAK) / n, 10 * MM)
        height = min(max(pitch, 2.6 * MM), 100 / n * MM)
        return cls(rows, rows, points, breaks, left + side, pitch, height, right_to_left=False)

    @property
    def cells(self) -> NDArray[np.int64]:
        """The row or the column at each place, -1 at a gap."""
        return np.insert(np.arange(len(self.rows)), self.breaks, -1)

    @property
    def edges(self) -> Edges:
        """The edges of the rows and of the columns, with gaps, in cells."""
        sizes = [np.where(self.cells < 0, _BREAK / one, 1.0) for one in (self.height, self.pitch)]
        down, across = (np.concatenate([[0.0], size.cumsum()]) for size in sizes)
        return down, across

    def middles(self) -> Edges:
        """The middles of the rows and of the columns, in cells."""
        down, across = ((one[1:] + one[:-1])[self.cells >= 0] / 2 for one in self.edges)
        return down, across

    @property
    def size(self) -> tuple[float, float]:
        """The width and the height of all cells."""
        down, across = self.edges
        return across[-1] * self.pitch, down[-1] * self.height

    @property
    def places(self) -> list[float]:
        """The middles of the columns, from the left edge of the page."""
        across = self.middles()[1] * self.pitch
        return [*self.left + (self.size[0] - across if self.right_to_left else across)]

    def spaced(self, values: Tensor) -> Tensor:
        """Return values of cells (m, n) with those of gaps, which are NaN or False."""
        gaps = torch.from_numpy(self.cells < 0)
        spaced = values[self.cells][:, self.cells]
        empty = torch.nan if values.is_floating_point() else False
        return spaced.masked_fill(gaps | gaps[:, None], empty)


@dataclass(frozen=True)
class Names:
    """The words of a sentence above its map, in inches."""

    grid: Grid
    form: Literal["flat", "line", "upright"]
    points: float
    middles: Sequence[float]  # of the words
    feet: Sequence[float]  # how far above the map the arcs of each word begin

    @classmethod
    def fit(cls, grid: Grid, ruler: Ruler, place: tuple[float, float]) -> Names:
        """Write words above their columns, or in one line with hair lines to them, or upright."""
        columns, size = grid.places, grid.points
        widths, (left, right) = _widths(grid.columns, ruler, size), place
        order = np.argsort(columns)
        ends = [(columns[n] - widths[n] / 2, columns[n] + widths[n] / 2) for n in order]
        is_flat = ends[0][0] >= left and ends[-1][1] <= right
        if is_flat and all(b[0] - a[1] >= MM for a, b in itertools.pairwise(ends)):
            foot = 1.8 * MM + line_height(size)
            return cls(grid, "flat", size, columns, [foot] * len(columns))
        gaps = len(grid.breaks) * _BREAK + _GAP * (len(widths) - 1)
        steps = np.arange(size, SMALLEST_SIZE, -0.5)
        sizes = [s for s in steps if sum(widths) * s / size + gaps <= right - left]
        if sizes and grid.pitch >= 2.4 * MM:
            scaled = [width * sizes[0] / size for width in widths]
            total = sum(scaled) + gaps
            start = min(max(float(np.mean(columns)) - total / 2, left), right - total)
            middles = np.zeros(len(widths))
            for n in order:
                start += _BREAK * (n + grid.right_to_left in grid.breaks)
                middles[n] = start + scaled[n] / 2
                start += scaled[n] + _GAP
            feet = [6 * MM + line_height(sizes[0])] * len(widths)
            return cls(grid, "line", sizes[0], [*middles], feet)
        points = max(SMALLEST_SIZE, min(size - 1, grid.pitch * 72 / 1.15))
        feet = [1.6 * MM + width * points / size for width in widths]
        return cls(grid, "upright", points, columns, feet)

    def draw(self, canvas: Axes, bottom: float, ax: Axes, places: Sequence[float]) -> None:
        """Write the words above the axes of a map, as labels at the middles of its columns."""
        words, columns = self.grid.columns, self.grid.places
        dy, high = 0.8 * MM, 0.28 * line_height(self.points)
        how: dict[str, Any] = {"ha": "center", "va": "baseline", "parse_math": False}
        if self.form == "line":  # a hair line leads each word to its column
            paths, dy = [], 5 * MM
            for x, column in zip(self.middles, columns, strict=True):
                points = [(x, 4.6), (x, 2.2), (column, 2.6), (column, 0.4)]
                paths.append(Path([(x, bottom - above * MM) for x, above in points], _CURVE))
            colors = [theme().ink if word.is_claimed else theme().faint for word in words]
            lines = PathCollection(paths, facecolors="none", edgecolors=colors, linewidths=0.5)
            canvas.add_collection(lines, autolim=False)
        elif self.form == "upright":
            how |= {"ha": "left", "va": "center", "rotation": 90, "rotation_mode": "anchor"}
            high = 0.0
        ticks = ax.set_xticks(places, [word.text for word in words], fontsize=self.points)
        ax.xaxis.tick_top()
        ax.tick_params(axis="x", length=0, pad=72 * (dy + high) * text_scale())
        for n, tick in enumerate(ticks):
            aside = (self.middles[n] - columns[n]) * text_scale(), 0, canvas.figure.dpi_scale_trans
            tick.label2.set(**how, **words[n].look)
            tick.label2.set_transform(tick.label2.get_transform() + ScaledTranslation(*aside))


def _ends(links: Sequence[Link], at: Mapping[int, float]) -> list[list[float]]:
    """Return where each arc begins and ends: those at one word apart, so that none cross.

    at : the middle of each word, in inches.
    """
    ends = [[0.0, 0.0] for _ in links]
    for word, x in at.items():
        here = [
            (n, side, at[cell[1 - side]])
            for n, (*cell, _) in enumerate(links)
            for side in (0, 1)
            if cell[side] == word
        ]
        # From left to right: those of the left, the nearest first, and of the right, the last.
        here.sort(key=lambda one: (one[2] > x, -one[2]))
        for place, (n, side, _) in enumerate(here):
            ends[n][side] = x + (place - (len(here) - 1) / 2) * _APART
    return ends


@dataclass(frozen=True)
class Arcs:
    """Arcs above words, in inches."""

    links: Sequence[Link]
    names: Names
    claimed: Collection[Cell]  # those that the title is about, in its color
    room: float  # the height of the largest arc at most

    def _rises(self) -> list[float]:
        at = self.names.middles
        spans = [abs(at[query] - at[key]) for query, key, _ in self.links]
        longest, most = max(spans, default=0.0) or 1.0, self.room - 3 * MM
        return [
            min(2 * MM + most * math.sqrt(span / longest), 3 * MM + 1.2 * span) for span in spans
        ]

    def _has_number(self, link: Link) -> bool:
        return len(self.claimed) == 1 and link[:2] in self.claimed

    @property
    def height(self) -> float:
        """The height above the words, with the number of the claim."""
        number = 0.8 * MM + line_height(self.names.grid.points)
        above = [number if self._has_number(link) else 0.6 * MM for link in self.links]
        return max(map(sum, zip(self._rises(), above, strict=True)), default=0.0)

    def draw(self, canvas: Axes, bottom: float, colors: Colormap) -> None:
        """Draw the arcs above a map that begins at the bottom, those of the claim last."""
        largest = max((weight for *_, weight in self.links), default=1.0)
        ends = _ends(self.links, dict(enumerate(self.names.middles)))
        arcs = [*zip(self.links, self._rises(), ends, strict=True)]
        for link, rise, (start, end) in sorted(arcs, key=lambda arc: arc[0][:2] in self.claimed):
            query, key, weight = link
            is_claim = (query, key) in self.claimed
            color = theme().claim if is_claim else colors(0.25 + 0.55 * weight / largest)
            wide = weight if not is_claim or self._has_number(link) else 0.46 * weight
            tail, tip = (bottom - self.names.feet[n] for n in (query, key))
            top, order = min(tail, tip), 3 if is_claim else 2
            control, neck = top - rise / 0.75, tip - 0.85 * _HEAD
            curve = Path([(start, tail), (start, control), (end, control), (end, neck)], _CURVE)
            look: dict[str, Any] = {"linewidth": 0.35 + 2.6 * wide, "zorder": order}
            canvas.add_patch(PathPatch(curve, fill=False, edgecolor=color, **look))
            half = (0.55 + 0.5 * wide) * MM
            head = [(end - half, tip - _HEAD), (end + half, tip - _HEAD), (end, tip)]
            canvas.add_patch(Polygon(head, facecolor=color, linewidth=0, zorder=order))
            if self._has_number(link):
                left, right = canvas.get_xlim()
                x = min(max((start + end) / 2, left + 2 * _HEAD), right - 2 * _HEAD)
                y = top - rise - (0.8 + 0.5 * wide) * MM
                look = {"fontsize": self.names.grid.points, "zorder": 5, **face("bold")}
                text = canvas.text(x, y, f"{weight:.0%}", ha="center", color=color, **look)
                text.set_path_effects([withStroke(linewidth=3, foreground=theme().ground)])


def sentences_of(drawn: OneMap) -> list[int]:
    """Return the number of the sentence of each word, -1 of special tokens."""
    return number_sentences(drawn.rows, drawn.special_rows, drawn.generated_from)


def distant_links(
    weights: Tensor, linked: Tensor, words: Sequence[str], claimed: Cell | None
) -> list[Link]:
    """Return the four strongest links (m, n) of words that are apart, one for each two words.

    No word and its neighbors look twice. claimed : the cell of the first link, whatever it is.
    """
    links = [] if claimed is None else [(*claimed, float(weights[claimed]))]
    for query, key in linked.nonzero()[weights[linked].argsort(descending=True)].tolist():
        weight, few = float(weights[query, key]), min(len(words[query]), len(words[key])) < 3
        if weight < _LEAST or len(links) == 4:
            break
        spelled = {words[query].casefold(), words[key].casefold()}
        others = [{words[one].casefold() for one in link[:2]} for link in links]
        is_apart = all(abs(query - other) > 1 for other, *_ in links) and abs(query - key) > 2
        if not few and is_apart and spelled not in others:
            links.append((query, key, weight))
    return links


def words_of(drawn: OneMap, linked: Collection[int] = ()) -> list[Word]:
    """Return the words of a text, each sentence on lines of its own, with those that have links."""
    numbers = sentences_of(drawn)
    words = [Word(spelled(word), is_claimed=n in linked) for n, word in enumerate(drawn.rows)]
    find_blanks(words, drawn.provenance)
    shown = [n for n, number in enumerate(numbers) if number >= 0]
    for before, n in itertools.pairwise(shown):
        words[n].blank = words[n].blank if numbers[n] == numbers[before] else "\n"
    return words


def parts_of(drawn: OneMap) -> tuple[int | None, tuple[str, str]]:
    """Return with which word the second part of a text begins, and the names of both parts."""
    if drawn.boundary[1]:
        return drawn.boundary[1], ("first text", "second text")
    return drawn.generated_from, ("prompt", "generated")


def draw_paragraph(
    page: Page,
    drawn: OneMap,
    links: Sequence[Link],
    claimed: Collection[Cell],
    top: float,
    colors: Colormap,
    *,
    whole: bool = True,
) -> float:
    """Write a text sentence by sentence, with links from dashed to solid boxes; return its end.

    whole : whether to write every sentence, not only those with links.
    """
    step, points = (6.6 if page.width > WIDE else 5.6) * MM, TEXT_SIZE - page.smaller
    linked, numbers = {word for link in links for word in link[:2]}, sentences_of(drawn)
    words, kept = words_of(drawn, linked), {numbers[n] for n in linked}
    shown = [n for n, one in enumerate(numbers) if one >= 0 and (whole or one in kept)]
    if not shown:
        return top
    second, names = parts_of(drawn)
    left = page.left + (4.5 if second is None else 8.5) * MM
    _set_lines(page.ruler, [words[n] for n in shown], page.right - left, points)
    places = {
        n: (left + words[n].left, top + (words[n].line + 1) * step, words[n].wide) for n in shown
    }
    bottom = places[shown[-1]][1]
    canvas = page.canvas(page.left, top, page.room, bottom + 1.5 * MM - top)
    taken = [_box(place, MM if n in linked else 0.0) for n, place in places.items()]
    boxes = {n: _box(places[n], MM) for n in linked}
    ends = _ends(links, {n: x + wide / 2 for n, (x, _, wide) in places.items()})
    curves = [
        _curve((start, places[query][1]), (end, places[key][1]), step, taken)
        for (query, key, _), (start, end) in zip(links, ends, strict=True)
    ]
    halo: list[AbstractPathEffect] = [withStroke(linewidth=1.4, foreground=theme().ground)]
    for n in shown:
        (x, y, _), word = places[n], words[n]
        is_crossed = any(one.intersects_bbox(_box(places[n], MM), filled=False) for one in curves)
        look = {"fontstyle": word.slant, "path_effects": halo if is_crossed else [], "zorder": 4}
        page.piece(x, y - 0.76 * points / 72, word.text, points, theme().ink, word.weight, **look)
    for number in sorted({numbers[n] for n in shown} if max(numbers) else ()):
        _, y, _ = places[numbers.index(number)]
        label = f"{number + 1}"
        canvas.text(left - 4.5 * MM, y, label, fontsize=points - 1, color=theme().muted)
    for name, is_second in zip(names, (False, True), strict=True):
        lines = [places[n][1] for n in shown if second is not None and (n >= second) is is_second]
        if lines:
            x, ends_at = left - 5.3 * MM, (lines[0] - _CAP, lines[-1] + 0.6 * MM)
            path = [x, x - 0.8 * MM, x - 0.8 * MM, x], np.repeat(ends_at, 2)
            middle, how = (x - 1.3 * MM, sum(ends_at) / 2), {"ha": "right", "va": "center"}
            draw_bracket(canvas, path, name, middle, fontsize=points - 1, rotation=90, **how)
    largest = max((weight for *_, weight in links), default=1.0)
    for (query, key, weight), curve in reversed([*zip(links, curves, strict=True)]):
        is_claim = (query, key) in claimed
        color = theme().claim if is_claim else colors(0.25 + 0.55 * weight / largest)
        for n, line in ((query, (0, (2, 1))), (key, "solid")):
            rim = Rectangle(boxes[n].p0, *boxes[n].size, facecolor=theme().ground, edgecolor=color)
            rim.set(linestyle=line, linewidth=0.7 if n == query else 1.1, zorder=3)
            canvas.add_patch(rim)
        for tint, extra in ((theme().ground, 2.2), (color, 0.0)):
            look = {"edgecolor": tint, "linewidth": 0.4 + 2.2 * weight + extra, "zorder": 2}
            canvas.add_patch(PathPatch(curve, fill=False, **look))
        (_, turn), (end, tip) = np.asarray(curve.vertices)[[3, -1]].tolist()
        neck = tip + math.copysign(_HEAD, turn - tip)
        head = [(end - 0.8 * MM, neck), (end + 0.8 * MM, neck), (end, tip)]
        canvas.add_patch(Polygon(head, facecolor=color, linewidth=0, zorder=3))
    for query, key, weight in links:
        share, small = f"{weight:.0%}", {"fontsize": points - 1, **face("bold")}
        size = page.ruler.width(share, points - 1, "bold"), 0.76 * (points - 1) / 72
        spot = _free_place(boxes[query], size, taken, curves, (page.left, page.right))
        if spot is not None:
            taken.append(spot)
            color = theme().claim if (query, key) in claimed else theme().muted
            canvas.text(spot.x0, spot.y1, share, color=color, zorder=6, **small)
    return bottom + 3 * MM


def draw_bracket(
    canvas: Axes, path: tuple[ArrayLike, ArrayLike], name: str, place: Place, **look: Any
) -> None:
    """Draw a bracket through some x and y, along a part of a text, and its name at a place."""
    canvas.plot(*path, color=theme().muted, linewidth=0.5)
    slant = "italic" if name == "generated" else "normal"
    canvas.text(*place, name, color=theme().muted, fontstyle=slant, **look)


def _box(place: _Set, around: float) -> Bbox:
    """Return the box of a word, with a margin in inches to its left and right together."""
    x, y, wide = place
    above, below = _CAP + 0.6 * around, 0.8 * MM
    return Bbox.from_extents(x - around / 2, y - above, x + wide + around / 2, y + below)


def _free_place(
    box: Bbox, size: Pair, taken: Sequence[Bbox], curves: Sequence[Path], edges: Pair
) -> Bbox | None:
    """Return a place for a number beside the upper or lower edge of a box; None without one."""
    (wide, high), beside = size, 0.3 * MM
    above, below = box.y0 - beside - high, box.y1 + beside
    before, after, ends, starts = box.x0 - beside - wide, box.x1 + beside, box.x1 - wide, box.x0
    places = [(after, above), *itertools.product((ends, starts), (above, below))]
    for x, y in [*places, (after, below), (before, above), (before, below)]:
        spot = Bbox.from_bounds(x, y, wide, high)
        is_inside = edges[0] <= spot.x0 and spot.x1 <= edges[1]
        near = spot.padded(0.5 * MM)
        crossed = any(curve.intersects_bbox(near, filled=False) for curve in curves)
        if is_inside and not crossed and not spot.padded(0.2 * MM).count_overlaps(taken):
            return spot
    return None


def _curve(query: Place, key: Place, step: float, words: Sequence[Bbox]) -> Path:
    """Return an arrow between boxes that crosses lines upright, at the end with fewer words."""
    above, below = _CAP + 0.6 * MM, -0.8 * MM
    (start, tail), (end, tip) = query, key
    apart = tip - tail
    tail, tip = tail - (below if apart > 0 else above), tip - (below if apart < 0 else above)
    crossed = math.copysign(max(abs(apart) - step, 0.0), apart)

    def bent(first: float, last: float) -> Path:
        bend = 0.55 * (last - first) if apart else -0.45 * step
        turn = last - (bend if apart else -bend)
        curve = [(start, first), (start, first + bend), (end, turn), (end, last)]
        places, ends = [(start, tail), *curve, (end, tip)], [Path.LINETO]
        return Path(places, [Path.MOVETO, Path.LINETO, *_CURVE[1:], *ends])

    curves = bent(tail + crossed, tip), bent(tail, tip - crossed)
    return min(curves, key=lambda one: sum(one.intersects_bbox(box, filled=False) for box in words))


# --- in lines


def find_blanks(words: Iterable[Word], source: Provenance) -> None:
    """Find the blanks and line breaks before each word in the text, and what the model wrote."""
    prompt, wrote = source.text or "", source.generated
    texts = f"{prompt} {wrote}" if wrote else prompt, source.pair, source.target
    whole, words, end, is_lost = "\n".join(filter(None, texts)), [*words], 0, True
    places = place_words([word.text for word in words], whole)
    for word, place in zip(words, places, strict=True):
        if place is not None:
            between = whole[end : place.start]
            word.blank = between[len(between.rstrip()) :] or " " * is_lost
            word.is_written = bool(wrote) and place.start >= len(prompt)
            end, is_lost = place.stop, False
        else:
            word.blank, is_lost = " " * (word.text[:1] != "·"), True


def _set_lines(ruler: Ruler, words: Sequence[Word], room: float, points: float = _SIZE) -> None:
    """Set words in lines, as they are read; scripts from right to left begin at the right."""
    blank = ruler.advance(" ", points)
    for word in words:
        word.text = ruler.squeeze(literal(word.text, 60), room - 2 * _BESIDE, points)
        word.wide = ruler.advance(word.text, points, word.weight)
    pairs = [*itertools.pairwise([Word(""), *words])]
    may_break = [b.blank or (is_word(a.text) and is_word(b.text)) for a, b in pairs]
    line, x, indent = 0, 0.0, 0.0
    for n, (before, word) in enumerate(pairs):
        if n and "\n" in word.blank:
            line += min(word.blank.count("\n"), 2)
            tail = word.blank.rpartition("\n")[2].expandtabs(4)
            x = indent = min(1.5 * blank * len(tail), room / 3)
        elif x > indent:
            x += blank * bool(word.blank) + _BESIDE * (before.is_boxed or word.is_boxed)
        after = next((m for m in range(n + 1, len(words)) if may_break[m]), len(words))
        unit = sum(one.wide for one in words[n : after if may_break[n] else n + 1])
        if x > indent and x + unit > room:
            line, x = line + 1, indent
        word.line, word.left = line, x
        x += word.wide
    from_right = is_right_to_left("".join(word.text for word in words))

    def turned(word: Word) -> tuple[int, bool]:  # in the other direction than the text
        return word.line, is_word(word.text) and is_right_to_left(word.text) != from_right

    for (_, is_turned), run in itertools.groupby(words, turned):
        group = [*run]
        ends = group[0].left + group[-1].left + group[-1].wide
        for word in group:
            word.left = ends - word.left - word.wide if is_turned else word.left
            word.left = room - word.left - word.wide if from_right else word.left


def _shorten(words: Sequence[Word], most: int) -> list[Word]:
    """Return the words of some lines at most, those that say most, and "…" for the others."""
    lines = {line: [*group] for line, group in itertools.groupby(words, lambda one: one.line)}
    kept = sorted(lines, key=lambda line: sum(word.value for word in lines[line]))[-most:]
    shown: list[Word] = []
    for is_kept, group in itertools.groupby(lines, kept.__contains__):
        for one in [lines[line] for line in group] if is_kept else [[Word("…", is_gray=True)]]:
            line = shown[-1].line + 1 if shown else 0
            shown += [replace(word, line=line) for word in one]
    return shown


def draw_words(page: Page, words: Sequence[Word], top: float, most: int | None = None) -> float:
    """Write words on their colors, in some lines at most; return the lower edge."""
    _set_lines(page.ruler, words, page.room)
    if most is not None and words[-1].line >= most:
        words = _shorten(words, most)
    tall, em = (words[-1].line + 1) * _LINE, _SIZE / 72
    canvas = page.canvas(page.left, top, page.room, tall)
    for word, after in itertools.pairwise([*words, Word("")]):
        left, base = page.left + word.left, top + word.line * _LINE + 1.2 * em
        pad = 0.5 * MM if word.is_boxed else _PAD * bool(word.blank and after.blank)
        box = (left - pad, base - em), (word.wide + 2 * pad, 1.34 * em)
        if word.fill is not None:
            fill = Rectangle(box[0], *box[1], facecolor=word.fill, linewidth=0, zorder=0)
            canvas.add_patch(fill).set_clip_on(False)
        if word.is_boxed:
            drawn = frame(canvas, *box, theme().claim if word.is_claimed else theme().ink)
            drawn.set_linestyle("solid" if word.is_claimed else (0, (2.2, 1.4)))
        look = word.text, _SIZE, _readable(word), word.weight
        page.piece(left, base - 0.76 * em, *look, fontstyle=word.slant)
    return top + tall


def _readable(word: Word) -> str:
    """Return the first of some colors that has contrast to that behind a word."""
    colors = [theme().muted] * word.is_gray + [theme().ink, "white", "black"]
    fill = theme().ground if word.fill is None else word.fill
    rgb = np.array([to_rgb(one) for one in (fill, *colors)])
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    behind, *light = linear @ style.LUMINANCE + 0.05
    known = zip(colors, light, strict=True)
    return next(one for one, on in known if max(on, behind) >= _READABLE * min(on, behind))
