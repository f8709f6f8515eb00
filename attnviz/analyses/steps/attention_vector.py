"""The attention vector of one word, unfolded into what each key brings: a = Σ_j α_j v_j."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure
from torch import Tensor

from attnviz.analyses.steps.compute import steps
from attnviz.analyses.steps.result import StepsResult
from attnviz.errors import InputError
from attnviz.figures import caption
from attnviz.figures.cells import decimals, draw_values, range_of
from attnviz.figures.formulas import as_math
from attnviz.figures.layout import (
    Page,
    Ruler,
    line_height,
    range_bar,
)
from attnviz.figures.style import (
    CYCLE,
    FULL_WIDTH,
    MM,
    MUTED,
    SMALL_SIZE,
    TEXT_SIZE,
    style,
)
from attnviz.results import AttentionResult
from attnviz.results.words import literal, selection, source

_MARGIN, _GAP, _ROW = 0.06, 0.14, 0.15  # inches
_MOST = 12  # rows; the keys with the smallest weights are joined in one
_SHOWN = 0.99  # of the values, whose colours can be told apart
_LONGEST = 0.8  # inches of a token's label at most
_NUMBER = 0.3  # inches for a weight, and for a share
_BAR = 0.6  # inches that a colour bar takes with its numbers and its label


def attention_vector(
    result: AttentionResult | StepsResult,
    *,
    layer: int | None = None,
    head: int | None = None,
    word: str | int | None = None,
    width: float = FULL_WIDTH,
) -> Figure:
    """Draw the attention vector of one word as the sum that it is: a = Σ_j α_j v_j.

    Beside each key stands what share of the vector it makes up, α_j v_j · a / a · a: a large weight
    on a small value adds little.

    Parameters, result and errors are those of `steps`.
    """
    taken = take(result, layer, head, word)
    with style([*taken.keys, taken.word, source(taken.provenance)]):
        page = Page(width * MM)
        place = _MARGIN, page.width - _MARGIN
        where = selection(taken.stack, taken.layer, (taken.head,))
        top = page.title(_MARGIN, _MARGIN, where, place[1] - place[0]) + 0.06
        end = draw_unfolding(page, taken, place, top)
        said = [
            "every key adds its value, times its weight; columns are features",
            "the share of a key is what it adds along the sum (α v · a / a · a)",
            "the range of the values is that of 99% of them",
        ]
        parts = [source(taken.provenance), *taken.notes, *said]
        end = caption.write_caption(page, place, end + _GAP, parts, taken.agreement)
        return page.finish(end + _MARGIN)


def take(
    result: AttentionResult | StepsResult,
    layer: int | None,
    head: int | None,
    word: str | int | None,
) -> StepsResult:
    """Return a head taken apart; one that already is has its layer, head and word."""
    if not isinstance(result, StepsResult):
        return steps(result, layer=layer, head=head, word=word)
    if (layer, head, word) != (None, None, None):
        raise InputError(
            f"Expected steps of layer {result.layer}, head {result.head}, “{result.word}” as they "
            "are, got another choice beside them. Choose in make_steps."
        )
    return result


def draw_unfolding(page: Page, taken: StepsResult, place: tuple[float, float], top: float) -> float:
    """Draw weight × value for every key, and their sum below; return where it ends.

    place : the left and right edge, top : the upper one, in inches.
    """
    ruler = Ruler()
    labels, weights, values, brought, shares = _rows(taken)
    labels = [ruler.clip(literal(label), _LONGEST, TEXT_SIZE) for label in labels]
    indent = ruler.widest(labels, TEXT_SIZE) + 0.08
    left, right = place
    room = right - left - indent - 2 * _NUMBER - 3 * _GAP - _BAR
    bars, strips = room * 0.2, room * 0.4
    top = page.write(left, top, ["Attention vector a"], points=TEXT_SIZE, weight="bold")
    said = f"of “{literal(taken.word)}”: every value times its weight, added up"
    top = page.write(left, top, ruler.wrap(said, right - left, SMALL_SIZE), color=MUTED) + 0.04
    at_bars = left + indent
    at_values = at_bars + bars + _NUMBER + _GAP
    at_brought = at_values + strips + _GAP
    at_shares = at_brought + strips + _GAP / 2
    total = brought.sum(0, keepdim=True)
    largest = max(range_of(brought), range_of(total))
    shown = range_of(values, _SHOWN)
    page.write(at_bars, top, [as_math("α_j")], color=MUTED, math=True)
    for at, name, end in (
        (at_values, "v_j", shown),
        (at_brought, "α_j v_j", largest),
    ):
        said = f"{as_math(name)}, range ± {end:.2g}"
        fits = ruler.width(said, SMALL_SIZE, math=True) <= strips
        said = said if fits else said.replace("range ", "")
        page.write(at, top, [said], color=MUTED, math=True)
    page.write(at_shares, top, ["share"], color=MUTED)
    top += line_height(SMALL_SIZE) + 0.04

    high = _ROW * len(labels)
    ax = page.axes(at_bars, top, bars, high)
    ax.barh([i + 0.5 for i in range(len(labels))], weights.tolist(), height=0.7, color=CYCLE[0])
    ax.set_ylim(len(labels), 0)
    ax.set_xlim(0, max(float(weights.max()), 1e-12))
    ax.set_xticks([])
    ax.set_yticks([i + 0.5 for i in range(len(labels))], labels, parse_math=False)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    for row, weight in enumerate(weights.tolist()):
        ax.text(
            weight, row + 0.5, f" {decimals(weight)}", va="center", fontsize=SMALL_SIZE, color=MUTED
        )
    draw_values(page.axes(at_values, top, strips, high), values, largest=shown)
    range_bar(page.axes(right - _BAR + 0.1, top, 0.08, min(high, 0.9)))
    draw_values(page.axes(at_brought, top, strips, high), brought, largest=largest)
    middle = (_ROW - line_height(SMALL_SIZE)) / 2
    for row, part in enumerate(shares.tolist()):
        said = f"{round(100 * part)}%".replace("-", "\N{MINUS SIGN}")
        page.write(at_shares, top + row * _ROW + middle, [said], color=MUTED)
    top += high + 0.06
    draw_values(page.axes(at_brought, top, strips, _ROW), total, largest=largest)
    page.write(
        at_brought - 0.06, top + middle, [as_math("a = Σ_j α_j v_j")], align="right", math=True
    )
    page.write(at_shares, top + middle, ["100%"], color=MUTED)
    return top + _ROW


def _rows(taken: StepsResult) -> tuple[list[str], Tensor, Tensor, Tensor, Tensor]:
    """Return labels, weights, values, α_j v_j and shares; keys of little weight are joined."""
    weights, values = taken["weights"].values[taken.row], taken["V"].values
    brought, shares = taken.contributions, taken.shares
    if len(weights) <= _MOST:
        return list(taken.keys), weights, values, brought, shares
    kept = weights.topk(_MOST - 1).indices.sort().values
    rest = torch.ones(len(weights), dtype=torch.bool)
    rest[kept] = False
    labels = [*(taken.keys[i] for i in kept), f"{int(rest.sum())} others"]

    def joined(of: Tensor) -> Tensor:
        return torch.cat([of[kept], of[rest].sum(0, keepdim=True)])

    mean = brought[rest].sum(0) / weights[rest].sum().clamp(min=1e-300)
    return (
        labels,
        joined(weights),
        torch.cat([values[kept], mean.unsqueeze(0)]),
        joined(brought),
        joined(shares),
    )
