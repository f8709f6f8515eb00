"""Draw what the output of a model loses without each head."""

from __future__ import annotations

import torch
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure, SubFigure
from torch import Tensor

from attnviz.analyses.ablate.result import AblationResult
from attnviz.figures import figure
from attnviz.figures.cells import HeadGrid, frame, signed_norm
from attnviz.figures.layout import CaptionLength, Page, new_page
from attnviz.figures.style import AXIS_ROOM, CAPTION_GAP, FULL_WIDTH, SMALL_SIZE, theme
from attnviz.results.text import signed, source

_GAP, _BELOW, _ROW = 0.25, 0.12, 0.19


@figure
def ablate(
    result: AblationResult,
    *,
    width: float = FULL_WIDTH,
    caption: CaptionLength = "short",
    figure: Figure | SubFigure | None = None,
) -> Figure:
    """Draw what is lost without each head, and the heads without which most is lost.

    Examples
    --------
    >>> import attnviz
    >>> lost = attnviz.ablate("the train left the station", word="train")
    >>> figure = attnviz.plot.ablate(lost)
    """
    with new_page(width, caption, [*result.targets, "→−"], figure) as page:
        top = page.heading(result.headline) + 0.08
        left, bottom = page.left, 0.0
        if (grid := result.grid(result.mean)) is not None:
            beside = page.width > 4.0
            room = 0.58 * page.room if beside else page.room
            bottom = _draw_effects(page, result, grid, top, room)
            left, top = (left + room + _GAP, top) if beside else (left, bottom + _BELOW)
        bottom = max(bottom, _draw_bars(page, result, left, top))
        texts = len(result.texts)
        several = f"{texts} texts, {result.provenance.model}"
        after = {
            "total": "everything after it is recomputed",
            "direct": "only where the output is read, and all other heads are fixed",
        }[result.effect]
        read = source(result.provenance) if texts == 1 else several
        parts = [read, f"{result.how}; {after}", *result.notes]
        return page.finish(bottom + CAPTION_GAP, parts, result.checked_agreement)


def _draw_effects(
    page: Page, result: AblationResult, effects: Tensor, top: float, room: float
) -> float:
    """Draw what is lost without each head (L, H), with a key below; return the lower edge."""
    layers, heads = effects.shape
    grid = HeadGrid(range(layers), range(heads))
    left, room = page.left + AXIS_ROOM, room - AXIS_ROOM
    across = min(0.22, room / grid.columns)
    down = min(0.22, max(across, 0.1, 1.5 / grid.rows), 3.0 / grid.rows)
    scale = signed_norm(effects.flatten().tolist())
    ax = grid.draw(page, (left, top), (across, down), effects, cmap=theme().values, norm=scale)
    for one in result.sets[result.first] if result.mean.abs().max() >= result.least else ():
        frame(ax, grid.place(*one), (1, 1))
    verb = "moves" if result.quantity == "vector" else "raises"
    what = "lead" if result.quantity == "difference" else result.quantity
    key = f"orange: the head {verb} the {what} (at most {scale.vmax:.2g} {result.unit})"
    key += "; blue: lowers it" if (effects < 0).any() else ""
    return page.paragraph(left, top + down * grid.rows + AXIS_ROOM, key, room)


def _draw_bars(page: Page, result: AblationResult, left: float, top: float) -> float:
    """Draw a bar for each of the heads that change most, with its interval; return the end."""
    shown, room = result.strongest[:8], page.right - left
    top = page.subtitle(left, top, "The largest effects (layer.head)", room) + 0.03
    names = [page.ruler.clip(result.names[index], room / 3, SMALL_SIZE) for index in shown]
    label = page.ruler.widest(names, SMALL_SIZE) + 0.08
    tall = _ROW * len(shown)
    ax = page.axes(left + label, top, room - label - 0.5, tall, bare=True)
    values, intervals = result.mean[shown], result.intervals[shown]
    ends = torch.cat([values, intervals.flatten(), torch.zeros(1, dtype=values.dtype)])
    least, most = ends[ends.isfinite()].aminmax()
    is_certain = (result.is_certain | (not result.is_tested))[shown].tolist()
    colors = [
        to_rgba(theme().sides[int(value < 0)], 1.0 if certain else 0.4)
        for value, certain in zip(values.tolist(), is_certain, strict=True)
    ]
    places = range(len(shown))
    ax.barh(places, values.tolist(), height=0.7, color=colors)
    for place, (low, high) in zip(places, intervals.tolist(), strict=True):
        ax.plot([low, high], [place, place], color=theme().ink, linewidth=0.8)
    ax.axvline(0, color=theme().muted, linewidth=0.5)
    limits = (float(least), float(most)) if least < most else (0.0, 1.0)
    ax.set(ylim=(len(shown) - 0.5, -0.5), xlim=limits)
    for place, (name, value) in enumerate(zip(names, values.tolist(), strict=True)):
        middle, ink, muted = top + (place + 0.5) * _ROW, theme().ink, theme().muted
        texts = (left + label - 0.05, name, ink), (left + room, signed(value), muted)
        for x, text, color in texts:
            page.write(x, middle, [text], align="right", va="center_baseline", color=color)
    moved = {"vector": "moved, as a share of its length"}
    parts = [moved.get(result.quantity, f"{result.unit} lost")]
    if len(result.texts) > 1:
        parts.append("lines: 95 % intervals over texts")
    if not all(is_certain):
        parts.append(f"pale: not certain, corrected for {len(result.sets)} tests")
    if (rho := result.rank_correlation) is not None:
        parts.append(f"rank correlation of the gradient’s estimate: {signed(rho)}")
    return page.paragraph(left, top + tall + 0.04, "; ".join(parts), room)
