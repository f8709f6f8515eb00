"""Draw what moved a word: by source word, by layer and by head, beside interventions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure

from attnviz.analyses.shift.result import ShiftResult
from attnviz.figures import caption
from attnviz.figures.cells import draw_values, range_of
from attnviz.figures.layout import Page, Ruler, color_bar
from attnviz.figures.style import (
    ACCENT,
    AXIS_ROOM,
    BAR_GAP,
    BAR_ROOM,
    BAR_WIDTH,
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
    power,
    style,
    value_colors,
)
from attnviz.figures.ticks import Ticks, fit_ticks
from attnviz.results.words import literal, source

MARKERS = {"mask": "o", "replace": "s", "knock-out": "^", "delete": "D"}
SIGNS = {"mask": "○", "replace": "□", "knock-out": "△", "delete": "◇"}
_LINED = 60  # words between which a map has lines
VALUE, ROUTING = CYCLE[3], CYCLE[2]


def draw_credit(ax: Axes, result: ShiftResult) -> None:
    """Draw the contribution of each word as a bar that starts where the previous one ends."""
    credit = result.credit
    ends = credit.cumsum(0)
    starts = torch.cat([ends.new_zeros(1), ends[:-1]])
    _bars(ax, credit.tolist(), starts.tolist())
    for row, end in enumerate(ends[:-1].tolist()):
        ax.plot([end, end], [row + 0.5, row + 1.5], color=MUTED, linewidth=0.4, zorder=0)
    ax.axvline(ends[-1].item(), color=MUTED, linewidth=0.5, linestyle=(0, (2, 2)))
    _plain(ax, len(credit))


def draw_interventions(ax: Axes, result: ShiftResult) -> None:
    """Draw the effect of changing each word, over bars for its contribution."""
    credit = result.credit
    is_source = [index in result.sources for index in range(len(credit))]
    _bars(ax, credit.where(torch.tensor(is_source), 0.0).tolist(), [0.0] * len(credit), FAINT)
    spread = np.linspace(-0.24, 0.24, len(result.causal)) if len(result.causal) > 1 else [0.0]
    for offset, (name, effect) in zip(spread, result.causal.items(), strict=True):
        measured = ~effect.isnan()
        rows = np.flatnonzero(measured.numpy()) + 0.5 + offset
        ax.plot(
            effect[measured].tolist(), rows, MARKERS[name], mfc="white", mec=INK, ms=3.0, mew=0.7
        )
    _plain(ax, len(credit))


def draw_by_layer(ax: Axes, result: ShiftResult) -> QuadMesh:
    """Draw the direct contribution of each source word in each layer, summed over heads."""
    table = result.by_word(result.decomposition.table.sum(1)).T  # (W, L)
    others = table[[index for index in range(len(table)) if index != result.at]]
    largest = (
        range_of(others) if others.abs().sum() > 0 else None
    )  # the word itself often contributes most
    return draw_values(ax, table, largest=largest, lines=len(table) <= _LINED)


def draw_value_and_routing(ax: Axes, result: ShiftResult) -> None:
    """Draw the value and the routing part of each layer as two bars."""
    split = result.decomposition
    rows = np.arange(len(split.value))
    for part, color, offset in ((split.value, VALUE, 0.3), (split.routing, ROUTING, 0.7)):
        ax.barh(rows + offset, part.sum((1, 2)).tolist(), height=0.36, color=color)
    _plain(ax, len(rows))
    ax.set_yticks(rows + 0.5, [str(layer) for layer in rows])
    ax.set_ylabel("layer", color=MUTED)


def draw_by_head(ax: Axes, result: ShiftResult) -> QuadMesh:
    """Draw the direct contribution of each head: layers down, heads across."""
    table = result.decomposition.table.sum(-1)
    mesh = draw_values(ax, table, lines=True)
    for count, name, set_ticks, set_label in (
        (table.shape[0], "layer", ax.set_yticks, ax.set_ylabel),
        (table.shape[1], "head", ax.set_xticks, ax.set_xlabel),
    ):
        shown = np.arange(0, count, max(1, count // 6))
        set_ticks(shown + 0.5, [str(number) for number in shown])
        set_label(name, color=MUTED)
    ax.tick_params(length=0)
    return mesh


def draw_residual_stream(ax: Axes, result: ShiftResult) -> None:
    """Draw what was added to the residual stream, from the static to the contextual vector."""
    stream = result.residual_stream
    parts = {
        "attention": stream.attention.sum().item(),
        "MLPs": stream.mlp.sum().item(),
        "biases": stream.bias,
        "own": stream.own,
    }
    starts = np.cumsum([0.0, *parts.values()])
    _bars(ax, list(parts.values()), starts[:-1].tolist())
    ax.axvline(stream.total, color=MUTED, linewidth=0.5, linestyle=(0, (2, 2)))
    _plain(ax, len(parts))
    ax.set_yticks(np.arange(len(parts)) + 0.5, list(parts))


def draw_axis(ax: Axes, result: ShiftResult) -> None:
    """Draw the place of the word between the regions, as it enters each layer and at the end."""
    assert result.path is not None
    layers = np.arange(len(result.path))
    for place, name in zip((1, 0), result.regions, strict=True):
        ax.axhline(place, color=MUTED, linewidth=0.5, linestyle=(0, (2, 2)))
        ax.annotate(
            name, (1, place), xycoords=("axes fraction", "data"), xytext=(-1, 1.5),
            textcoords="offset points", ha="right", va="bottom", color=MUTED, fontsize=SMALL_SIZE,
            parse_math=False,
        )  # fmt: skip
    ax.plot(layers, result.path.tolist(), "o-", color=ACCENT, linewidth=1.0, ms=2.5)
    ax.margins(y=0.18)
    ax.set_xticks(layers, [*map(str, layers[:-1]), "end"])
    ax.set_xlabel("entering layer", color=MUTED)
    ax.spines[["top", "right"]].set_visible(False)


def draw_patched(ax: Axes, result: ShiftResult) -> None:
    """Draw the effect of patching each head against its contribution."""
    assert result.patched is not None
    split = result.decomposition.table.sum(-1).flatten().tolist()
    patched = result.patched.flatten().tolist()
    ends = min([*split, *patched]), max([*split, *patched])
    ax.plot(ends, ends, color=MUTED, linewidth=0.5, zorder=0)
    ax.plot(split, patched, "o", color=CYCLE[0], mec="white", ms=2.8, mew=0.3)
    ax.set_xlabel("the split says", color=MUTED)
    ax.set_ylabel("patching does", color=MUTED)
    ax.spines[["top", "right"]].set_visible(False)


def _bars(
    ax: Axes, lengths: Sequence[float], starts: Sequence[float], color: str | None = None
) -> None:
    """Draw horizontal bars, colored by sign unless a color is given."""
    signed = [value_colors()(0.8 if length > 0 else 0.2) for length in lengths]
    rows = np.arange(len(lengths)) + 0.5
    ax.barh(rows, lengths, left=starts, height=0.62, color=color or signed)


def _plain(ax: Axes, rows: int) -> None:
    ax.axvline(0, color=MUTED, linewidth=0.5)
    ax.set_ylim(rows, 0)
    ax.set_yticks([])
    ax.spines[["left", "top", "right"]].set_visible(False)
    ax.tick_params(axis="y", length=0)
    ax.locator_params(axis="x", nbins=4)
    ax.use_sticky_edges = False
    ax.margins(x=0.05)


_GAP, _ROW = 0.22, 0.17  # inches: between panels, and of a word
_TALLEST = 6.0  # inches of all words at most
_LONGEST = 0.9  # inches of a word's label at most
_NARROW = 2.6  # inches: narrower figures have one column, without interventions
_SMALL = 1.25  # inches: the height of a panel without words


_MARKS = (
    "marks: what is lost where one word is changed, in a run of its own, over the same bars; ρ: "
    "Spearman's, with the bars"
)


def shift(result: ShiftResult, *, width: float = FULL_WIDTH) -> Figure:
    """Draw what moved a word: the contribution of each source word, and the effect of changing it.

    Parameters
    ----------
    result : ShiftResult
        From `attnviz.shift`.
    width : float, default 183
        The width of the figure in mm. One column of a journal is 89 mm, two are 183.

    Returns
    -------
    Figure
        A new figure.
    """
    texts = [*result.words, *result.regions, result.reference, source(result.provenance)]
    with style([*texts, "○□△◇"]):
        page, ruler = Page(width * MM), Ruler()
        left, right = MARGIN, page.width - MARGIN
        toward = f" toward {result.regions[0]}, from {result.regions[1]}" if result.regions else ""
        title = f"What moved “{literal(result.word)}”{toward}"
        top = page.title(left, MARGIN, title, right - left)
        end = _by_word(page, ruler, result, (left, right), top + 0.1)
        end = _panels(page, result, (left, right), end + 0.12)
        parts = _caption_parts(result, marks=bool(result.sources) and right - left > _NARROW)
        end = caption.write_caption(page, (left, right), end + CAPTION_GAP, parts, result.agreement)
        return page.finish(end + MARGIN)


def _caption_parts(result: ShiftResult, *, marks: bool) -> list[str]:
    split = result.decomposition
    unit = "along the axis of the two regions" if result.regions else "along the shift itself"
    parts = [
        source(result.provenance),
        f"compared with {result.reference}",
        f"bars: what each word brought over all paths, {unit}; they sum to {split.total:.2f} "
        f"(completeness error {power(split.credit_error)})",
        *([_MARKS] if marks else []),
        "directly: what the word itself took, because what others offer differs (value) or because "
        f"it reads them more or less (routing); completeness error {power(split.error)}",
        f"ledger: from the static vector to the end, {result.residual_stream.total:.2f} "
        f"(completeness error {power(result.residual_stream.error)}); own is what norms made of "
        "the static vector, less it",
    ]
    if (heads := result.heads_correlation) is not None:
        parts.append(f"patching single heads against the split: r {heads[0]:.2f}, ρ {heads[1]:.2f}")
    return [*parts, *result.notes]


def _by_word(
    page: Page, ruler: Ruler, result: ShiftResult, place: tuple[float, float], top: float
) -> float:
    """Draw the panels that have a row for every word; return their lower edge."""
    left, right = place
    W, is_wide = len(result.words), right - left > WIDE
    down = min(_ROW, (_TALLEST if is_wide else _TALLEST / 2) / W)
    words = [literal(word) for word in result.words]
    longest = min(_LONGEST, (right - left) / 5)
    labels = fit_ticks(words, down, ruler, axis="y", longest=longest, named=result.at)
    room = right - left - labels.room
    if is_wide:
        room = (room - labels.room - 3 * _GAP - BAR_ROOM) * 0.62
    both = bool(result.sources) and right - left > _NARROW
    first = (room - _GAP) * 0.58 if both else room
    unit = "along the axis" if result.regions else "along the shift"
    start, tall = left + labels.room, down * W
    panels = [("Over all paths", draw_credit, start, first)]
    if both:
        at = start + first + _GAP
        panels.append(("Lost where changed", draw_interventions, at, room - first - _GAP))
    for title, panel, at, across in panels:
        below = _heading(page, at, top, title)
        ax = page.axes(at, below, across, tall)
        panel(ax, result)
        ax.set_xlabel(unit, color=MUTED)
        if at == start:
            labels.apply(ax, "y")
    end = below + tall + AXIS_ROOM
    if both:
        end = page.write(panels[1][2], end, _key(result), color=MUTED)
    if is_wide:
        at = start + room + _GAP + labels.room
        _map(page, result, labels, (at, right - BAR_ROOM), top, tall)
        return end
    return _map(page, result, labels, (start, right - BAR_ROOM), end + 0.12, tall)


def _map(
    page: Page,
    result: ShiftResult,
    labels: Ticks,
    place: tuple[float, float],
    top: float,
    tall: float,
) -> float:
    """Draw the map of layers × source words with its color bar; return the lower edge."""
    left, right = place
    below = _heading(page, left, top, "Directly, by word")
    ax = page.axes(left, below, right - left, tall)
    mesh = draw_by_layer(ax, result)
    labels.apply(ax, "y")
    layers = np.arange(len(result.decomposition.value))
    shown = layers[:: max(1, len(layers) // 12)]
    ax.set_xticks(shown + 0.5, [str(layer) for layer in shown])
    ax.tick_params(axis="x", length=0)
    ax.set_xlabel("layer", color=MUTED)
    _bar(page, mesh, right, below, min(tall, 1.2))
    return below + tall + AXIS_ROOM


def _key(result: ShiftResult) -> list[str]:
    """Return the legend of the interventions, with their rank correlations."""
    ranks = result.rank_correlations
    shown = [*result.causal, *(["consensus"] if "consensus" in ranks else [])]
    return [
        f"{SIGNS.get(name, '')} {name}".strip()
        + (f", ρ {ranks[name]:.2f}".replace("-", "\N{MINUS SIGN}") if name in ranks else "")
        for name in shown
    ]


@dataclass(frozen=True)
class _Panel:
    """A panel without words: its title, the function that draws it, and inches left and right."""

    title: str
    draw: Callable[[Axes, ShiftResult], ScalarMappable | None]
    before: float = 0.3
    after: float = 0.0


def _panels(page: Page, result: ShiftResult, place: tuple[float, float], top: float) -> float:
    """Draw the panels without words, side by side; return their lower edge."""
    panels = [
        _Panel("Directly, by head", draw_by_head, after=BAR_ROOM),
        _Panel("Directly, by layer", draw_value_and_routing),
        _Panel("Ledger", draw_residual_stream, before=0.55),
    ]
    if result.path is not None:
        panels.append(_Panel("On the axis", draw_axis))
    if result.patched is not None:
        panels.append(_Panel("Each head patched", draw_patched, before=0.4))
    left, right = place
    wide = right - left > WIDE
    across = (
        min(len(panels), 4 if len(panels) < 5 else 3)
        if wide
        else 2
        if right - left > _NARROW
        else 1
    )
    room = (right - left - _GAP * (across - 1)) / across
    for n, panel in enumerate(panels):
        if n and n % across == 0:
            top += _SMALL + 0.2 + AXIS_ROOM + 0.2
        at = left + (n % across) * (room + _GAP)
        below = _heading(page, at + panel.before, top, panel.title)
        ax = page.axes(at + panel.before, below, room - panel.before - panel.after, _SMALL)
        mesh = panel.draw(ax, result)
        if mesh is not None:
            _bar(page, mesh, at + room - panel.after, below, _SMALL)
        if panel.draw is draw_value_and_routing:
            after = below + _SMALL + AXIS_ROOM - 0.1
            page.write(at + panel.before, after, ["■ value"], color=VALUE)
            page.write(at + panel.before + 0.6, after, ["■ routing"], color=ROUTING)
    return top + 0.2 + _SMALL + AXIS_ROOM + 0.1


def _heading(page: Page, left: float, top: float, text: str) -> float:
    return page.write(left, top, [text], points=TEXT_SIZE, weight="bold") + 0.04


def _bar(page: Page, mesh: ScalarMappable, left: float, top: float, tall: float) -> None:
    color_bar(mesh, page.axes(left + BAR_GAP, top, BAR_WIDTH, tall), "contribution")
