"""Two checkpoints over a corpus: how far apart the maps of each head are, and what it does more."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure

from attnviz.analyses.compare.result import CompareResult
from attnviz.analyses.survey.plot import SURE, Panel, head_panels
from attnviz.analyses.survey.statistics import TITLES
from attnviz.figures import caption
from attnviz.figures.layout import Page, Ruler
from attnviz.figures.style import FULL_WIDTH, MM, style
from attnviz.results.words import literal

_MARGIN = 0.06  # inches
_NAMED = 8  # heads that the caption names


def compare(result: CompareResult, *, width: float = FULL_WIDTH) -> Figure:
    """Draw how far apart the maps of each head are, and the change of each statistic.

    Parameters
    ----------
    result : from `compare`.
    width : of the figure, in mm: 89 is one column of a journal, 183 two.
    """
    names = [literal(name) for name in result.names]
    with style([*names, *result.statistics]):
        page, ruler = Page(width * MM), Ruler()
        place = _MARGIN, page.width - _MARGIN
        title = f"{len(result.heads)} heads of {names[1]} beside those of {names[0]}"
        top = page.title(place[0], _MARGIN, title, place[1] - place[0]) + 0.06
        nothing = torch.zeros(len(result.heads), dtype=torch.bool)
        panels = [Panel("how far apart the maps are", result.apart, unsure=nothing)]
        panels += [
            Panel(
                TITLES.get(name, name),
                result.change[:, at],
                unsure=~(result.p_value[:, at] < SURE),
                signed=True,
            )
            for at, name in enumerate(result.statistics)
            if not result.change[:, at].isnan().all()
        ]
        top = head_panels(page, ruler, result.heads, panels, place, top)
        end = caption.write_caption(page, place, top + 0.1, _caption(result), result.agreement)
        return page.finish(end + _MARGIN)


def _caption(result: CompareResult) -> list[str]:
    first, second = (literal(name) for name in result.names)
    order = result.apart.argsort(descending=True).tolist()[:_NAMED]
    most = ", ".join(
        f"{result.heads[n]} ({result.apart[n]:.2g}, {result.apart_low[n]:.2g} to "
        f"{result.apart_high[n]:.2g})"
        for n in order
    )
    other = result.agreements[1 - result.agreements.index(result.agreement)]
    return [
        f"{result.texts:,} texts, {result.tokens:,} tokens, read by {first} and by {second}",
        "each panel: layers down, heads across",
        "first panel: the root of the Jensen–Shannon divergence between what a head gives to the "
        "same keys in both models, from 0 to 1, mean over rows and texts",
        f"the others: {second} less {first}, mean over texts; white: no sure difference "
        "(p ≥ 0.01 by the bootstrap or Hoeffding's bound, corrected for all heads and statistics)",
        f"furthest apart, with 95 % intervals: {most}",
        *result.notes,
        f"the other model: {other.summary()}",
    ]
