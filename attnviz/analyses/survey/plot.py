"""Draw a survey: the roles of all heads, and each statistic as a map of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure, SubFigure
from matplotlib.patches import Rectangle
from torch import Tensor

from attnviz.analyses.survey.result import POSITIONS, SURE, HeadName, SurveyResult
from attnviz.figures import figure
from attnviz.figures.cells import HeadGrid, draw_scales
from attnviz.figures.layout import CaptionLength, Page, line_height, new_page
from attnviz.figures.style import AXIS_ROOM, FULL_WIDTH, SMALL_SIZE, WIDE, theme
from attnviz.heads import RESTING_ROLES, STATISTICS_OF, TITLES
from attnviz.results.text import literal

_LARGEST_CELL = 0.3  # inches of a head in the grid of roles
_BAR = 0.14  # inches of a named head
_LONGEST_NAME = 40  # letters of the name of a model
_CONFIRMED = 0.2  # inches of a role that ablation confirms
_BOLD = 0.88  # the width of text over that of bold text
_GAP = 0.18  # inches between panels
_NUMBERS = 0.12  # inches left of a panel


@figure
def survey(
    result: SurveyResult,
    *,
    width: float = FULL_WIDTH,
    caption: CaptionLength = "short",
    figure: Figure | SubFigure | None = None,
) -> Figure:
    """Draw the role of every head, how much the named heads attend, and all statistics.

    Examples
    --------
    >>> import attnviz
    >>> texts = ["the train left the station", "the cat saw the dog", "a man read the book"]
    >>> figure = attnviz.plot.survey(attnviz.survey(texts))
    """
    texts, least = [result.provenance.model, *result.statistics], 80 if result.confirmations else 60
    with new_page(width, caption, texts, figure, narrowest=least) as page:
        top = _draw_roles(page, result, page.heading(_title(result)) + 0.06)
        if any(one.random_accuracies for one in result.confirmations):
            top = _draw_confirmations(page, result, top) + _GAP
        # Statistics without even weights are compared with shuffled tokens.
        p_values = torch.where(result.even.isnan(), result.p_shuffled, result.p_even)
        columns = zip(result.statistics, result.mean.T, p_values.T, result.count.T, strict=True)
        panels = [
            Panel(TITLES.get(name, name), name, mean, p_value >= SURE, bool((mean < 0).any()))
            for name, mean, p_value, count in columns
            if count.any()
        ]
        directions = grid_of(result.heads)[0].directions
        of_what = " of signed weights" * result.signed
        top = page.subtitle(page.left, top, f"Each statistic{of_what}: {directions}", page.room)
        end = "the number above; faint: not surely unlike shuffled keys"
        bars = [("each panel: 0", ScalarMappable(cmap=theme().weights), end)]
        top = draw_scales(page, bars, (page.left, page.right), top + 0.03) + 0.08
        top = head_panels(page, result.heads, panels, top)
        return page.finish(top, _caption(result), result.checked_agreement)


def grid_of(heads: Sequence[HeadName]) -> tuple[HeadGrid, list[tuple[int, int]]]:
    """Return the grid of all heads, and the layer and head of each there, counted from 0."""
    layers = list(dict.fromkeys((head.stack, head.layer) for head in heads))
    grid = HeadGrid([layer for _, layer in layers], range(1 + max(head.head for head in heads)))
    return grid, [(layers.index((head.stack, head.layer)), head.head) for head in heads]


def _title(result: SurveyResult) -> str:
    roles = Counter(role for role in result.roles if role)
    model, texts = (literal(result.provenance.model, _LONGEST_NAME), f"on {result.read}")
    if not roles:
        return f"No head of {model} has a confirmed role {texts}"
    if sure := [one for one in result.confirmations if one.confirmed]:
        first = max(sure, key=lambda one: one.accuracy - one.accuracy_without)
        count = len(first.ablated or first.heads)
        heads = f"{count} “{first.role}” head{'s' * (count > 1)}"
        return (
            f"{first.behavior.capitalize()} falls from {first.accuracy:.0%} to "
            f"{first.accuracy_without:.0%} without {heads} of {model}"
        )
    role, count = roles.most_common(1)[0]
    most = f"most often “{role}” ({count})"
    if role in RESTING_ROLES:
        most = f"and {count:,} of these {role if count == 1 else role.replace('rests', 'rest')}"
    return f"{sum(roles.values()):,} of {len(result.heads):,} heads have a role {texts}, {most}"


def _colors(result: SurveyResult) -> dict[str, str]:
    """Return the color of each role, the rarest first."""
    roles = Counter(role for role in result.roles if role)
    return {role: theme().role(role) for role, _ in reversed(roles.most_common())}


def _draw_roles(page: Page, result: SurveyResult, top: float) -> float:
    """Draw the role of each head in a grid, and beside it the heads with a role, by name."""
    colors = _colors(result)
    grid, places = grid_of(result.heads)
    is_wide = page.width > WIDE
    room = (0.5 if is_wide else 1.0) * page.room - AXIS_ROOM
    across = min(room / grid.columns, _LARGEST_CELL)
    down = min(max(across, room / 2 / grid.rows), 2 * across, _LARGEST_CELL)
    ax = page.axes(page.left + AXIS_ROOM, top, across * grid.columns, down * grid.rows)
    line: dict[str, Any] = {"edgecolor": theme().faint, "linewidth": min(0.4, 4 * across)}
    claim = line | {"edgecolor": theme().claim, "linewidth": min(0.9, 8 * across), "zorder": 2}
    is_confirmed = any(one.confirmed for one in result.confirmations)  # then the title says so
    claimed = None if is_confirmed else next(reversed(colors), None)
    for place, role in zip(places, result.roles, strict=True):
        fill, look = colors.get(role, theme().ground), claim if role and role == claimed else line
        ax.add_patch(Rectangle(grid.place(*place), 1, 1, facecolor=fill, clip_on=False, **look))
    ax.set(xlim=(0, grid.columns), ylim=(grid.rows, 0))
    ax.spines[:].set_visible(False)
    grid.number_sides(ax, (across, down))
    key = [("■", color, result.name_of(role)) for role, color in colors.items()]
    left, bottom = page.left + AXIS_ROOM, top + down * grid.rows + AXIS_ROOM
    bottom = page.legend(left, bottom, left + room, key)
    if not is_wide:
        return _draw_named(page, result, (page.left, page.right), bottom + _GAP) + _GAP
    left = page.left + 0.5 * page.room + _GAP
    return max(bottom, _draw_named(page, result, (left, page.right), top)) + _GAP


def _draw_named(page: Page, result: SurveyResult, place: tuple[float, float], top: float) -> float:
    """Draw the heads with a role: their mean weight with its interval, beside even weights."""
    colors = _colors(result)
    declared = STATISTICS_OF["linear" if result.signed else result.kind]
    measured = [one for one in declared if one.name in result.statistics]
    columns = {one.role: result.of(one.name) for one in measured}
    mean = {n: float(result.mean[n, columns[role]]) for n, role in enumerate(result.roles) if role}
    named = sorted(mean, key=lambda n: (result.roles[n] in RESTING_ROLES, -mean[n]))
    shown = named[:12]
    left, right = place
    measure = "|weight|" if result.signed else "weight"
    title = f"Mean {measure} of heads with a role (line: even weights)"
    top = page.subtitle(left, top, title, right - left) + 0.02
    if not shown:
        return page.write(left, top, ["none"], color=theme().muted)
    labels = [f"{result.heads[n]}  {result.roles[n]}" for n in shown]
    room = page.ruler.widest(labels, SMALL_SIZE) + 0.08
    height = _BAR * len(shown)
    ax = page.axes(left + room, top, right - left - room - 0.3, height)
    for y, n in enumerate(shown):
        column = columns[result.roles[n]]
        low, high, even = (float(of[n, column]) for of in (result.low, result.high, result.even))
        ax.barh(y, mean[n], height=0.7, color=colors[result.roles[n]])
        ax.plot([low, high], [y, y], color=theme().ink, linewidth=0.8)
        ax.plot([even, even], [y - 0.42, y + 0.42], color=theme().ink, linewidth=1.0)
        end = np.nanmax([mean[n], high, even]) + 0.015
        ax.text(end, y, f"{mean[n]:.0%}", fontsize=SMALL_SIZE, va="center_baseline")
        page.write(left, top + _BAR * (y + 0.5), [labels[y]], va="center_baseline")
    ax.set(xlim=(0, 1), ylim=(len(shown) - 0.5, -0.5), yticks=[], xticks=[0, 0.5, 1])
    ax.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    ax.tick_params(labelsize=SMALL_SIZE)
    bottom = top + height + 0.16
    if len(named) > len(shown):
        more = f"{len(named) - len(shown)} more heads have a role."
        bottom = page.write(left, bottom, [more], color=theme().muted)
    return bottom


def _draw_confirmations(page: Page, result: SurveyResult, top: float) -> float:
    """Draw how often the answers of a probe are right without the heads of each role."""
    shown = [one for one in result.confirmations if one.random_accuracies]
    inner, colors = page.room, _colors(result)
    behaviors = dict.fromkeys(one.behavior for one in shown)
    title = f"{', '.join(behaviors).capitalize()}: right without the heads of a role"
    top = page.subtitle(page.left, top, title, inner) + 0.02
    labels = [
        f"{len(one.ablated or one.heads)} × {one.role}{'' if one.confirmed else ', not confirmed'}"
        for one in shown
    ]
    room = page.ruler.widest(labels, SMALL_SIZE) + 0.08
    height = _CONFIRMED * len(shown)
    ax = page.axes(page.left + room, top, inner - room - 0.3, height)
    for y, one in enumerate(shown):
        ax.barh(y, one.accuracy_without, height=0.6, color=colors.get(one.role, theme().muted))
        ax.plot(
            one.random_accuracies, [y] * len(one.random_accuracies), "|",
            color=theme().ink, markersize=5, markeredgewidth=0.6,
        )  # fmt: skip
        ax.plot([one.accuracy] * 2, [y - 0.5, y + 0.5], "--", color=theme().muted, linewidth=0.8)
        middle, share = top + _CONFIRMED * (y + 0.5), f"{one.accuracy_without:.0%}"
        page.write(page.left, middle, [labels[y]], va="center_baseline")
        page.write(page.right, middle, [share], align="right", va="center_baseline")
    ax.set(xlim=(0, 1), ylim=(len(shown) - 0.5, -0.5), yticks=[], xticks=[0, 0.5, 1])
    ax.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    ax.tick_params(labelsize=SMALL_SIZE)
    whole = ", ".join(dict.fromkeys(f"{one.accuracy:.0%}" for one in shown))
    key = f"dashed: the whole model, {whole}; ticks: without as many random heads"
    return page.paragraph(page.left, top + height + 0.2, key, inner)


def _caption(result: SurveyResult) -> list[str]:
    with_roles = zip(result.heads, result.roles, strict=True)
    named = [f"{name} {role}" for name, role in with_roles if role and role not in RESTING_ROLES]
    columns = zip(result.statistics, result.count.any(0).tolist(), strict=True)
    missing = [name for name, measured in columns if not measured]
    compared = (
        f"on {result.sampled} of the texts the matrices were compared with the model's own "
        "mixture of values; it returns no weights to compare the statistics with"
    )
    if not result.signed:
        compared = (
            f"in {result.compared:,} of the texts the statistics differ from those of the model's "
            f"own weights by at most {result.agreement.largest_difference('statistics'):.0e} of "
            "the most they can be"
        )
    return [
        f"{result.read}, {result.tokens:,} {POSITIONS[result.kind]}, read by "
        f"{literal(result.provenance.model, _LONGEST_NAME)}{result.provenance.with_changes}",
        *result.notes,
        "bars with 95% intervals over texts; faint: no significant difference from shuffled keys",
        f"each panel: {grid_of(result.heads)[0].directions}; means over texts of the mean over "
        "tokens other than special tokens",
        "faint: no significant difference (p ≥ 0.01 by sign flips of the texts, corrected for "
        "all heads and statistics) from what the keys of each query give when they are shuffled; "
        "of entropy and of the token read most, from what the model does on shuffled tokens",
        "named: heads whose weight exceeds that of shuffled keys by a quarter on half of the "
        f"texts, significantly so on the other half: {', '.join(named) or 'none'}",
        *([f"no text has tokens for: {', '.join(missing)}"] if missing else []),
        compared,
    ]


@dataclass(frozen=True, eq=False)
class Panel:
    """One number of each of K heads, (K,), and which heads are unsure."""

    title: str
    name: str  # shown where the title has no room
    values: Tensor
    unsure: Tensor
    signed: bool = False  # whether numbers may be negative


def head_panels(
    page: Page, heads: Sequence[HeadName], panels: Sequence[Panel], top: float
) -> float:
    """Draw panels of heads; unsure ones are faint, or blank if signed. Return the lower edge."""
    least = 1.35 if page.width > WIDE else 0.95
    columns = max(1, int((page.room + _GAP) / (least + _GAP)))
    across = (page.room - (columns - 1) * _GAP) / columns - _NUMBERS
    grid, places = grid_of(heads)
    high = max(min(across / grid.columns, 0.2) * grid.rows, 0.4)
    line = line_height(SMALL_SIZE)
    step = line + high + 0.26
    cells = tuple(zip(*places, strict=True))
    for number, panel in enumerate(panels):
        x = page.left + number % columns * (across + _NUMBERS + _GAP) + _NUMBERS
        y = top + number // columns * step
        largest = float(np.nanmax(panel.values.double().abs().numpy(), initial=0.0))
        end = _rounded_up(largest) if largest > 1e-9 else 1.0
        limit = f"{'±' * panel.signed}{end:g}"
        room = across - page.ruler.width(limit, SMALL_SIZE) - 0.06
        title = page.ruler.longest((panel.title, panel.name), _BOLD * room, SMALL_SIZE)
        title = page.ruler.clip(title, _BOLD * room, SMALL_SIZE)
        page.write(x, y, [title], points=SMALL_SIZE, weight="bold")
        page.write(x + across, y, [limit], points=SMALL_SIZE, color=theme().muted, align="right")
        ax = page.axes(x, y + line + 0.02, across, high)
        size = len(grid.layers), len(grid.heads)
        values = torch.full(size, torch.nan, dtype=torch.float64, device="cpu")
        values[cells] = panel.values.double()
        unsure = torch.zeros_like(values, dtype=torch.bool)
        unsure[cells] = panel.unsure & ~panel.values.isnan()
        ax.imshow(
            grid.arrange(values).numpy(),
            theme().values if panel.signed else theme().weights,
            aspect="auto", origin="upper", interpolation="nearest",
            norm=Normalize(-end if panel.signed else 0.0, end),
            alpha=np.where(grid.arrange(unsure).numpy(), 0.0 if panel.signed else 0.25, 1.0),
        )  # fmt: skip
        ax.set_xticks(range(0, grid.columns, max(1, grid.columns // 4)))
        ax.set_yticks(range(0, grid.rows, math.ceil(grid.rows / 4)))
        ax.tick_params(length=0, labelsize=SMALL_SIZE, colors=theme().muted, pad=1)
        ax.spines[:].set(visible=True, color=theme().faint, linewidth=0.4)
    return top + math.ceil(len(panels) / columns) * step


def _rounded_up(number: float) -> float:
    """Return the next number with one digit."""
    unit = 10.0 ** math.floor(math.log10(number))
    return float(f"{math.ceil(number / unit - 1e-9) * unit:.6g}")
