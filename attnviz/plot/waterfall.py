"""What moved a word, from source to source: an exact split beside what masking each word does."""

from __future__ import annotations

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from attnviz.plot import caption
from attnviz.plot.cells import draw_values
from attnviz.plot.formulas import power
from attnviz.plot.layout import Page, Ruler, colour_bar
from attnviz.plot.style import (
    ACCENT,
    CYCLE,
    FAINT,
    FULL_WIDTH,
    INK,
    MM,
    MUTED,
    SMALL_SIZE,
    TEXT_SIZE,
    TITLE_SIZE,
    literal,
    style,
)
from attnviz.plot.ticks import fit_ticks
from attnviz.records import ShiftResult

_MARGIN, _GAP, _ROW = 0.06, 0.35, 0.17  # inches
_TALLEST = 6.0  # inches of all rows
_LONGEST = 0.9  # inches of a token's label at most
_BAR = 0.6  # inches that a colour bar takes with its numbers and its label


def waterfall(result: ShiftResult, *, width: float = FULL_WIDTH) -> Figure:
    """Draw what every source brought to a word: over all paths, when masked, and by layer.

    Parameters
    ----------
    result : from `shift`.
    width : in mm: 89 is one column of a journal, 183 two.
    """
    named = literal(result.word)
    with style([*result.tokens, result.reference, caption.source(result.provenance)]):
        page, ruler = Page(width * MM), Ruler()
        left, right = _MARGIN, page.width - _MARGIN
        toward = f" toward {result.regions[0]}, from {result.regions[1]}" if result.regions else ""
        lines = ruler.wrap(f"What moved “{named}”{toward}", right - left, TITLE_SIZE)
        top = page.write(left, _MARGIN, lines, points=TITLE_SIZE) + 0.1
        end = _draw(page, ruler, result, (left, right), top)
        end = caption.write_caption(page, (left, right), end + 0.1, _said(result), result.agreement)
        return page.finish(end + _MARGIN)


def _said(result: ShiftResult) -> list[str]:
    secant = result.secant
    unit = "along the axis of the two regions" if result.regions else "along the shift itself"
    said = [
        caption.source(result.provenance),
        f"compared with {result.reference}",
        f"bars: what each source brought over all paths, {unit}; they and the start sum to "
        f"{secant.total:.2f} (completeness error {power(secant.credit_error)})",
    ]
    if result.causal is not None:
        rank = result.rank_correlation
        told = "" if rank is None else f"; rank correlation with the bars {rank:.2f}"
        said.append(f"circles: what is lost where this one word is replaced by [MASK]{told}")
    said.append(
        "map: what the word itself takes from each source in each layer, all heads together "
        f"(completeness error {power(secant.error)})"
    )
    return [*said, *result.notes]


def _draw(
    page: Page, ruler: Ruler, result: ShiftResult, place: tuple[float, float], top: float
) -> float:
    """Draw bars and map side by side, or below each other where that is narrow."""
    left, right = place
    T = len(result.tokens)
    down = min(_ROW, _TALLEST / T)
    labels = fit_ticks(
        result.tokens, down, ruler, axis="y", longest=_LONGEST, named=result.pieces[0]
    )
    wide = right - left > 5.0
    room = right - left - labels.room
    room = (room - labels.room - _GAP - _BAR) / 2 if wide else room
    head = ["brought over all paths; lost where masked"]
    below = page.write(left + labels.room, top, head, points=TEXT_SIZE) + 0.04
    ax = page.axes(left + labels.room, below, room - 0.3, down * T)
    _bars(ax, result)
    labels.apply(ax, "y")
    end = below + down * T + 0.3
    at = left + labels.room + room + _GAP + labels.room if wide else left + labels.room
    start = top if wide else end + 0.15
    room = room if wide else room - _BAR
    below = page.write(at, start, ["taken directly, by layer"], points=TEXT_SIZE) + 0.04
    table = result.secant.table.sum(1).mT  # (T, L)
    ax = page.axes(at, below, room, down * T)
    mesh = draw_values(ax, table, lines=down > 0.08)
    labels.apply(ax, "y")
    layers = table.shape[1]
    ax.set_xticks(np.arange(layers) + 0.5, [str(layer) for layer in range(layers)])
    ax.tick_params(axis="x", length=0)
    ax.set_xlabel("layer", color=MUTED)
    colour_bar(mesh, page.axes(at + room + 0.1, below, 0.08, min(down * T, 1.2)), "contribution")
    return max(end, below + down * T + 0.3)


def _bars(ax: Axes, result: ShiftResult) -> None:
    """Draw a bar for what each source brought, and a circle for what masking it takes."""
    credit, T = result.secant.credit, len(result.tokens)
    rows = np.arange(T) + 0.5
    colours = [FAINT if result.special[at] else CYCLE[0] for at in range(T)]
    for at in result.pieces:
        colours[at] = ACCENT
    ax.barh(rows, credit.tolist(), height=0.62, color=colours)
    if result.causal is not None:
        known = ~result.causal.isnan()
        where = torch.from_numpy(rows)[known].tolist()
        ax.plot(result.causal[known].tolist(), where, "o", mfc="white", mec=INK, ms=3.5, mew=0.8)
    ax.axvline(0, color=MUTED, linewidth=0.5)
    ax.set_ylim(T, 0)
    ax.spines[["left", "top", "right"]].set_visible(False)
    ax.tick_params(axis="y", length=0)
    ax.set_xlabel("contribution", color=MUTED, fontsize=SMALL_SIZE)
