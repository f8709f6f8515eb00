"""Draw one head stage by stage: from X through Q, K, V, scores and weights to the output."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure, SubFigure
from torch import Tensor

from attnviz.analyses.steps.compute import steps as compute_steps
from attnviz.analyses.steps.result import Stage, StepsResult
from attnviz.errors import refuse_given
from attnviz.figures import cells, figure, style
from attnviz.figures.claims import quoted, were_read
from attnviz.figures.layout import CaptionLength, Page, color_bar, line_height, new_page, range_bar
from attnviz.figures.style import FULL_WIDTH, SMALL_SIZE, TEXT_SIZE, as_math, power, theme
from attnviz.results import AttentionResult
from attnviz.results.text import literal, selection, source, with_minus

_GAP, _BETWEEN = 0.3, 0.14  # inches between panels, and between rows of panels
_ROW, _TALLEST = 0.14, 1.6  # inches of a row of features, and of all rows of a panel
_WRITTEN_CELL, _LINED_CELL = 0.15, 0.08  # inches of a cell with room for a number, and an edge
_SHOWN = 0.99  # share of the values within the range of colors
_HEADER = 4 * line_height(SMALL_SIZE) + 0.06  # inches above a panel: name, formula, shape, proof
_LONGEST = 0.6  # inches of a token's label at most
_NARROWEST = 80.0  # mm
_MANY, _WIDER = 128, 1.9  # panels with more features are wider, by this factor
_VECTOR_ROW = 0.15  # inches of a row of the attention vector
_VECTOR_ROWS = 12  # at most; the keys with the smallest weights share the last row
_VECTOR_LABEL = 0.8  # inches of a token's label at most
_NUMBER_ROOM = 0.3  # inches for a weight, and for a share
_TITLES = {
    "X": "Input X", "C": "Other sequence C", "Q": "Queries Q", "K": "Keys K", "V": "Values V",
    "scores": "Scores", "scaled scores": "Scaled scores", "full scores": "Full scores",
    "weights": "Weights", "A": "Attention vectors A", "heads": "All heads, side by side",
    "output": "Output",
}  # fmt: skip
_SIGNED_TITLES = {"V": "Values V", "weights": "Matrix M", "A": "Outputs y"}


@figure
def steps(
    result: AttentionResult | StepsResult,
    *,
    layer: int | None = None,
    head: int | None = None,
    word: str | int | None = None,
    width: float = FULL_WIDTH,
    caption: CaptionLength = "short",
    figure: Figure | SubFigure | None = None,
) -> Figure:
    """Draw one head stage by stage, from X through Q, K, V, scores and weights to the output.

    Of linear attention, from the arguments of the model's function and V through M to M V. Every
    stage shows its formula, its shape and its difference from the model's own numbers.

    Parameters
    ----------
    result : AttentionResult or StepsResult
        From `attend`, or from `attnviz.steps`.
    layer, head, word
        As in `attnviz.steps`.

    Raises
    ------
    InputError
        The layer, head or word does not exist, or the width is below 80 mm.

    Examples
    --------
    >>> import attnviz
    >>> result = attnviz.attend("the train left the station")
    >>> figure = attnviz.plot.steps(result, layer=5, head=3, word="train")
    """
    result = _as_steps(result, layer=layer, head=head, word=word)
    texts = [*result.queries, *result.keys, source(result.provenance)]
    with new_page(width, caption, texts, figure, narrowest=_NARROWEST) as page:
        top, claimed = _draw_heading(page, result)
        for names in _rows_of_stages(result, wide=page.width >= style.WIDE):
            if names:
                top = _draw_row(page, result, [result[name] for name in names], top) + _BETWEEN
            else:
                top = _draw_vector(page, result, top, claimed) + _BETWEEN
        framed = f"rows are tokens; framed is the row of {quoted(result.word)}"
        if result.heads > 1:
            framed += f", and among the heads side by side what head {result.head} adds"
        parts = [
            source(result.provenance),
            *result.notes,
            framed,
            "the range of features is that of 99% of them, the range of scores that of all",
            "“agrees to” is the largest difference from the model's own",
            "the share of a key is what it adds along the attention vector (α v · a / a · a)",
        ]
        return page.finish(top, parts, result.checked_agreement)


@figure
def attention_vector(
    result: AttentionResult | StepsResult,
    *,
    layer: int | None = None,
    head: int | None = None,
    word: str | int | None = None,
    width: float = FULL_WIDTH,
    caption: CaptionLength = "short",
    figure: Figure | SubFigure | None = None,
) -> Figure:
    """Draw the attention vector of one word as a sum over keys: a = Σ_j α_j v_j.

    Beside each key stands its share of the vector, α_j v_j · a / a · a. A large weight on a small
    value adds little.

    Parameters
    ----------
    result : AttentionResult or StepsResult
        From `attend`, or from `attnviz.steps`.
    layer, head, word
        As in `attnviz.steps`.

    Raises
    ------
    InputError
        The layer, head or word does not exist, or the width is below 80 mm.

    Examples
    --------
    >>> import attnviz
    >>> result = attnviz.attend("the train left the station")
    >>> figure = attnviz.plot.attention_vector(result, layer=5, head=3, word="train")
    """
    result = _as_steps(result, layer=layer, head=head, word=word)
    texts = [*result.keys, result.word, source(result.provenance)]
    with new_page(width, caption, texts, figure, narrowest=_NARROWEST) as page:
        end = _draw_vector(page, result, *_draw_heading(page, result))
        parts = [
            source(result.provenance),
            *result.notes,
            "every key adds its value, times its weight; columns are features",
            "the share of a key is what it adds along the sum (α v · a / a · a)",
            "the range of the values is that of 99% of them",
        ]
        return page.finish(end + _BETWEEN, parts, result.checked_agreement)


def _draw_heading(page: Page, result: StepsResult) -> tuple[float, float | None]:
    """Write which key contributes most, and the head; return the lower edge and its share."""
    where = selection(result.stack, (result.layer,), (result.head,))
    key = int(result.shares.argmax())
    are_known = were_read(result.side("query"), result.row) and were_read(result.side("key"), key)
    if not result.shares.isfinite().all() or not are_known:
        return page.heading(where) + 0.06, None
    weights = result["weights"].values
    weight = float(weights[result.row, key])
    written = _signed_number(cells.range_of(weights), weight) if result.signed else f"{weight:.2f}"
    top = page.heading(
        f"{quoted(result.keys[key])} contributes {result.shares[key]:.0%} of the attention vector "
        f"of {quoted(result.word)}, with a weight of {written}"
    )
    return page.subheading(top, where) + 0.06, float(result.shares[key])


def _signed_number(end: float, value: float) -> str:
    """Return a signed weight in few letters. end : the largest size beside it."""
    if value == 0:
        return "0"
    text = f"{value:.1f}" if end >= 1 else f"{value:.2f}" if end >= 0.1 else f"{value:.0e}"
    return f"\N{MINUS SIGN}{text[1:]}" if value < 0 else text


def _as_steps(result: AttentionResult | StepsResult, **chosen: Any) -> StepsResult:
    """Return the stages of the chosen head; a StepsResult as it is."""
    if not isinstance(result, StepsResult):
        return compute_steps(result, **chosen)
    why = "the stages are already computed. Give it to attnviz.steps, not to the figure."
    refuse_given(why, **chosen)
    return result


def _rows_of_stages(result: StepsResult, *, wide: bool) -> list[tuple[str, ...]]:
    """Return the stages in each row of panels; an empty row is the attention vector."""
    inputs = tuple(name for name in ("X", "C") if name in result)
    projected = ("Q", "K", "V")
    if result.signed:
        names = [stage.name for stage in result if not stage.over_keys and stage.name != "A"]
        count = math.ceil(len(names) / (4 if wide else 2))
        step = math.ceil(len(names) / count)
        rows = [tuple(names[start : start + step]) for start in range(0, len(names), step)]
        return [*rows, ("weights", "A"), ()] if wide else [*rows, ("weights",), (), ("A",)]
    first = [(*inputs, *projected)] if wide and len(inputs) < 2 else [inputs, projected]
    scored = tuple(stage.name for stage in result.stages if stage.over_keys)
    last = tuple(name for name in ("A", "heads", "output") if name in result)
    ends = [last] if wide else [(name,) for name in last]
    squares = [scored] if wide or len(scored) < 4 else [scored[:2], scored[2:]]
    return [*(names for names in first if names), *squares, (), *ends]


@dataclass(frozen=True)
class _Panel:
    """One stage and its place in inches; without labels where its neighbor has the same."""

    stage: Stage
    left: float
    across: float
    down: float
    labels: cells.Ticks | None
    signed: bool

    @property
    def is_weights(self) -> bool:
        """Whether it has weights that are at least 0."""
        return self.stage.name == "weights" and not self.signed

    @property
    def high(self) -> float:
        return self.down * len(self.stage.values)

    @cached_property
    def norm(self) -> Normalize:
        values = self.stage.values
        if self.is_weights:
            return Normalize(0.0, max(float(values.max()), 1e-12))
        end = cells.range_of(values, 1.0 if self.stage.over_keys else _SHOWN)
        return Normalize(-end, end)


def _draw_row(page: Page, result: StepsResult, stages: Sequence[Stage], top: float) -> float:
    """Draw a row of panels with a color bar after the last; return its lower edge."""
    panels = _panels(page, result, stages)
    bottom = top
    for before, panel in zip((None, *panels), panels, strict=False):
        name = panel.stage.name
        follows = name == "A" if panel.signed else name not in ("C", "Q", "K", "V")
        if before is not None and follows:
            middle = top + _HEADER + panel.high / 2
            start = before.left + before.across + 0.06
            page.line((start, middle), (start + _GAP - 0.12, middle), arrow=True)
        _draw_header(page, panel, top)
        bottom = max(bottom, _draw_panel(page, result, panel, top + _HEADER))
    if panels[0].stage.name == "X" and len(panels) > 1:
        # Arrows from X to Q, K and V, below them.
        upper, bottom = bottom + 0.02, bottom + 0.12
        middles = [panel.left + panel.across / 2 for panel in panels]
        page.line((middles[0], upper), (middles[0], bottom), (middles[-1], bottom))
        for middle in middles[1:]:
            page.line((middle, bottom), (middle, upper), arrow=True)
    last = panels[-1]
    left = last.left + last.across + style.BAR_GAP
    bar = page.bar(left, top + _HEADER, min(last.high, 0.9))
    if last.is_weights:
        color_bar(ScalarMappable(last.norm, theme().weights), bar, "weight")
    else:
        range_bar(bar)
    return bottom


def _panels(page: Page, result: StepsResult, stages: Sequence[Stage]) -> list[_Panel]:
    """Place each stage: those of all heads are wider, maps have square cells."""
    down = min(_ROW, _TALLEST / max(len(stage.values) for stage in stages))
    ticks: list[cells.Ticks | None] = []
    before = None
    for stage in stages:
        labels = result.queries if stage.rows == "query" else result.keys
        fitted = cells.fit_ticks(
            labels, down, page.ruler, axis="y", side=result.side(stage.rows), longest=_LONGEST,
            named=result.row,
        )  # fmt: skip
        ticks.append(fitted if labels != before else None)
        before = labels
    used = sum(tick.room for tick in ticks if tick) + _GAP * (len(stages) - 1) + style.BAR_ROOM
    shares = [_WIDER if stage.values.shape[1] > _MANY else 1.0 for stage in stages]
    unit = (page.room - used) / sum(shares)
    if stages[0].over_keys:
        n = len(result.keys)
        unit = min(0.26 * n, unit)
        down = max(unit / n, down)
    panels: list[_Panel] = []
    left = page.left
    for stage, share, tick in zip(stages, shares, ticks, strict=True):
        left += tick.room if tick else 0.0
        panels.append(_Panel(stage, left, unit * share, down, tick, result.signed))
        left += unit * share + _GAP
    return panels


def _draw_header(page: Page, panel: _Panel, top: float) -> None:
    ruler, stage, left, room = page.ruler, panel.stage, panel.left, panel.across + _GAP - 0.05
    name = (_SIGNED_TITLES if panel.signed else _TITLES).get(stage.name, stage.name)
    title = ruler.clip(literal(name), room, TEXT_SIZE)
    top = page.write(left, top, [title], points=TEXT_SIZE, weight="bold")
    size = stage.size
    if not panel.is_weights:  # they have a color bar
        end = f"± {panel.norm.vmax:.2g}"
        size = ruler.longest((f"{size}, range {end}", f"{size}, {end}", size), room, SMALL_SIZE)
    if stage.why_not == "given":
        page.write(left, top, [size], color=theme().muted)
        return
    formula, points = as_math(stage.formula), SMALL_SIZE
    while points > style.SMALLEST_SIZE and ruler.width(formula, points, math=True) > room:
        points -= 0.5
    fits = ruler.width(formula, points, math=True) <= room
    shown = formula if fits else ruler.clip(stage.formula, room, points)
    page.write(left, top, [shown], points=points, color=theme().muted, math=fits)
    top = page.write(left, top + line_height(SMALL_SIZE) + 0.01, [size], color=theme().muted)
    verdict, is_wrong = "not compared", stage.difference is not None and not stage.passed
    if stage.difference is not None:
        verdict = f"{'DIFFERS by' if is_wrong else 'agrees to'} {power(stage.difference)}"
    page.write(left, top, [verdict], color=theme().alarm if is_wrong else theme().muted)


def _draw_panel(page: Page, result: StepsResult, panel: _Panel, top: float) -> float:
    stage = panel.stage
    n = stage.values.shape[1]
    ax, cell = page.axes(panel.left, top, panel.across, panel.high), panel.across / n
    lines = stage.over_keys and min(cell, panel.down) >= _LINED_CELL
    colors = theme().weights if panel.is_weights else theme().values
    mesh = cells.draw_cells(ax, stage.values, colors, panel.norm, lines=lines)
    if panel.labels is not None:
        panel.labels.apply(ax, "y")
    end = top + panel.high
    if stage.over_keys:
        side = result.side("key")
        fit = cells.fit_ticks(result.keys, cell, page.ruler, axis="x", side=side, longest=_LONGEST)
        fit.apply(ax, "x")
        end += fit.room
        say = cells.decimals if panel.is_weights else cells.number
        if panel.signed:
            say = partial(_signed_number, cells.range_of(stage.values))
        if min(cell, panel.down) >= _WRITTEN_CELL:
            numbers = [say(value) for value in stage.values.flatten().tolist()]
            if page.ruler.widest(numbers, style.NUMBER_SIZE) <= 0.95 * cell:
                cells.write_numbers(ax, mesh, stage.values, say)
    if stage.rows == "query":
        cells.frame(ax, (0, result.row), (n, 1))
    if stage.part is not None and stage.part != (0, n):
        start, stop = stage.part
        cells.frame(ax, (start, 0), (stop - start, len(stage.values)))
    return end


def _draw_vector(page: Page, result: StepsResult, top: float, claimed: float | None) -> float:
    """Draw weight × value for every key, and their sum below; return the lower edge."""
    ruler, left, right = page.ruler, page.left, page.right
    labels, weights, values, products, shares = _vector_rows(result)
    unknown = tuple(label in result.side("key").unknown for label in labels)
    labels = [ruler.clip(literal(label), _VECTOR_LABEL, TEXT_SIZE) for label in labels]
    indent = ruler.widest(labels, TEXT_SIZE) + 0.08
    room = right - left - indent - 2 * _NUMBER_ROOM - 3 * _BETWEEN - style.BAR_ROOM
    bars, strips = room * 0.2, room * 0.4
    top = page.write(left, top, ["Attention vector a"], points=TEXT_SIZE, weight="bold")
    subtitle = f"of {quoted(result.word)}: every value times its weight, added up"
    top = page.paragraph(left, top, subtitle, right - left) + 0.04
    at_bars = left + indent
    at_values = at_bars + bars + _NUMBER_ROOM + _BETWEEN
    at_products = at_values + strips + _BETWEEN
    at_shares = at_products + strips + _BETWEEN / 2
    total = products.sum(0, keepdim=True)
    largest = max(cells.range_of(products), cells.range_of(total))
    shown = cells.range_of(values, _SHOWN)
    page.write(at_bars, top, [f"weight {as_math('α_j')}"], color=theme().muted, math=True)
    for x, name, end in ((at_values, "v_j", shown), (at_products, "α_j v_j", largest)):
        header = f"{as_math(name)}, range ± {end:.2g}"
        if ruler.width(header, SMALL_SIZE, math=True) > strips:
            header = header.replace("range ", "")
        page.write(x, top, [header], color=theme().muted, math=True)
    page.write(at_shares, top, ["share"], color=theme().muted)
    top += line_height(SMALL_SIZE) + 0.04

    high = _VECTOR_ROW * len(labels)
    ax = page.axes(at_bars, top, bars, high)
    middles = tuple(row + 0.5 for row in range(len(labels)))
    plain: dict[str, Any] = {"color": theme().muted}
    bold = {"color": theme().claim, "weight": "bold"}
    looks = [bold if share == claimed else plain for share in shares.tolist()]
    colors = [theme().claim if look is bold else theme().cycle[0] for look in looks]
    ax.barh(list(middles), weights.tolist(), height=0.7, color=colors)
    ends = min(float(weights.min()), 0.0), max(float(weights.max()), 1e-12)
    ax.set(xlim=ends, ylim=(len(labels), 0), xticks=[])
    cells.Ticks(tuple(labels), middles, TEXT_SIZE, False, 0, indent, unknown=unknown).apply(ax, "y")
    ax.spines[:].set_visible(False)
    say = partial(_signed_number, cells.range_of(weights)) if result.signed else cells.decimals
    for y, w, look in zip(middles, weights.tolist(), looks, strict=True):
        ax.text(max(w, 0.0), y, f" {say(w)}", va="center_baseline", size=SMALL_SIZE, **look)
    cells.draw_values(page.axes(at_values, top, strips, high), values, shown)
    range_bar(page.bar(right - style.BAR_ROOM + style.BAR_GAP, top, min(high, 0.9)))
    cells.draw_values(ax := page.axes(at_products, top, strips, high), products, largest)
    for row, (share, look) in enumerate(zip(shares.tolist(), looks, strict=True)):
        if look is bold:
            cells.frame(ax, (0, row), (products.shape[1], 1))
        y, percent = top + (row + 0.5) * _VECTOR_ROW, with_minus(f"{round(100 * share)}%")
        page.write(at_shares, y, [percent], va="center_baseline", **look)
    top += high + 0.06
    cells.draw_values(page.axes(at_products, top, strips, _VECTOR_ROW), total, largest)
    formula = [as_math("a = Σ_j α_j v_j")]
    middle = top + _VECTOR_ROW / 2
    page.write(at_products - 0.06, middle, formula, align="right", va="center_baseline", math=True)
    page.write(at_shares, middle, ["100%"], va="center_baseline", **plain)
    return top + _VECTOR_ROW


def _vector_rows(result: StepsResult) -> tuple[list[str], Tensor, Tensor, Tensor, Tensor]:
    """Return labels, weights, values, α_j v_j and shares; small weights share the last row."""
    weights, values = result["weights"].values[result.row], result["V"].values
    products, shares = result.contributions, result.shares
    if len(weights) <= _VECTOR_ROWS:
        return list(result.keys), weights, values, products, shares
    largest_keys = weights.abs().topk(_VECTOR_ROWS - 1).indices.sort().values
    rest = torch.ones(len(weights), dtype=torch.bool, device="cpu")
    rest[largest_keys] = False
    labels = [*(result.keys[i] for i in largest_keys), f"{int(rest.sum())} others"]
    mean = values[rest].mean(0)
    if not result.signed:  # signed weights may sum to 0
        mean = products[rest].sum(0) / weights[rest].sum().clamp(min=1e-300)
    values = torch.cat([values[largest_keys], mean.unsqueeze(0)])
    weights, products, shares = (
        torch.cat([rows[largest_keys], rows[rest].sum(0, keepdim=True)])
        for rows in (weights, products, shares)
    )
    return labels, weights, values, products, shares
