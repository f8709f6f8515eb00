"""Draw the details of a shift: by word and layer, by head, and beside every intervention."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import QuadMesh

from attnviz.analyses.shift.result import ShiftResult
from attnviz.figures.cells import Ticks, draw_values, fit_ticks, range_of
from attnviz.figures.layout import Page, color_bar
from attnviz.figures.style import (
    AXIS_ROOM,
    BAR_GAP,
    BAR_ROOM,
    BAR_WIDTH,
    SMALL_SIZE,
    TEXT_SIZE,
    WIDE,
    power,
    sign_colors,
    theme,
)
from attnviz.results.axis import literal

_MARKERS = {"mask": "o", "replace": "s", "knock-out": "^", "delete": "D"}
_SIGNS = {"mask": "○", "replace": "□", "knock-out": "△", "delete": "◇"}
_LINED = 60  # words between which a map has lines
_UNIT = "units of the hidden state"
# Inches.
_GAP, _ROW = 0.22, 0.17  # between panels, and of a word
_RIGHT = 0.1  # half of a number at the right end of an axis
_NUMBER = 0.16  # from one number of a layer to the next
_TALLEST = 1.9, 2.9  # all words at most, in one column of a journal and in two
_LONGEST = 0.9  # the label of a word at most
_NARROW = 2.6  # narrower figures have one column, without interventions
_SMALL = 0.85, 1.25  # the height of a panel without words, likewise


def draw_details(page: Page, result: ShiftResult, top: float) -> float:
    """Draw the details below `top`; return their lower edge."""
    return _draw_panels(page, result, _draw_words(page, result, top) + 0.12)


def details_caption(result: ShiftResult) -> list[str]:
    """Return what the caption says about the details."""
    split, stream = result.decomposition, result.residual_stream
    name, contributions = result.contributions
    error = split.credit_error if name == "all paths" else split.error
    rho = "; ρ: rank correlation of both (Spearman)" if result.rank_correlations else ""
    parts = [
        f"gray bars: contributions, which sum to {contributions.sum():.2f} (completeness error "
        f"{power(error)}); marks: effects of changing a word{rho}",
        "by layer and by head: direct contributions to the word itself, because the values of "
        "others differ (value) or because it attends to them more or less (routing); completeness "
        "error "
        f"{power(split.error)}",
        f"residual stream: from the static vector to the end, {stream.total:.2f} (completeness "
        f"error {power(stream.error)}); own is the static vector after the norms, minus itself",
    ]
    if result.head_effects:
        parts.append(
            "dots: one head each, patched with its output in the other run, in both directions. "
            "Direct effect: only at the word, all other attention fixed, so that it agrees with "
            "the contribution nearly by construction"
        )
    if result.total_effect is not None:
        parts.append("total effect: at all positions, with everything after it recomputed")
    return parts


def _draw_words(page: Page, result: ShiftResult, top: float) -> float:
    """Draw the panels that have a row for every word; return their lower edge."""
    width = page.room
    row = min(_ROW, _TALLEST[width > WIDE] / len(result.words))
    words = [literal(word) for word in result.words]
    longest = min(_LONGEST, width / 5)
    labels = fit_ticks(words, row, page.ruler, axis="y", longest=longest, named=result.at)
    left, tall, right = page.left + labels.room, row * len(words), page.right
    is_wide = width > _NARROW
    room = (right - left) * 0.4 if is_wide else right - left - _RIGHT
    is_all = result.contributions[0] == "all paths"
    title = "Over all paths" if is_all else "Directly, by word"
    below = page.subtitle(left, top, title, room) + 0.04
    ax = page.axes(left, below, room, tall)
    _draw_interventions(ax, result)
    labels.apply(ax, "y")
    ax.set_xlabel(page.ruler.longest([_UNIT, "units"], room, TEXT_SIZE), color=theme().muted)
    end = page.write(left, below + tall + AXIS_ROOM, _key(result), color=theme().muted)
    if not is_wide:
        return _draw_map(page, result, labels, left, end + 0.1, tall)
    return max(end, _draw_map(page, result, labels, left + room + _GAP + labels.room, top, tall))


def _draw_interventions(ax: Axes, result: ShiftResult) -> None:
    """Draw the contribution of each word as a bar, and the effects of changing it as marks."""
    _, contributions = result.contributions
    _draw_bars(ax, contributions.tolist(), [0.0] * len(contributions), theme().faint)
    count = len(result.causal)
    spread = np.linspace(-0.24, 0.24, count) if count > 1 else [0.0] * count
    for offset, (name, effect) in zip(spread, result.causal.items(), strict=True):
        measured = ~effect.isnan()
        rows = np.flatnonzero(measured.numpy()) + 0.5 + offset
        ax.plot(
            effect[measured].tolist(),
            rows,
            _MARKERS[name],
            mfc=theme().ground,
            mec=theme().ink,
            ms=3.0,
            mew=0.7,
        )
    _style_rows(ax, len(contributions))


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
    below = page.subtitle(left, top, "By word and layer", right - left) + 0.04
    ax = page.axes(left, below, right - left, tall)
    table = result.by_word(result.decomposition.table.sum(1)).T  # (W, L)
    others = table[[index for index in range(len(table)) if index != result.at]]
    # The word itself often contributes most.
    largest = range_of(others) if others.abs().sum() > 0 else None
    mesh = draw_values(ax, table, largest=largest, lines=len(table) <= _LINED)
    labels.apply(ax, "y")
    every = math.ceil(_NUMBER * table.shape[1] / (right - left))
    shown = np.arange(0, table.shape[1], every)
    ax.set_xticks(shown + 0.5, [str(layer) for layer in shown])
    ax.tick_params(axis="x", length=0)
    ax.set_xlabel("layer", color=theme().muted)
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
        panels.append(("Between the regions", _draw_axis, 0.3))
    for name in result.head_effects:
        panels.append((name.capitalize(), partial(_draw_effect, name=name), 0.5))
    width = page.room
    columns, tall = (2 if width > _NARROW else 1), _SMALL[width > WIDE]
    if width > WIDE:
        columns = 3 if len(panels) > 4 else len(panels)
    room = (width - _GAP * (columns - 1)) / columns
    for number, (title, draw, labels) in enumerate(panels):
        if number and number % columns == 0:
            top += tall + 0.2 + AXIS_ROOM + 0.2
        left = page.left + (number % columns) * (room + _GAP) + labels
        across = room - labels - (BAR_ROOM if draw is _draw_by_head else _RIGHT)
        below = page.subtitle(left, top, title, room - labels) + 0.04
        ax = page.axes(left, below, across, tall)
        mesh = draw(ax, result)
        unit = page.ruler.longest([_UNIT, "units"], across, TEXT_SIZE)
        ax.set_xlabel(ax.get_xlabel() or unit, color=theme().muted)
        if mesh is not None:
            _draw_color_bar(page, mesh, left + across, below, tall)
        if draw is _draw_value_and_routing:
            key = below + tall + AXIS_ROOM
            page.write(left, key, ["■ value"], color=theme().cycle[3])
            page.write(left + 0.6, key, ["■ routing"], color=theme().cycle[2])
    return top + 0.2 + tall + AXIS_ROOM + 0.15


def _draw_by_head(ax: Axes, result: ShiftResult) -> QuadMesh:
    """Draw the direct contribution of each head: layers down, heads across."""
    table = result.decomposition.table.sum(-1)
    mesh = draw_values(ax, table, lines=True)
    layers, heads = (np.arange(0, count, max(1, count // 6)) for count in table.shape)
    ax.set_yticks(layers + 0.5, [str(layer) for layer in layers])
    ax.set_xticks(heads + 0.5, [str(head) for head in heads])
    ax.set_ylabel("layer", color=theme().muted)
    ax.set_xlabel("head", color=theme().muted)
    ax.tick_params(length=0)
    return mesh


def _draw_value_and_routing(ax: Axes, result: ShiftResult) -> None:
    """Draw the value and the routing part of each layer as two bars."""
    split = result.decomposition
    rows = np.arange(len(split.value))
    ax.barh(rows + 0.3, split.value.sum((1, 2)).tolist(), height=0.36, color=theme().cycle[3])
    ax.barh(rows + 0.7, split.routing.sum((1, 2)).tolist(), height=0.36, color=theme().cycle[2])
    _style_rows(ax, len(rows))
    ax.set_yticks(rows + 0.5, [str(layer) for layer in rows])
    ax.set_ylabel("layer", color=theme().muted)


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
    ax.axvline(stream.total, color=theme().muted, linewidth=0.5, linestyle=(0, (2, 2)))
    _style_rows(ax, len(parts))
    ax.set_yticks(np.arange(len(parts)) + 0.5, list(parts))


def _draw_axis(ax: Axes, result: ShiftResult) -> None:
    """Draw the place of the word between the regions, as it enters each layer and at the end."""
    assert result.path is not None
    layers = np.arange(len(result.path))
    for place, name in zip((1, 0), result.regions, strict=True):
        ax.axhline(place, color=theme().muted, linewidth=0.5, linestyle=(0, (2, 2)))
        ax.annotate(
            name, (1, place), xycoords=("axes fraction", "data"), xytext=(-1, 1.5),
            textcoords="offset points", ha="right", va="bottom", color=theme().muted,
            fontsize=SMALL_SIZE, parse_math=False,
        )  # fmt: skip
    ax.plot(layers, result.path.tolist(), "o-", color=theme().accent, linewidth=1.0, ms=2.5)
    ax.margins(y=0.18)
    ax.set_xticks(layers, [*map(str, layers[:-1]), "end"])
    ax.set_xlabel("entering layer", color=theme().muted)
    ax.spines[["top", "right"]].set_visible(False)


def _draw_effect(ax: Axes, result: ShiftResult, name: str) -> None:
    """Draw the direct or the total effect of patching each head against its contribution."""
    split = result.decomposition.table.sum(-1).flatten().tolist()
    effects = result.head_effects[name].flatten().tolist()
    ax.axline((0, 0), slope=1, color=theme().muted, linewidth=0.5, zorder=0)
    ax.plot(split, effects, "o", color=theme().cycle[0], mec=theme().ground, ms=2.8, mew=0.3)
    ax.set_xlabel("its contribution", color=theme().muted)
    ax.set_ylabel("patching one head", color=theme().muted)
    if name in (ranks := result.head_rank_correlations):
        ax.annotate(
            _rho(ranks[name]), (0, 1), xycoords="axes fraction", xytext=(3, -1),
            textcoords="offset points", va="top", color=theme().muted,
            fontsize=SMALL_SIZE,
        )  # fmt: skip
    ax.spines[["top", "right"]].set_visible(False)


def _draw_bars(
    ax: Axes, lengths: list[float], starts: list[float], color: str | None = None
) -> None:
    """Draw horizontal bars, colored by sign unless a color is given."""
    signed = [sign_colors()[length <= 0] for length in lengths]
    rows = np.arange(len(lengths)) + 0.5
    ax.barh(rows, lengths, left=starts, height=0.62, color=color or signed)


def _style_rows(ax: Axes, rows: int) -> None:
    ax.axvline(0, color=theme().muted, linewidth=0.5)
    ax.set_ylim(rows, 0)
    ax.set_yticks([])
    ax.spines[["left", "top", "right"]].set_visible(False)
    ax.tick_params(axis="y", length=0)
    ax.locator_params(axis="x", nbins=4)
    ax.use_sticky_edges = False
    ax.margins(x=0.05)


def _draw_color_bar(page: Page, mesh: ScalarMappable, left: float, top: float, tall: float) -> None:
    color_bar(mesh, page.axes(left + BAR_GAP, top, BAR_WIDTH, tall), "contribution")
