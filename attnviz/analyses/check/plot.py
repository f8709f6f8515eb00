"""Draw how far another tool's weights are from those of attnviz, head by head."""

from __future__ import annotations

import math

import torch
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure, SubFigure

from attnviz.analyses.check.result import CheckResult
from attnviz.figures import figure
from attnviz.figures.cells import decimals, draw_cells, frame, number_axis, write_numbers
from attnviz.figures.claims import quoted
from attnviz.figures.layout import CaptionLength, Page, color_bar, new_page
from attnviz.figures.style import AXIS_ROOM, BAR_ROOM, FULL_WIDTH, GAP, SMALL_SIZE, power, theme
from attnviz.results.text import source


@figure
def check(
    result: CheckResult,
    *,
    width: float = FULL_WIDTH,
    caption: CaptionLength = "short",
    figure: Figure | SubFigure | None = None,
) -> Figure:
    """Draw the largest difference of each head: layers down, heads across.

    Heads that agree are blank; the first that differs has a frame.

    Examples
    --------
    >>> import attnviz
    >>> result = attnviz.attend("the train left the station")
    >>> weights = result.weights()
    >>> weights[2, [1, 5]] = weights[2, [5, 1]]  # two heads exchanged
    >>> figure = attnviz.plot.check(attnviz.check(weights, result))
    """
    with new_page(width, caption, [source(result.provenance), *result.hints], figure) as page:
        top = page.heading(_title(result))
        below = [f"Hint: {hint}." for hint in result.hints]
        below += [f"{note[0].upper()}{note[1:]}." for note in result.notes]
        if (first := result.first) is not None:
            differ = f"{int((~result.agree).sum())} of {len(result)} heads differ"
            cell = f"From {quoted(first.query)} to {quoted(first.key)}"
            weights = f"{first.theirs:.4g} instead of {first.ours:.4g}"
            below.insert(0, f"{cell} it has {weights}; {differ}.")
        for line in below:
            top = page.subheading(top, line)
        bottom = _draw_heads(page, result, top + GAP)
        parts = [
            f"another tool's weights beside attnviz's own, which have the verdict below, on "
            f"{source(result.provenance)}",
            "blank: the head agrees",
            "color: the largest difference of a weight, on a logarithmic scale from what rounding "
            "explains in two runs",
        ]
        return page.finish(bottom + GAP, parts, result.checked_agreement)


def _title(result: CheckResult) -> str:
    if result.first is None:
        heads = f"{len(result)} heads of {result.where}"
        if result.notes:
            return f"No difference found in {heads}"
        largest = _largest(result)
        return f"All {heads} agree{f', to {largest:.0e}' if largest else ' exactly'}"
    of_first = result.differences[~result.agree][0].item()
    where = f"Layer {result.first.layer}, head {result.first.head} is the first that differs"
    return f"{where}: by {of_first:.2g}" if math.isfinite(of_first) else where


def _draw_heads(page: Page, result: CheckResult, top: float) -> float:
    """Draw a cell for each head, with a color bar if any differs; return the lower edge."""
    layers, heads = [*dict.fromkeys(result.layers)], 1 + max(result.heads)
    low = result.tolerances.min().item()
    # A head may differ by less than the largest that passes: a wrong scale. It is not blank either.
    most = max(_largest(result), 10 * low)
    norm = LogNorm(low / 10, most)
    table = torch.full((len(layers), heads), torch.nan, dtype=torch.float64, device="cpu")
    finite = result.differences.isfinite()
    shown = result.differences.clamp(min=low).masked_fill(~finite, 2 * most)
    rows = [layers.index(layer) for layer in result.layers]
    table[rows, list(result.heads)] = shown.double().masked_fill(result.agree, torch.nan)
    room = page.room - AXIS_ROOM - BAR_ROOM
    across = min(0.2 if result.agrees else 0.36, room / heads)
    down = min(across, 7.0 / len(layers))
    ax = page.axes(page.left + AXIS_ROOM, top, across * heads, down * len(layers))
    colors = theme().weights.with_extremes(over=theme().alarm)
    mesh = draw_cells(ax, table, colors, norm, edgecolors=theme().faint, linewidth=0.6)
    if across >= 0.3:  # inches, where numbers have room

        def say(number: float) -> str:
            shown = decimals(number) if number >= 0.005 else power(number)
            return shown if number <= most else "NaN"

        write_numbers(ax, mesh, table, say, SMALL_SIZE - 0.5, shown=~table.isnan())
    if result.first is not None:
        frame(ax, (result.first.head, layers.index(result.first.layer)), (1, 1))
        left = page.left + AXIS_ROOM + across * heads + GAP
        bar = page.bar(left, top, down * len(layers))
        color_bar(ScalarMappable(norm, theme().weights), bar, "", say=lambda x, _: power(x))
    number_axis(ax.xaxis, range(heads), across, "head")
    number_axis(ax.yaxis, layers, down, "layer")
    return top + down * len(layers) + AXIS_ROOM


def _largest(result: CheckResult) -> float:
    """Return the largest difference of a weight that is a number."""
    return float(result.differences.nan_to_num(0.0, 0.0, 0.0).max())
