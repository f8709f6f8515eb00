"""Draw what moved a word: by source word, by layer and by head, beside interventions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure

from attnviz.analyses.shift.result import ShiftResult
from attnviz.figures.cells import Ticks, draw_values, fit_ticks, range_of
from attnviz.figures.layout import CaptionLength, Page, color_bar
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
    MM,
    MUTED,
    SMALL_SIZE,
    TEXT_SIZE,
    WIDE,
    power,
    style,
    value_colors,
)
from attnviz.results.axis import literal, source

_MARKERS = {"mask": "o", "replace": "s", "knock-out": "^", "delete": "D"}
_SIGNS = {"mask": "○", "replace": "□", "knock-out": "△", "delete": "◇"}
_VALUE, _ROUTING = CYCLE[3], CYCLE[2]
_LINED = 60  # words between which a map has lines
# Inches.
_GAP, _ROW = 0.22, 0.17  # between panels, and of a word
_TALLEST = 6.0  # all words at most
_LONGEST = 0.9  # the label of a word at most
_NARROW = 2.6  # narrower figures have one column, without interventions
_SMALL = 1.25  # the height of a panel without words


def shift(
    result: ShiftResult, *, width: float = FULL_WIDTH, caption: CaptionLength = "short"
) -> Figure:
    """Draw what moved a word: the contribution of each source word, and the effect of changing it.

    Parameters
    ----------
    result : ShiftResult
        From `attnviz.shift`.
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
    texts = [*result.words, *result.regions, result.reference, source(result.provenance)]
    with style([*texts, "○□△◇"]):
        page = Page(width * MM, caption)
        toward = f" toward {result.regions[0]}, from {result.regions[1]}" if result.regions else ""
        top = page.heading(f"What moved “{literal(result.word)}”{toward}")
        finding = page.ruler.wrap(result.conclusion(), page.right - page.left, TEXT_SIZE)
        top = page.write(page.left, top + 0.02, finding, points=TEXT_SIZE)
        end = _draw_words(page, result, top + 0.1)
        end = _draw_panels(page, result, end + 0.12)
        return page.finish_with_caption(
            end + CAPTION_GAP, _caption_parts(page, result), result.checked_agreement
        )


def _has_interventions(page: Page, result: ShiftResult) -> bool:
    return bool(result.sources) and page.right - page.left > _NARROW


def _caption_parts(page: Page, result: ShiftResult) -> list[str]:
    split, stream = result.decomposition, result.residual_stream
    unit = "along the axis of the two regions" if result.regions else "along the shift itself"
    is_all = result.contributions[0] == "all paths"
    paths, error = ("over all paths", split.credit_error) if is_all else ("directly", split.error)
    parts = [
        source(result.provenance),
        f"compared with {result.reference}",
        f"bars: contribution of each word {paths}, {unit}, in units of the hidden state; they sum "
        f"to {split.total:.2f} (completeness error {power(error)})",
    ]
    if _has_interventions(page, result):
        rho = "; ρ: rank correlation with the bars (Spearman)" if result.rank_correlations else ""
        parts.append(
            f"marks: effect of changing one word, in a separate run, over the same bars{rho}"
        )
    parts += [
        "directly: contributions to the word itself, because the values of others differ (value) "
        "or because it attends to them more or less (routing); completeness error "
        f"{power(split.error)}",
        f"residual stream: from the static vector to the end, {stream.total:.2f} (completeness "
        f"error {power(stream.error)}); own is the static vector after the norms, minus itself",
    ]
    if result.path is not None:
        second, first = map(literal, reversed(result.regions))
        parts.append(
            f"on the axis: place between the centers of {second} (0) and {first} (1) in each layer"
        )
    if result.head_effects:
        parts.append(
            "dots: one head each, patched with its output in the other run, in both directions. "
            "Direct effect: only at the word, all other attention fixed, so that it agrees with "
            "the contribution nearly by construction"
        )
    if result.total_effect is not None:
        parts.append("total effect: at all positions, with everything after it recomputed")
    return [*parts, *result.notes]


def _draw_words(page: Page, result: ShiftResult, top: float) -> float:
    """Draw the panels that have a row for every word; return their lower edge."""
    width = page.right - page.left
    is_wide, both = width > WIDE, _has_interventions(page, result)
    row = min(_ROW, (_TALLEST if is_wide else _TALLEST / 2) / len(result.words))
    words = [literal(word) for word in result.words]
    longest = min(_LONGEST, width / 5)
    labels = fit_ticks(words, row, page.ruler, axis="y", longest=longest, named=result.at)
    room = width - labels.room
    if is_wide:
        room = (room - labels.room - 3 * _GAP - BAR_ROOM) * 0.62
    across = (room - _GAP) * 0.58 if both else room
    left, tall = page.left + labels.room, row * len(words)
    unit = "along the axis" if result.regions else "along the shift"
    is_all = result.contributions[0] == "all paths"
    below = _heading(page, left, top, "Over all paths" if is_all else "Directly, by word")
    ax = page.axes(left, below, across, tall)
    _draw_contributions(ax, result)
    labels.apply(ax, "y")
    ax.set_xlabel(unit, color=MUTED)
    end = below + tall + AXIS_ROOM
    if both:
        second = left + across + _GAP
        _heading(page, second, top, "Measured effect")
        ax = page.axes(second, below, room - across - _GAP, tall)
        _draw_interventions(ax, result)
        ax.set_xlabel(unit, color=MUTED)
        end = page.write(second, end, _key(result), color=MUTED)
    if is_wide:
        _draw_map(page, result, labels, left + room + _GAP + labels.room, top, tall)
        return end
    return _draw_map(page, result, labels, left, end + 0.12, tall)


def _draw_contributions(ax: Axes, result: ShiftResult) -> None:
    """Draw the contribution of each word as a bar that starts where the previous one ends."""
    _, contributions = result.contributions
    ends = contributions.cumsum(0)
    starts = torch.cat([ends.new_zeros(1), ends[:-1]])
    _draw_bars(ax, contributions.tolist(), starts.tolist())
    for row, end in enumerate(ends[:-1].tolist()):
        ax.plot([end, end], [row + 0.5, row + 1.5], color=MUTED, linewidth=0.4, zorder=0)
    ax.axvline(ends[-1].item(), color=MUTED, linewidth=0.5, linestyle=(0, (2, 2)))
    _style_rows(ax, len(ends))


def _draw_interventions(ax: Axes, result: ShiftResult) -> None:
    """Draw the effect of changing each word, over bars for its contribution."""
    _, contributions = result.contributions
    bars = torch.zeros_like(contributions)
    bars[result.sources] = contributions[result.sources]
    _draw_bars(ax, bars.tolist(), [0.0] * len(bars), FAINT)
    spread = np.linspace(-0.24, 0.24, len(result.causal)) if len(result.causal) > 1 else [0.0]
    for offset, (name, effect) in zip(spread, result.causal.items(), strict=True):
        measured = ~effect.isnan()
        rows = np.flatnonzero(measured.numpy()) + 0.5 + offset
        ax.plot(
            effect[measured].tolist(), rows, _MARKERS[name], mfc="white", mec=INK, ms=3.0, mew=0.7
        )
    _style_rows(ax, len(bars))


def _key(result: ShiftResult) -> list[str]:
    """Return the legend of the interventions, with their rank correlations."""
    ranks = result.rank_correlations
    lines = []
    for name in [*result.causal, *(["consensus"] if "consensus" in ranks else [])]:
        rho = f", {_rho(ranks[name])}" if name in ranks else ""
        lines.append(f"{_SIGNS.get(name, '')} {name}{rho}".strip())
    return lines


def _rho(rho: float) -> str:
    return f"ρ {rho:.2f}".replace("-", "\N{MINUS SIGN}")


def _draw_map(
    page: Page, result: ShiftResult, labels: Ticks, left: float, top: float, tall: float
) -> float:
    """Draw the direct contribution of each word in each layer; return the lower edge."""
    right = page.right - BAR_ROOM
    below = _heading(page, left, top, "By word and layer")
    ax = page.axes(left, below, right - left, tall)
    table = result.by_word(result.decomposition.table.sum(1)).T  # (W, L)
    others = table[[index for index in range(len(table)) if index != result.at]]
    # The word itself often contributes most.
    largest = range_of(others) if others.abs().sum() > 0 else None
    mesh = draw_values(ax, table, largest=largest, lines=len(table) <= _LINED)
    labels.apply(ax, "y")
    shown = np.arange(0, table.shape[1], max(1, table.shape[1] // 12))
    ax.set_xticks(shown + 0.5, [str(layer) for layer in shown])
    ax.tick_params(axis="x", length=0)
    ax.set_xlabel("layer", color=MUTED)
    _draw_color_bar(page, mesh, right, below, min(tall, 1.2))
    return below + tall + AXIS_ROOM


def _draw_panels(page: Page, result: ShiftResult, top: float) -> float:
    """Draw the panels without words, side by side; return their lower edge."""
    # The title, what is drawn, and the inches for the labels on its left.
    panels: list[tuple[str, Callable[[Axes, ShiftResult], QuadMesh | None], float]] = [
        ("Directly, by head", _draw_by_head, 0.3),
        ("Directly, by layer", _draw_value_and_routing, 0.3),
        ("Residual stream", _draw_residual_stream, 0.55),
    ]
    if result.path is not None:
        panels.append(("On the axis", _draw_axis, 0.3))
    for name in result.head_effects:
        panels.append((name.capitalize(), partial(_draw_effect, name=name), 0.5))
    width = page.right - page.left
    columns = 2 if width > _NARROW else 1
    if width > WIDE:
        columns = 3 if len(panels) > 4 else len(panels)
    room = (width - _GAP * (columns - 1)) / columns
    for number, (title, draw, labels) in enumerate(panels):
        if number and number % columns == 0:
            top += _SMALL + 0.2 + AXIS_ROOM + 0.2
        left = page.left + (number % columns) * (room + _GAP) + labels
        across = room - labels - (BAR_ROOM if draw is _draw_by_head else 0)
        below = _heading(page, left, top, title)
        ax = page.axes(left, below, across, _SMALL)
        mesh = draw(ax, result)
        if mesh is not None:
            _draw_color_bar(page, mesh, left + across, below, _SMALL)
        if draw is _draw_value_and_routing:
            key = below + _SMALL + AXIS_ROOM - 0.1
            page.write(left, key, ["■ value"], color=_VALUE)
            page.write(left + 0.6, key, ["■ routing"], color=_ROUTING)
    return top + 0.2 + _SMALL + AXIS_ROOM + 0.1


def _draw_by_head(ax: Axes, result: ShiftResult) -> QuadMesh:
    """Draw the direct contribution of each head: layers down, heads across."""
    table = result.decomposition.table.sum(-1)
    mesh = draw_values(ax, table, lines=True)
    layers, heads = (np.arange(0, count, max(1, count // 6)) for count in table.shape)
    ax.set_yticks(layers + 0.5, [str(layer) for layer in layers])
    ax.set_xticks(heads + 0.5, [str(head) for head in heads])
    ax.set_ylabel("layer", color=MUTED)
    ax.set_xlabel("head", color=MUTED)
    ax.tick_params(length=0)
    return mesh


def _draw_value_and_routing(ax: Axes, result: ShiftResult) -> None:
    """Draw the value and the routing part of each layer as two bars."""
    split = result.decomposition
    rows = np.arange(len(split.value))
    ax.barh(rows + 0.3, split.value.sum((1, 2)).tolist(), height=0.36, color=_VALUE)
    ax.barh(rows + 0.7, split.routing.sum((1, 2)).tolist(), height=0.36, color=_ROUTING)
    _style_rows(ax, len(rows))
    ax.set_yticks(rows + 0.5, [str(layer) for layer in rows])
    ax.set_ylabel("layer", color=MUTED)


def _draw_residual_stream(ax: Axes, result: ShiftResult) -> None:
    """Draw what was added to the residual stream, from the static to the contextual vector."""
    stream = result.residual_stream
    parts = {
        "attention": stream.attention.sum().item(),
        "MLPs": stream.mlp.sum().item(),
        "biases": stream.bias,
        "own": stream.own,
    }
    starts = np.cumsum([0.0, *parts.values()])
    _draw_bars(ax, list(parts.values()), starts[:-1].tolist())
    ax.axvline(stream.total, color=MUTED, linewidth=0.5, linestyle=(0, (2, 2)))
    _style_rows(ax, len(parts))
    ax.set_yticks(np.arange(len(parts)) + 0.5, list(parts))


def _draw_axis(ax: Axes, result: ShiftResult) -> None:
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


def _draw_effect(ax: Axes, result: ShiftResult, name: str) -> None:
    """Draw the direct or the total effect of patching each head against its contribution."""
    split = result.decomposition.table.sum(-1).flatten().tolist()
    effects = result.head_effects[name].flatten().tolist()
    ax.axline((0, 0), slope=1, color=MUTED, linewidth=0.5, zorder=0)
    ax.plot(split, effects, "o", color=CYCLE[0], mec="white", ms=2.8, mew=0.3)
    ax.set_xlabel("its contribution", color=MUTED)
    ax.set_ylabel("patching one head", color=MUTED)
    if name in (ranks := result.head_rank_correlations):
        ax.annotate(
            _rho(ranks[name]), (0, 1), xycoords="axes fraction", xytext=(3, -1),
            textcoords="offset points", va="top", color=MUTED, fontsize=SMALL_SIZE,
        )  # fmt: skip
    ax.spines[["top", "right"]].set_visible(False)


def _draw_bars(
    ax: Axes, lengths: list[float], starts: list[float], color: str | None = None
) -> None:
    """Draw horizontal bars, colored by sign unless a color is given."""
    signed = [value_colors()(0.8 if length > 0 else 0.2) for length in lengths]
    rows = np.arange(len(lengths)) + 0.5
    ax.barh(rows, lengths, left=starts, height=0.62, color=color or signed)


def _style_rows(ax: Axes, rows: int) -> None:
    ax.axvline(0, color=MUTED, linewidth=0.5)
    ax.set_ylim(rows, 0)
    ax.set_yticks([])
    ax.spines[["left", "top", "right"]].set_visible(False)
    ax.tick_params(axis="y", length=0)
    ax.locator_params(axis="x", nbins=4)
    ax.use_sticky_edges = False
    ax.margins(x=0.05)


def _heading(page: Page, left: float, top: float, text: str) -> float:
    return page.write(left, top, [text], points=TEXT_SIZE, weight="bold") + 0.04


def _draw_color_bar(page: Page, mesh: ScalarMappable, left: float, top: float, tall: float) -> None:
    color_bar(mesh, page.axes(left + BAR_GAP, top, BAR_WIDTH, tall), "contribution")
