"""What moved a word, panel by panel: each drawn onto axes of its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh

from attnviz.analyses.shift.result import ShiftResult
from attnviz.figures.cells import draw_values, range_of
from attnviz.figures.style import (
    ACCENT,
    CYCLE,
    FAINT,
    INK,
    MUTED,
    SMALL_SIZE,
    value_colours,
)

MARKERS = {"mask": "o", "replace": "s", "knock-out": "^", "delete": "D"}
SIGNS = {"mask": "○", "replace": "□", "knock-out": "△", "delete": "◇"}
_LINED = 60  # words between which a map has lines
VALUE, ROUTING = CYCLE[3], CYCLE[2]


def draw_waterfall(ax: Axes, result: ShiftResult) -> None:
    """Draw a bar for each word, from where the words above it have brought the vector."""
    credit = result.credit
    ends = credit.cumsum(0)
    starts = torch.cat([ends.new_zeros(1), ends[:-1]])
    _bars(ax, credit.tolist(), starts.tolist())
    for row, end in enumerate(ends[:-1].tolist()):
        ax.plot([end, end], [row + 0.5, row + 1.5], color=MUTED, linewidth=0.4, zorder=0)
    ax.axvline(ends[-1].item(), color=MUTED, linewidth=0.5, linestyle=(0, (2, 2)))
    _plain(ax, len(credit))


def draw_causal(ax: Axes, result: ShiftResult) -> None:
    """Draw what is lost where each word is changed, over a bar for what the split says."""
    credit = result.credit
    sources = [at in result.sources for at in range(len(credit))]
    _bars(ax, credit.where(torch.tensor(sources), 0.0).tolist(), [0.0] * len(credit), FAINT)
    spread = np.linspace(-0.24, 0.24, len(result.causal)) if len(result.causal) > 1 else [0.0]
    for offset, (name, lost) in zip(spread, result.causal.items(), strict=True):
        known = ~lost.isnan()
        rows = np.flatnonzero(known.numpy()) + 0.5 + offset
        ax.plot(lost[known].tolist(), rows, MARKERS[name], mfc="white", mec=INK, ms=3.0, mew=0.7)
    _plain(ax, len(credit))


def draw_by_layer(ax: Axes, result: ShiftResult) -> QuadMesh:
    """Draw what the word itself takes from each source word in each layer, all heads together."""
    table = result.by_word(result.decomposition.table.sum(1)).T  # (W, L)
    others = table[[at for at in range(len(table)) if at != result.at]]
    largest = range_of(others) if others.abs().sum() > 0 else None  # the word itself often has most
    return draw_values(ax, table, largest=largest, lines=len(table) <= _LINED)


def draw_parts(ax: Axes, result: ShiftResult) -> None:
    """Draw the value and the routing part of each layer, one bar after the other."""
    split = result.decomposition
    rows = np.arange(len(split.value))
    for part, colour, offset in ((split.value, VALUE, 0.3), (split.routing, ROUTING, 0.7)):
        ax.barh(rows + offset, part.sum((1, 2)).tolist(), height=0.36, color=colour)
    _plain(ax, len(rows))
    ax.set_yticks(rows + 0.5, [str(layer) for layer in rows])
    ax.set_ylabel("layer", color=MUTED)


def draw_by_head(ax: Axes, result: ShiftResult) -> QuadMesh:
    """Draw what each head gives the word directly, layers below each other."""
    table = result.decomposition.table.sum(-1)
    mesh = draw_values(ax, table, lines=True)
    for count, put, name in (
        (table.shape[0], ax.set_yticks, ax.set_ylabel),
        (table.shape[1], ax.set_xticks, ax.set_xlabel),
    ):
        shown = np.arange(0, count, max(1, count // 6))
        put(shown + 0.5, [str(each) for each in shown])
        name("layer" if put == ax.set_yticks else "head", color=MUTED)
    ax.tick_params(length=0)
    return mesh


def draw_account(ax: Axes, result: ShiftResult) -> None:
    """Draw the ledger: what was added on the way from the static to the contextual vector."""
    account = result.residual_stream
    parts = {
        "attention": account.attention.sum().item(),
        "MLPs": account.mlp.sum().item(),
        "biases": account.bias,
        "own": account.own,
    }
    starts = np.cumsum([0.0, *parts.values()])
    _bars(ax, list(parts.values()), starts[:-1].tolist())
    ax.axvline(account.total, color=MUTED, linewidth=0.5, linestyle=(0, (2, 2)))
    _plain(ax, len(parts))
    ax.set_yticks(np.arange(len(parts)) + 0.5, list(parts))


def draw_path(ax: Axes, result: ShiftResult) -> None:
    """Draw where the word stands between the regions, as it enters each layer and at the end."""
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
    """Draw what patching each head does against what the split says of it."""
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
    ax: Axes, lengths: Sequence[float], starts: Sequence[float], colour: str | None = None
) -> None:
    """Draw bars below each other, in the colours of a map unless there is another."""
    signed = [value_colours()(0.8 if length > 0 else 0.2) for length in lengths]
    rows = np.arange(len(lengths)) + 0.5
    ax.barh(rows, lengths, left=starts, height=0.62, color=colour or signed)


def _plain(ax: Axes, rows: int) -> None:
    ax.axvline(0, color=MUTED, linewidth=0.5)
    ax.set_ylim(rows, 0)
    ax.set_yticks([])
    ax.spines[["left", "top", "right"]].set_visible(False)
    ax.tick_params(axis="y", length=0)
    ax.locator_params(axis="x", nbins=4)
    ax.use_sticky_edges = False
    ax.margins(x=0.05)
