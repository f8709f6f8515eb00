"""Draw what moved a word: its path through the layers, and the effect of each word of the text."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure, SubFigure

from attnviz.analyses.shift.result import ShiftPlane, ShiftResult
from attnviz.figures import figure, layout
from attnviz.figures.cells import Ticks, draw_values, fit_ticks, range_of
from attnviz.figures.layout import CaptionLength, Page, line_height, new_page
from attnviz.figures.style import (
    AXIS_ROOM,
    BAR_GAP,
    BAR_ROOM,
    CAPTION_GAP,
    FULL_WIDTH,
    NUMBER_SIZE,
    SMALL_SIZE,
    TEXT_SIZE,
    WIDE,
    power,
    theme,
)
from attnviz.results.text import literal, signed, source, source_and_notes, with_minus

_NUMBERED = 3  # words with numbers at their bars, of each kind
# Inches.
_BETWEEN = 0.3  # the two panels side by side
_ACROSS, _SQUARE = 0.4, 2.1  # the share of the path panel, and its height
_UPWARDS = 0.16  # the name of the vertical axis
_BAR, _APART = 0.09, 0.055  # a bar, and its middle from that of the word
_CELL, _NUMBERED_CELL = 0.25, 0.5  # a word with its bars, and with their numbers
_BLANK = 0.05  # between words
_SAMPLE = 0.11  # of a bar, before its label in the key
_NUMBER = 0.1  # above or below a bar
_HIGHEST = 0.8, 1.3  # the bars below one line of words at most; also beside the path
_ROW_GAP = 0.08  # between lines of words
_TALLEST = 3.6  # all lines of words at most
_MARKERS = {"mask": "o", "replace": "s", "knock-out": "^", "delete": "D"}
_SIGNS = {"mask": "○", "replace": "□", "knock-out": "△", "delete": "◇"}
_LINED = 60  # words between which a map has lines
_UNIT = "units of the hidden state"
_THICK = 0.62  # of a row: a bar
# Inches.
_GAP, _ROW = 0.22, 0.17  # between panels, and of a word
_RIGHT = 0.1  # half of a number at the right end of an axis
_ALL_WORDS = 1.9, 2.9  # all words at most, in one column of a journal and in two
_LONGEST = 0.9  # the label of a word at most
_NARROW = 2.6  # narrower figures have one column, without interventions
_SMALL = 0.85, 1.25  # the height of a panel without words, likewise


@figure
def shift(
    result: ShiftResult,
    *,
    width: float = FULL_WIDTH,
    details: bool = False,
    caption: CaptionLength = "short",
    figure: Figure | SubFigure | None = None,
) -> Figure:
    """Draw what moved a word: its path through the layers, and the effect of each word of the text.

    Parameters
    ----------
    details : bool, default False
        Draw instead the contributions by layer and by head, the residual stream, and the effect of
        each intervention.

    Examples
    --------
    >>> import attnviz
    >>> moved = attnviz.shift("bank", "We sat on the bank of the river.")
    >>> figure = attnviz.plot.shift(moved)
    """
    texts = [*result.words, *result.replaced, *result.regions, result.reference]
    with new_page(width, caption, [*texts, source(result.provenance), "○□△◇■↑↓←→"], figure) as page:
        top = page.heading(result.headline) + 0.02
        top = page.lead(top, " ".join(result.details)) + 0.1
        path: Axes | None = None
        if details:
            end = _draw_small_panels(page, result, _draw_words(page, result, top) + 0.12)
        elif (plane := result.plane) is None:
            end = _draw_sentence(page, result, page.left, top)
        elif page.width < WIDE:
            end, path = _draw_path(page, result, plane, page.left, top, page.room)
            end = _draw_sentence(page, result, page.left, end + 0.1)
        else:
            across = _ACROSS * page.room
            end, path = _draw_path(page, result, plane, page.left, top, across)
            end = max(end, _draw_sentence(page, result, page.left + across + _BETWEEN, top))
        parts = _caption_parts(result, details=details)
        drawn = page.finish(end + CAPTION_GAP, parts, result.checked_agreement)
        if path is not None:
            _label_path(path, result)
        return drawn


def _caption_parts(result: ShiftResult, *, details: bool) -> list[str]:
    split = result.decomposition
    first, *notes = source_and_notes(result.provenance, result.notes)
    parts = [first]
    if details or result.without != "alone":
        parts.append(f"compared with {result.reference}")
    else:
        parts.append(f"alone: {result.reference.removeprefix('the same text, where ')}")
    if result.regions and not details:
        first, second = map(literal, result.regions)
        parts += [f"colored dots: the ends of the texts of {second} and {first}", *notes]
    if result.effect is not None:
        kinds = f"{', '.join(result.causal)}{'' if details else ': mean and range'}"
        runs = f"separate runs ({kinds})" if len(result.causal) > 1 else "a separate run"
        parts.append(f"{result.changing}: what is lost in {runs}")
    if details:
        return [*parts, *_details_caption(result), *notes]
    unit = _UNIT
    if result.way is not None:
        unit = f"shares of the way, which is {result.way:.2f} {_UNIT}"
    kind = "split: contributions over all paths" if result.is_all_paths else "read: direct parts"
    total, error = signed(result.share(split.total)), power(result.contribution_error)
    parts.append(f"bars: {unit}; {kind}, which sum to {total} (completeness error {error})")
    if result.plane is not None:
        parts.append(
            "path: the word as it enters each layer and at the end, projected on the direction of "
            "the shift and on the direction orthogonal to it along which the paths extend most "
            f"({result.plane.explained:.0%} of the rest)"
        )
    return parts if result.regions else [*parts, *notes]


def _draw_path(
    page: Page, result: ShiftResult, plane: ShiftPlane, left: float, top: float, room: float
) -> tuple[float, Axes]:
    """Draw the path of the word and of its reference; return the lower edge and the axes."""
    title = f"The path of “{literal(result.word, 20)}” through the layers"
    below = page.subtitle(left, top, title, room) + 0.04
    ax = page.axes(left + _UPWARDS, below, room - _UPWARDS, _SQUARE)
    ax.set_ylabel("main other direction →", color=theme().muted, labelpad=2, fontsize=SMALL_SIZE)
    for place in (0, 1):
        ax.axvline(place, color=theme().faint, linewidth=0.8, zorder=0)
    for ends, color in zip(plane.region_ends, theme().sides[:2], strict=False):
        ax.plot(*ends.T.numpy(), "o", color=color, ms=2.5, mew=0, alpha=0.75)
    paths = (plane.reference_path, theme().gray, 0.9), (plane.path, theme().ink, 1.3)
    for path, color, width in paths:
        xs, ys = path.T.tolist()
        ax.plot(xs[:-1], ys[:-1], "o-", color=color, linewidth=width, ms=2.2, mew=0)
        arrow = {"arrowstyle": "-|>", "mutation_scale": 7, "color": color, "linewidth": width}
        arrow |= {"shrinkA": 0, "shrinkB": 0}
        ax.annotate("", (xs[-1], ys[-1]), (xs[-2], ys[-2]), arrowprops=arrow)
        ax.plot(xs[-1], ys[-1], "o", color=color, ms=0.01)  # within the limits
    ax.margins(x=0.12, y=0.12)
    ax.set_yticks([])
    ax.set_xticks([0, 0.5, 1], ["0", "0.5", "1"], fontsize=SMALL_SIZE)
    ax.spines[["left", "bottom"]].set(color=theme().muted, linewidth=0.4)
    line = below + _SQUARE + AXIS_ROOM - 0.16
    start, end = _ends(result)
    half = (room - _UPWARDS) / 2 - 0.05
    names = [page.ruler.clip(name, half, SMALL_SIZE) for name in (f"← 0: {start}", f"1: {end} →")]
    colors = theme().sides[1::-1] if result.regions else (theme().muted, theme().ink)
    page.write(left + _UPWARDS, line, names[:1], color=colors[0])
    page.write(left + room, line, names[1:], color=colors[1], align="right")
    return line + line_height(SMALL_SIZE), ax


def _ends(result: ShiftResult) -> tuple[str, str]:
    """Return what is at 0 and at 1."""
    if result.regions:
        first, second = (literal(region, 40) for region in result.regions)
        return second, first
    return result.without, "here"


def _label_path(ax: Axes, result: ShiftResult) -> None:
    """Label path ends and some layers, on axes in their final place: overlaps are measured."""
    assert result.plane is not None
    path, reference = result.plane.path.numpy(), result.plane.reference_path.numpy()
    last = len(path) - 1
    every = max(1, -(-last // 6))
    layers = [layer for layer in range(1, last) if layer % every == 0]
    labels = {"static": (path[0], theme().muted), "here": (path[-1], theme().ink)}
    labels[result.without] = (reference[-1], theme().muted)
    ends_of = result.plane.region_ends
    for region, ends, color in zip(result.regions, ends_of, theme().sides[:2], strict=False):
        labels[literal(region, 20)] = (ends[0].numpy(), color)
    labels |= {f"layer {n}" if n == layers[0] else str(n): (path[n], theme().ink) for n in layers}
    places = np.array([place for place, _ in labels.values()])
    anchors = np.concatenate([path, reference, *(ends.numpy() for ends in ends_of)])
    x_lines, y_lines = zip(path.T, reference.T, strict=True)
    layout.label_points(
        ax, places, list(labels), anchors, textcolor=[color for _, color in labels.values()],
        x_lines=[*x_lines], y_lines=[*y_lines], min_distance=0.015, max_distance=0.2, margin=0.006,
        nbr_candidates=400,
    )  # fmt: skip


@dataclass(frozen=True)
class _Word:
    """One word of the text on the page, in inches from the left edge."""

    index: int
    text: str
    left: float
    width: float


def _draw_sentence(page: Page, result: ShiftResult, left: float, top: float) -> float:
    """Write the text with two bars below each word; return the lower edge."""
    room = page.right - left
    title = f"What “{literal(result.word, 20)}” reads from each word"
    title = "What the split credits each word with" if result.is_all_paths else title
    title = title if result.effect is None else f"What is lost by {result.changing} each word"
    top = page.subtitle(left, top, title, room) + 0.02
    top = _draw_key(page, result, left, top, room) + 0.08
    contributions = result.shares(result.contributions[1])
    bars = contributions, [math.nan] * len(contributions)
    if result.effect is not None:
        bars = result.shares(result.effect), contributions
    kinds = [result.shares(effect) for effect in result.causal.values()]
    numbered = set().union(*map(_numbered, bars))
    lines = _break_lines(page, result, contributions, numbered, room)
    extents = []  # the lowest and the highest end of what is drawn below each line, and 0
    for line in lines:
        ends = [0.0, *(each[word.index] for each in (*bars, *kinds) for word in line)]
        extents.append((float(np.nanmin(ends)), float(np.nanmax(ends))))
    span = max(high - low for low, high in extents) or 1.0
    fixed = line_height(TEXT_SIZE) + _ROW_GAP
    numbers = [_NUMBER * ((low < 0) + (high > 0)) for low, high in extents]
    # The lines with the largest numbers, if there are more than fit.
    largest = [max(map(abs, extent)) for extent in extents]
    most = max(1, int(_TALLEST / (fixed + 2 * _NUMBER)))
    kept = set(sorted(range(len(lines)), key=lambda line: -largest[line])[:most])
    free = _TALLEST - sum(fixed + numbers[n] for n in kept)
    length = sum(extents[n][1] - extents[n][0] for n in kept) or 1.0
    scale = span / min(_HIGHEST[left > page.left], free * span / length)
    for is_kept, group in itertools.groupby(range(len(lines)), kept.__contains__):
        if not is_kept:
            skipped = [contributions[word.index] for n in group for word in lines[n]]
            done, total = "credited" if result.is_all_paths else "read", signed(np.nansum(skipped))
            text = f"… {len(skipped)} words, {done} {total} …"
            top = page.write(left, top, [text], color=theme().muted) + _ROW_GAP
            continue
        for n in group:
            for word in lines[n]:
                _write_word(page, result, word, left, top)
            low, high = extents[n]
            low, high = low - scale * _NUMBER * (low < 0), high + scale * _NUMBER * (high > 0)
            tall = max(0.02, (high - low) / scale)
            ax = page.axes(left, top + line_height(TEXT_SIZE), room, tall, bare=True)
            ax.set(xlim=(0, room), ylim=(low, low + tall * scale))
            _draw_bars(ax, lines[n], bars, kinds, scale)
            top += fixed + tall
    return top


def _draw_key(page: Page, result: ShiftResult, left: float, top: float, room: float) -> float:
    """Write what the bars are, beside a sample of each; return the lower edge."""
    first, second = theme().sides[:2]
    start, end = _ends(result)
    # Each label with its color, and the face and the edge of the bar before it.
    names = ["credited by the split" if result.is_all_paths else "read from it"]
    names = names if result.effect is None else [result.lost, *names]
    faces = (first, first), (theme().ground, theme().ink)
    entries: list[tuple[str, str | None, tuple[str, ...]]] = [
        (name, None, face) for name, face in zip(names, faces, strict=False)
    ]
    if result.regions:
        entries += [(f"↑ toward {end}", first, ()), (f"↓ toward {start}", second, ())]
    elif any((n < 0).any() for n in (result.contributions[1], result.effect) if n is not None):
        entries.append(("↓ back", second, ()))
    line, x = line_height(SMALL_SIZE), left
    for label, color, bar in entries:
        indent = _SAMPLE if bar else 0.0
        wide = indent + page.ruler.width(label, SMALL_SIZE)
        if x > left and x + wide > left + room:
            x, top = left, top + line
        if bar:
            ax = page.axes(x, top + 0.02, 0.07, line - 0.04, bare=True)
            ax.set(xlim=(0, 1), ylim=(0, 1))
            face, edge = bar
            ax.bar(0.5, 1, width=1, color=face, edgecolor=edge, linewidth=0.6, clip_on=False)
        page.write(x + indent, top, [page.ruler.clip(label, room, SMALL_SIZE)], color=color)
        x += wide + 0.15
    return top + line


def _numbered(shares: Sequence[float]) -> set[int]:
    """Return the words of which the numbers are written."""
    sizes = {n: abs(share) for n, share in enumerate(shares) if share == share}
    largest = sorted(sizes, key=sizes.__getitem__, reverse=True)[:_NUMBERED]
    return {n for n in largest if sizes[n] > 0 and sizes[n] >= 0.1 * sizes[largest[0]]}


def _break_lines(
    page: Page, result: ShiftResult, contributions: Sequence[float], numbered: set[int], room: float
) -> list[list[_Word]]:
    """Return the words in lines of about the same length, each word with room for its bars."""
    largest = max(map(abs, contributions))
    words = []
    for index, word in enumerate(result.words):
        if result.special[index] and abs(contributions[index]) <= 0.01 * largest:
            continue
        text = page.ruler.clip(literal(word, 60), room - _BLANK, TEXT_SIZE)
        least = _NUMBERED_CELL if index in numbered else _CELL
        wide = page.ruler.width(text, TEXT_SIZE, _weight(result, index, text)) + _BLANK
        words.append(_Word(index, text, 0.0, min(room, max(wide, least))))
    lines = _fill_lines(words, room)
    full = room
    while len(narrower := _fill_lines(words, 0.97 * room)) == len(lines) and room > _CELL:
        lines, room = narrower, 0.97 * room
    stretch = min(1.6, full / max(line[-1].left + line[-1].width for line in lines))
    wider = [replace(word, width=min(full, stretch * word.width)) for word in words]
    return _fill_lines(wider, stretch * room * (1 + 1e-9))


def _fill_lines(words: Sequence[_Word], room: float) -> list[list[_Word]]:
    """Return words in lines, as many in each as fit."""
    lines: list[list[_Word]] = [[]]
    for word in words:
        left = lines[-1][-1].left + lines[-1][-1].width if lines[-1] else 0.0
        if lines[-1] and left + word.width > room:
            lines.append([])
            left = 0.0
        lines[-1].append(replace(word, left=left))
    return lines


def _weight(result: ShiftResult, index: int, text: str) -> str:
    """Return the font weight of a word: bold for the one that is explained, if the font has it."""
    return "bold" if index == result.at and text.isascii() else "normal"


def _write_word(page: Page, result: ShiftResult, word: _Word, left: float, top: float) -> None:
    color = theme().muted if result.special[word.index] else theme().ink
    weight = _weight(result, word.index, word.text)
    wide = page.ruler.width(word.text, TEXT_SIZE, weight)
    middle = left + word.left + word.width / 2
    look: dict[str, Any] = {"points": TEXT_SIZE, "color": color, "weight": weight}
    page.write(middle, top, [word.text], align="center", **look)
    if word.index == result.at:
        under = top + 0.9 * line_height(TEXT_SIZE)
        page.line([(middle - wide / 2, under), (middle + wide / 2, under)])


def _draw_bars(
    ax: Axes,
    line: Sequence[_Word],
    bars: tuple[Sequence[float], Sequence[float]],
    kinds: Sequence[Sequence[float]],
    scale: float,
) -> None:
    """Draw two bars for each word of a line, the first with its range. scale : units per inch."""
    ends = line[0].left, line[-1].left + line[-1].width
    ax.plot(ends, [0, 0], color=theme().muted, linewidth=0.5, clip_on=False)
    with_numbers = [_numbered(shares) for shares in bars]
    for word in line:
        first, second = (shares[word.index] for shares in bars)
        middle, apart = word.left + word.width / 2, int(not math.isnan(first + second))
        if first == first:
            place, color = middle - apart * _APART, theme().sides[first <= 0]
            ax.bar(place, first, width=_BAR, color=color, linewidth=0)
            several = [each[word.index] for each in kinds]
            low, high = min([first, *several]), max([first, *several])
            if len(several) > 1:
                ax.plot([place, place], [low, high], color=theme().ink, linewidth=0.6)
            if word.index in with_numbers[0]:
                _write_number(ax, place, first, high if first > 0 else low, scale, color, -apart)
        if second == second:
            place, edge = middle + apart * _APART, theme().ink
            ax.bar(place, second, width=_BAR, color=theme().ground, edgecolor=edge, linewidth=0.6)
            if word.index in with_numbers[1]:
                _write_number(ax, place, second, second, scale, edge, apart)


def _write_number(
    ax: Axes, place: float, share: float, end: float, scale: float, color: Any, side: int
) -> None:
    """Write a number at the end of what is drawn, on a side of its middle: -1 is left, 1 right."""
    text = "\N{MINUS SIGN}" * (share < 0) + f"{abs(share):.2f}".removeprefix("0")
    tip = end + 0.015 * scale * (1 if share > 0 else -1)
    align: Any = {-1: "right", 0: "center", 1: "left"}[side], "bottom" if share > 0 else "top"
    look = {"fontsize": NUMBER_SIZE, "color": color, "ha": align[0], "va": align[1]}
    ax.text(place - side * _BAR / 2, tip, text, **look)


def _details_caption(result: ShiftResult) -> list[str]:
    """Return what the caption says about the details."""
    split, stream = result.decomposition, result.residual_stream
    total = signed(result.contributions[1].sum().item())
    rho = "; ρ: rank correlation of both (Spearman)" if result.rank_correlations else ""
    parts = [
        f"gray bars: contributions, which sum to {total} (completeness error "
        f"{power(result.contribution_error)}); marks: effects of changing a word{rho}",
        "by layer and by head: direct contributions to the word itself, because the values of "
        "others differ (value) or because it attends to them more or less (routing); completeness "
        f"error {power(split.error)}",
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
    row = min(_ROW, _ALL_WORDS[width > WIDE] / len(result.words))
    words = [literal(word) for word in result.words]
    longest = min(_LONGEST, width / 5)
    labels = fit_ticks(words, row, page.ruler, axis="y", longest=longest, named=result.at)
    left, tall, right = page.left + labels.room, row * len(words), page.right
    is_wide = width > _NARROW
    room = (right - left) * 0.4 if is_wide else right - left - _RIGHT
    title = "Over all paths" if result.is_all_paths else "Directly, by word"
    below = page.subtitle(left, top, title, room) + 0.04
    ax = page.axes(left, below, room, tall)
    _draw_interventions(ax, result)
    labels.apply(ax, "y")
    ax.set_xlabel(page.ruler.longest([_UNIT, "units"], room, TEXT_SIZE), color=theme().muted)
    ranks, key = result.rank_correlations, []
    for name in [*result.causal, *(["consensus"] if "consensus" in ranks else [])]:
        rho = f", {_rho(ranks[name])}" if name in ranks else ""
        key.append(f"{_SIGNS.get(name, '')} {name}{rho}".strip())
    end = page.write(left, below + tall + AXIS_ROOM, key, color=theme().muted)
    if not is_wide:
        return _draw_map(page, result, labels, left, end + 0.1, tall)
    return max(end, _draw_map(page, result, labels, left + room + _GAP + labels.room, top, tall))


def _draw_interventions(ax: Axes, result: ShiftResult) -> None:
    """Draw the contribution of each word as a bar, and the effects of changing it as marks."""
    contributions, count = result.contributions[1].tolist(), len(result.causal)
    middles = np.arange(len(contributions)) + 0.5
    ax.barh(middles, contributions, height=_THICK, color=theme().faint)
    spread = np.linspace(-0.24, 0.24, count) if count > 1 else [0.0] * count
    for offset, (name, effect) in zip(spread, result.causal.items(), strict=True):
        measured = ~effect.isnan()
        rows = np.flatnonzero(measured.numpy()) + 0.5 + offset
        look: dict[str, Any] = {"mfc": theme().ground, "mec": theme().ink, "ms": 3.0, "mew": 0.7}
        ax.plot(effect[measured].tolist(), rows, _MARKERS[name], **look)
    _style_rows(ax, len(contributions))


def _rho(rho: float) -> str:
    return with_minus(f"ρ {rho:.2f}")


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
    every = math.ceil(0.16 * table.shape[1] / (right - left))  # inches between numbers
    shown = np.arange(0, table.shape[1], every)
    ax.set_xticks(shown + 0.5, [str(layer) for layer in shown])
    ax.tick_params(axis="x", length=0)
    ax.set_xlabel("layer", color=theme().muted)
    layout.color_bar(mesh, page.bar(right + BAR_GAP, below, min(tall, 1.2)), "contribution")
    return below + tall + AXIS_ROOM


def _draw_small_panels(page: Page, result: ShiftResult, top: float) -> float:
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
        if draw is _draw_residual_stream and across < 1.2:
            ax.locator_params(axis="x", nbins=3)
        unit = page.ruler.longest([_UNIT, "units"], across, TEXT_SIZE)
        ax.set_xlabel(ax.get_xlabel() or unit, color=theme().muted)
        if mesh is not None:
            layout.color_bar(mesh, page.bar(left + across + BAR_GAP, below, tall), "contribution")
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
    added = {"attention": stream.attention.sum().item(), "MLPs": stream.mlp.sum().item()}
    parts = added | {"biases": stream.bias, "own": stream.own}
    lengths, middles = [*parts.values()], np.arange(len(parts)) + 0.5
    colors = [theme().sides[length <= 0] for length in lengths]
    starts = np.cumsum([0.0, *lengths[:-1]])
    ax.barh(middles, lengths, left=starts, height=_THICK, color=colors)
    ax.axvline(stream.total, color=theme().muted, linewidth=0.5, linestyle=(0, (2, 2)))
    _style_rows(ax, len(parts))
    ax.set_yticks(middles, list(parts))


def _draw_axis(ax: Axes, result: ShiftResult) -> None:
    """Draw the place of the word between the regions, as it enters each layer and at the end."""
    assert result.path is not None
    layers = np.arange(len(result.path))
    for place, name in zip((1, 0), result.regions, strict=True):
        ax.axhline(place, color=theme().muted, linewidth=0.5, linestyle=(0, (2, 2)))
        ax.annotate(  # beyond the lines, where the path seldom goes
            name, (1, place), xycoords=("axes fraction", "data"),
            xytext=(-1, 1.5 if place else -1.5), textcoords="offset points", ha="right",
            va="bottom" if place else "top", color=theme().muted, fontsize=SMALL_SIZE,
            parse_math=False,
        )  # fmt: skip
    ax.plot(layers, result.path.tolist(), "o-", color=theme().claim, linewidth=1.0, ms=2.5)
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


def _style_rows(ax: Axes, rows: int) -> None:
    ax.axvline(0, color=theme().muted, linewidth=0.5)
    ax.set_ylim(rows, 0)
    ax.set_yticks([])
    ax.spines[["left", "top", "right"]].set_visible(False)
    ax.tick_params(axis="y", length=0)
    ax.locator_params(axis="x", nbins=4)
    ax.use_sticky_edges = False
    ax.margins(x=0.05)
