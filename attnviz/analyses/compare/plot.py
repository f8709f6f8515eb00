"""Draw checkpoints over a corpus: what changed in which heads, and when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure, SubFigure

from attnviz.analyses.compare.result import CompareResult, Turn
from attnviz.analyses.survey.plot import Panel, grid_of, head_panels
from attnviz.analyses.survey.result import SURE
from attnviz.figures import figure
from attnviz.figures.cells import draw_cells, write_numbers
from attnviz.figures.layout import CaptionLength, Page, line_height, new_page, spread
from attnviz.figures.style import AXIS_ROOM, CAPTION_GAP, FULL_WIDTH, SMALL_SIZE, WIDE, theme
from attnviz.heads import STATISTICS, TITLES
from attnviz.results.text import signed

_LABELS = 0.2  # inches below a panel, for the labels of the checkpoints
_NO_LIMIT = {one.name for one in STATISTICS if one.limit is not None}


@figure
def compare(
    result: CompareResult,
    *,
    width: float = FULL_WIDTH,
    caption: CaptionLength = "short",
    figure: Figure | SubFigure | None = None,
) -> Figure:
    """Draw how far apart the maps of each head are in two models, and how each statistic changed.

    Of three or more checkpoints, draw the path of each head on the statistic that changes most,
    and how many heads have each role.

    Examples
    --------
    >>> import attnviz
    >>> texts = ["the train left the station", "the cat saw the dog", "a man read the book"]
    >>> models = {"float32": attnviz.load(), "bfloat16": attnviz.load(dtype="bfloat16")}
    >>> figure = attnviz.plot.compare(attnviz.compare(texts, models=models))
    """
    with new_page(width, caption, [*result.shown_labels, *result.statistics], figure) as page:
        draw = _draw_checkpoints if result.apart is None else _draw_pair
        end, parts = draw(page, result)
        return page.finish(end + CAPTION_GAP, parts, result.checked_agreement)


def _draw_pair(page: Page, result: CompareResult) -> tuple[float, list[str]]:
    """Draw the distances of maps and the changes; return the lower edge and the caption."""
    assert result.apart is not None
    farthest = result.apart.nan_to_num(-1).argsort(descending=True).tolist()
    models, changed = "from {} to {}".format(*result.shown_labels), result.p_value[0] < SURE
    title = f"No head changed significantly {models}"
    if count := int(changed.any(1).sum()):
        title = (
            f"{count:,} of {len(result.heads):,} heads changed significantly {models}; the maps of "
            f"head {result.heads[farthest[0]]} differ most"
        )
    top = page.heading(title) + 0.06
    nothing = torch.zeros(len(result.heads), dtype=torch.bool, device="cpu")
    panels = [Panel("how far apart the maps are", "apart", result.apart, unsure=nothing)]
    for column, name in enumerate(result.statistics):
        if not (change := result.change[0, :, column]).isnan().all():
            unsure = ~changed[:, column]
            panels.append(Panel(TITLES.get(name, name), name, change, unsure, signed=True))
    return head_panels(page, result.heads, panels, top), _caption(result, farthest)


def _caption(result: CompareResult, farthest: Sequence[int]) -> list[str]:
    first, second = result.shown_labels
    changes = [provenance.with_changes for provenance in result.provenances]
    most = ", ".join(f"{result.heads[n]} ({', '.join(result.distance(n))})" for n in farthest[:8])
    other = result.agreements[1 - result.agreements.index(result.agreement)]
    return [
        f"{result.texts:,} texts, {result.tokens:,} tokens, read by {first}{changes[0]} and "
        f"by {second}{changes[1]}",
        f"each panel: {grid_of(result.heads)[0].directions}",
        "first panel: the root of the Jensen–Shannon divergence between what a head gives to the "
        "same keys in both models, from 0 to 1, mean over rows and texts",
        f"the others: {second} minus {first}, mean over texts; blank: no significant "
        "difference (p ≥ 0.01 by sign flips of the texts, corrected for all heads and statistics)",
        f"farthest apart, with 95 % intervals: {most}",
        *result.notes,
        f"the other model: {other.summary()}",
    ]


def _draw_checkpoints(page: Page, result: CompareResult) -> tuple[float, list[str]]:
    """Draw the paths of all heads on the statistic that changes most; the five longest in color."""
    labels = result.shown_labels
    turns = result.turns()
    finding = f"No head changed significantly over {len(labels)} checkpoints"
    top = page.heading(result.describe(turns[0]) if turns else finding) + 0.06
    statistic = turns[0].statistic if turns else 0
    # How many heads have each role in each checkpoint, the most frequent last one first.
    by_checkpoint = [Counter(filter(None, roles)) for roles in result.roles]
    roles = dict.fromkeys(role for counter in reversed(by_checkpoint) for role in counter)
    numbers = [(role, [counter[role] for counter in by_checkpoint]) for role in roles]
    counts = dict(sorted(numbers, key=lambda item: item[1][::-1], reverse=True))
    beside = page.width > WIDE and bool(counts)
    room = 0.6 * page.room if beside else page.room
    bottom = _draw_paths(page, result, statistic, (page.left, top, room))
    if counts:
        left, start = (page.left + room + 0.25, top) if beside else (page.left, bottom + 0.1)
        bottom = max(bottom, _draw_roles(page, counts, labels, (left, start)))
    return bottom, _caption_of_checkpoints(result, turns)


def _draw_paths(
    page: Page, result: CompareResult, statistic: int, place: tuple[float, float, float]
) -> float:
    """Draw a line for each head, gray but for those that change most; return the lower edge."""
    (left, top, room), labels = place, result.shown_labels
    title = result.title_of(statistic)
    title = f"Weight {title}" if title.startswith("for ") else title[0].upper() + title[1:]
    top = page.subtitle(left, top, f"{title}; gray: all {len(result.heads):,} heads", room) + 0.05
    turns = result.turns(statistic)[:5]
    moved = result.mean[:, [turn.head for turn in turns], statistic]
    lengths = (moved.amax(0) - moved.amin(0)).tolist()  # those that hardly change are left out
    turns = [turn for turn, of in zip(turns, lengths, strict=True) if of >= 0.1 * lengths[0]]
    names = [str(result.heads[turn.head]) for turn in turns]
    named = page.ruler.widest(names, SMALL_SIZE) + 0.12 if names else 0.0
    across, down = room - AXIS_ROOM - named, 2.1 if page.width > WIDE else 1.7
    ax = page.axes(left + AXIS_ROOM, top, across, down)
    paths, steps = result.mean[:, :, statistic].numpy(), np.arange(len(labels))
    segments = [np.column_stack([steps, path]) for path in paths.T]
    opacity = float(np.clip(30 / len(segments), 0.12, 0.7))
    lines = LineCollection(segments, colors=theme().gray, linewidths=0.5, alpha=opacity)
    ax.add_collection(lines)
    shown = [paths]
    for turn, color in zip(turns, theme().cycle, strict=False):
        low, high = (array[:, turn.head, statistic].numpy() for array in (result.low, result.high))
        ax.fill_between(steps, low, high, color=color, alpha=0.2, linewidth=0)
        ax.plot(steps, paths[:, turn.head], color=color, linewidth=1.2, marker="o", markersize=2.5)
        shown += [low, high]
    if turns:
        ax.axvspan(turns[0].step, turns[0].step + 1, color=theme().faint, alpha=0.35, linewidth=0)
    end = float(max(np.nanmax(values, initial=0.0) for values in shown)) or 1.0
    ax.set(xlim=(-0.15, len(labels) - 0.95), ylim=(0, 1.04 * end))
    if result.statistics[statistic] not in _NO_LIMIT:
        ax.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    ax.locator_params(axis="y", nbins=5)
    ax.tick_params(labelsize=SMALL_SIZE)
    _label_checkpoints(page, ax, labels, across / (len(labels) - 0.8))
    heights = top + down * (1 - paths[-1, [turn.head for turn in turns]] / (1.04 * end))
    x, line = left + AXIS_ROOM + across + 0.05, line_height(SMALL_SIZE)
    middles = spread(heights.tolist(), line, top - line, top + down + line / 2)
    for name, color, middle in zip(names, theme().cycle, middles, strict=False):
        page.write(x, middle - line / 2, [name], color=color)
    return top + down + _LABELS


def _label_checkpoints(page: Page, ax: Axes, labels: Sequence[str], room: float) -> None:
    """Write the label below each checkpoint, or below each n-th where there is no room for all."""
    longest = max(room - 0.06, 0.45)
    clipped = [page.ruler.clip(label, longest, SMALL_SIZE) for label in labels]
    every = max(1, int(np.ceil((page.ruler.widest(clipped, SMALL_SIZE) + 0.06) / room)))
    places = range(0, len(labels), every)
    ax.set_xticks(places, [clipped[place] for place in places], fontsize=SMALL_SIZE)
    ax.tick_params(axis="x", length=0, pad=5)


def _draw_roles(
    page: Page, counts: dict[str, list[int]], labels: Sequence[str], place: tuple[float, float]
) -> float:
    """Draw how many heads have each role in each checkpoint; return the lower edge."""
    left, top = place
    room = page.right - left
    top = page.subtitle(left, top, "Heads with each role", room) + 0.05
    named = page.ruler.widest(list(counts), SMALL_SIZE) + 0.08
    across, down = room - named, 0.2 * len(counts)
    ax = page.axes(left + named, top, across, down)
    numbers, cell = torch.tensor([*counts.values()], device="cpu").double(), across / len(labels)
    rows, columns = (np.arange(-0.5, size) for size in numbers.shape)
    norm, edges = Normalize(0, float(numbers.max())), (rows, columns)
    mesh = draw_cells(ax, numbers, theme().weights, norm, lines=False, edges=edges)
    if page.ruler.widest([f"{numbers.max():.0f}"], SMALL_SIZE) < cell - 0.03:
        write_numbers(ax, mesh, numbers, "{:.0f}".format, SMALL_SIZE, edges=edges)
    ax.set_yticks(range(len(counts)), list(counts), fontsize=SMALL_SIZE)
    ax.tick_params(axis="y", length=0)
    ax.spines[:].set(visible=True, color=theme().faint, linewidth=0.4)
    _label_checkpoints(page, ax, labels, cell)
    return top + down + _LABELS


def _caption_of_checkpoints(result: CompareResult, turns: Sequence[Turn]) -> list[str]:
    labels = result.shown_labels
    parts = [
        f"{len(labels)} checkpoints read the same {result.texts:,} texts, {result.tokens:,} tokens"
    ]
    if turns:
        turn = turns[0]
        at = turn.step, turn.head, turn.statistic
        before, after = result.mean[turn.step : turn.step + 2, turn.head, turn.statistic].tolist()
        change, low, high = (
            signed(float(numbers[at]))
            for numbers in (result.change, result.change_low, result.change_high)
        )
        parts.append(
            f"head {result.heads[turn.head]} goes from {before:.2g} to {after:.2g}, by {change} "
            f"(95% interval {low} to {high})"
        )
    parts += [
        f"{len(turns):,} of {len(result.heads):,} heads changed significantly in a step",
        "color: the longest paths with a significant step, with 95% intervals over texts of the "
        "means",
        "significant: p < 0.01 by sign flips of the texts, corrected for all heads, statistics and "
        "steps; paths are compared as shares of the most that a statistic can be",
        "roles as in a survey: on half of the texts, confirmed on the other half",
        *result.notes,
    ]
    agreements = zip(labels, result.agreements, strict=True)
    return [*parts, *(f"{label}: {report.summary()}" for label, report in agreements)]
