"""One head taken apart, as a page: from X through Q, K, V, scores and weights to the output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from attnviz.analyses.steps.attention_vector import draw_unfolding, take
from attnviz.analyses.steps.result import Stage, StepsResult
from attnviz.errors import InputError
from attnviz.figures import caption
from attnviz.figures.cells import (
    NUMBER_SIZE,
    decimals,
    draw_cells,
    frame,
    number,
    range_of,
    write_numbers,
)
from attnviz.figures.formulas import as_math, power
from attnviz.figures.layout import (
    SMALLEST,
    Page,
    Ruler,
    colour_bar,
    line_height,
    range_bar,
)
from attnviz.figures.style import (
    ALARM,
    FULL_WIDTH,
    MM,
    MUTED,
    SMALL_SIZE,
    TEXT_SIZE,
    style,
    value_colours,
    weight_colours,
)
from attnviz.figures.ticks import Ticks, fit_ticks
from attnviz.results import AttentionResult
from attnviz.results.labels import literal, selection, source

_MARGIN, _GAP, _BETWEEN = 0.06, 0.3, 0.14  # inches: around, between panels, and between lines
_BAR = 0.6  # inches that a colour bar takes with its numbers and its label
_ROW, _TALLEST = 0.14, 1.6  # inches of a row of features, and of all rows of a panel
_CELL = 0.26  # inches of a score's cell at most
_WRITTEN_CELL, _LINED_CELL = (
    0.15,
    0.08,
)  # inches of a cell with room for a number, and a rim
_SHOWN = 0.99  # of the features, whose colours can be told apart
_HEAD = 4 * line_height(SMALL_SIZE) + 0.06  # inches above a panel: name, formula, shape, proof
_LONGEST = 0.6  # inches of a token's label at most
_NARROW = 5.0  # inches of a figure below which X takes a line of its own
_NARROWEST = 80.0  # mm
_FORK = 0.12  # inches from X, Q, K and V down to the line that joins them
_FROM_X = ("C", "Q", "K", "V")  # what does not follow from the panel on its left
_MANY, _WIDER = 128, 1.9  # features from which on a panel is wider, and how much
_TITLES = {
    "X": "Input X", "C": "Other sequence C", "Q": "Queries Q", "K": "Keys K", "V": "Values V",
    "scores": "Scores", "scaled scores": "Scaled scores", "full scores": "Full scores",
    "weights": "Weights", "A": "Attention vectors A", "heads": "All heads, side by side",
    "output": "Output",
}  # fmt: skip


def steps(
    result: AttentionResult | StepsResult,
    *,
    layer: int | None = None,
    head: int | None = None,
    word: str | int | None = None,
    width: float = FULL_WIDTH,
) -> Figure:
    """Draw one head's way from X through Q, K, V, scores and weights to the output.

    Every stage carries its formula, its shape and how far it is from the model's own.

    Parameters
    ----------
    result : from `attend`; or one head that is already taken apart (`make_steps`).
    layer, head, word : which head, and which word to follow through it; chosen where left out, as
        in `make_steps`.
    width : of the figure, in mm: 89 is one column of a journal, 183 two.

    Raises
    ------
    InputError : no such layer, head or word.
    """
    taken = take(result, layer, head, word)
    texts = [*taken.queries, *taken.keys, source(taken.provenance)]
    if not width >= _NARROWEST:
        raise InputError(
            f"Expected a width of {_NARROWEST:g} mm or more for all stages, got {width:g}. "
            "A column of a journal is 89 mm wide."
        )
    with style(texts):
        page = Page(width * MM)
        ruler, place = Ruler(), (_MARGIN, width * MM - _MARGIN)
        where = selection(taken.stack, taken.layer, (taken.head,))
        title = f"{where}, step by step"
        top = page.title(_MARGIN, _MARGIN, title, place[1] - place[0]) + 0.06
        for names in _lines(taken, wide=width * MM >= _NARROW):
            if names:
                top = _line(page, ruler, taken, names, place, top) + _BETWEEN
            else:
                top = draw_unfolding(page, taken, place, top) + _BETWEEN
        end = caption.write_caption(page, place, top, _said(taken), taken.agreement)
        return page.finish(end + _MARGIN)


def _said(taken: StepsResult) -> list[str]:
    framed = f"rows are tokens; framed is the row of “{literal(taken.word)}”"
    if taken.heads > 1:
        framed += f", and among the heads side by side what head {taken.head} adds"
    return [
        source(taken.provenance),
        *taken.notes,
        framed,
        "the range of features is that of 99% of them, the range of scores that of all",
        "“agrees to” is the largest difference from the model's own",
        "the share of a key is what it adds along the attention vector (α v · a / a · a)",
    ]


def _lines(taken: StepsResult, *, wide: bool) -> list[tuple[str, ...]]:
    """Return which stages stand side by side, from top to bottom; nothing where a word unfolds."""
    inputs = tuple(name for name in ("X", "C") if name in taken)
    projected = ("Q", "K", "V")
    first = [(*inputs, *projected)] if wide and len(inputs) < 2 else [inputs, projected]
    scored = tuple(stage.name for stage in taken.stages if stage.over_keys)
    last = tuple(name for name in ("A", "heads", "output") if name in taken)
    ends = [last] if wide else [(name,) for name in last]
    squares = [scored] if wide or len(scored) < 4 else [scored[:2], scored[2:]]
    return [*(names for names in first if names), *squares, (), *ends]


@dataclass(frozen=True)
class _Panel:
    """One stage and where it stands: inches, and its row labels unless its neighbour has them."""

    stage: Stage
    left: float
    across: float
    down: float
    labels: Ticks | None

    @property
    def columns(self) -> int:
        return self.stage.values.shape[1]

    @property
    def high(self) -> float:
        return self.down * len(self.stage.values)

    @cached_property
    def norm(self) -> Normalize:
        """Where its colours begin and end."""
        values = self.stage.values
        if self.stage.name == "weights":
            return Normalize(0.0, max(float(values.max()), 1e-12))
        end = range_of(values, 1.0 if self.stage.over_keys else _SHOWN)
        return Normalize(-end, end)


def _line(
    page: Page,
    ruler: Ruler,
    taken: StepsResult,
    names: Sequence[str],
    place: tuple[float, float],
    top: float,
) -> float:
    """Draw some stages side by side, with a colour bar after the last; return where they end."""
    panels = _panels(ruler, taken, [taken[name] for name in names], place)
    bottom = top
    for before, panel in zip((None, *panels), panels, strict=False):
        if before is not None and panel.stage.name not in _FROM_X:
            middle = top + _HEAD + panel.high / 2
            start = before.left + before.across + 0.06
            page.arrow((start, middle), (start + _GAP - 0.12, middle))
        _head(page, ruler, panel, top)
        bottom = max(bottom, _draw(page, ruler, taken, panel, top + _HEAD))
    if panels[0].stage.name == "X" and len(panels) > 1:
        bottom = _fork(page, panels, bottom)
    last = panels[-1]
    bar = page.axes(last.left + last.across + 0.1, top + _HEAD, 0.08, min(last.high, 0.9))
    if last.stage.name == "weights":
        colour_bar(ScalarMappable(last.norm, weight_colours()), bar, "weight")
    else:
        range_bar(bar)
    return bottom


def _fork(page: Page, panels: Sequence[_Panel], bottom: float) -> float:
    """Lead from X to each of Q, K and V, below them; return where that ends."""
    below = bottom + _FORK
    middles = [panel.left + panel.across / 2 for panel in panels]
    page.line([(middles[0], bottom + 0.02), (middles[0], below), (middles[-1], below)])
    for middle in middles[1:]:
        page.arrow((middle, below), (middle, bottom + 0.02))
    return below


def _panels(
    ruler: Ruler, taken: StepsResult, stages: Sequence[Stage], place: tuple[float, float]
) -> list[_Panel]:
    """Give each stage its place: those of all heads are wider, squares have square cells."""
    rows = max(len(stage.values) for stage in stages)
    square = stages[0].over_keys
    down = min(_ROW, _TALLEST / rows)
    sides = [taken.queries if stage.rows == "query" else taken.keys for stage in stages]
    labels = [
        None
        if before == own
        else fit_ticks(own, down, ruler, axis="y", longest=_LONGEST, named=taken.row)
        for before, own in zip((None, *sides), sides, strict=False)
    ]
    taking = sum(each.room for each in labels if each) + _GAP * (len(stages) - 1) + _BAR
    shares = [_WIDER if stage.values.shape[1] > _MANY else 1.0 for stage in stages]
    unit = (place[1] - place[0] - taking) / sum(shares)
    if square:
        n = len(taken.keys)
        unit = min(_CELL * n, unit)
        down = max(unit / n, min(_ROW, _TALLEST / rows))
    panels: list[_Panel] = []
    left = place[0]
    for stage, share, each in zip(stages, shares, labels, strict=True):
        left += 0.0 if each is None else each.room
        panels.append(_Panel(stage, left, unit * share, down, each))
        left += unit * share + _GAP
    return panels


def _head(page: Page, ruler: Ruler, panel: _Panel, top: float) -> None:
    """Write name, formula and shape above a panel, and how far it is from the model's own."""
    stage, left, room = panel.stage, panel.left, panel.across + _GAP - 0.05
    title = ruler.clip(_TITLES[stage.name], room, TEXT_SIZE)
    top = page.write(left, top, [title], points=TEXT_SIZE, weight="bold")
    size = stage.size
    if stage.name != "weights":  # whose colour bar tells
        end = f"± {panel.norm.vmax:.2g}"
        size = ruler.longest((f"{size}, range {end}", f"{size}, {end}", size), room, SMALL_SIZE)
    if stage.why_not == "given":
        page.write(left, top, [size], color=MUTED)
        return
    formula, points = as_math(stage.formula), SMALL_SIZE
    while points > SMALLEST and ruler.width(formula, points, math=True) > room:
        points -= 0.5
    fits = ruler.width(formula, points, math=True) <= room
    shown = formula if fits else ruler.clip(stage.formula, room, points)
    page.write(left, top, [shown], points=points, color=MUTED, math=fits)
    top = page.write(left, top + line_height(SMALL_SIZE) + 0.01, [size], color=MUTED)
    if stage.difference is None:
        page.write(left, top, ["not compared"], color=MUTED)
    elif stage.passed:
        page.write(left, top, [f"agrees to {power(stage.difference)}"], color=MUTED)
    else:
        page.write(left, top, [f"DIFFERS by {power(stage.difference)}"], color=ALARM)


def _draw(page: Page, ruler: Ruler, taken: StepsResult, panel: _Panel, top: float) -> float:
    """Draw the numbers of a panel with its labels and frames; return where it ends."""
    stage, n = panel.stage, panel.columns
    ax = page.axes(panel.left, top, panel.across, panel.high)
    lines = stage.over_keys and min(panel.across / n, panel.down) >= _LINED_CELL
    colours = weight_colours() if stage.name == "weights" else value_colours()
    mesh = draw_cells(ax, stage.values, colours, panel.norm, lines=lines)
    if panel.labels is not None:
        panel.labels.apply(ax, "y")
    end = top + panel.high
    if stage.over_keys:
        cell = panel.across / n
        ticks = fit_ticks(taken.keys, cell, ruler, axis="x", longest=_LONGEST)
        ticks.apply(ax, "x")
        end += ticks.room
        say = decimals if stage.name == "weights" else number
        if min(cell, panel.down) >= _WRITTEN_CELL:
            said = [say(value) for value in stage.values.flatten().tolist()]
            if ruler.widest(said, NUMBER_SIZE) <= 0.95 * cell:
                write_numbers(ax, mesh, stage.values, say)
    if stage.rows == "query":
        frame(ax, (0, taken.row), (n, 1))
    if stage.part is not None and stage.part != (0, n):
        start, stop = stage.part
        frame(ax, (start, 0), (stop - start, len(stage.values)))
    return end
