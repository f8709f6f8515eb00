"""Draw two checkpoints over a corpus: what changed in which heads."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from matplotlib.figure import Figure, SubFigure

from attnviz.analyses.compare.result import CompareResult
from attnviz.analyses.survey.plot import Panel, grid_of, head_panels
from attnviz.analyses.survey.result import SURE
from attnviz.figures import figure
from attnviz.figures.layout import CaptionLength, new_page
from attnviz.figures.style import CAPTION_GAP, FULL_WIDTH
from attnviz.heads import TITLES


@figure
def compare(
    result: CompareResult,
    *,
    width: float = FULL_WIDTH,
    caption: CaptionLength = "short",
    figure: Figure | SubFigure | None = None,
) -> Figure:
    """Draw how far apart the maps of each head are in two models, and how each statistic changed.

    Examples
    --------
    >>> import attnviz
    >>> texts = ["the train left the station", "the cat saw the dog", "a man read the book"]
    >>> models = {"float32": attnviz.load(), "bfloat16": attnviz.load(dtype="bfloat16")}
    >>> figure = attnviz.plot.compare(attnviz.compare(texts, models=models))
    """
    farthest = result.apart.nan_to_num(-1).argsort(descending=True).tolist()
    models, changed = "from {} to {}".format(*result.shown_labels), result.p_value[0] < SURE
    title = f"No head changed significantly {models}"
    if count := int(changed.any(1).sum()):
        title = (
            f"{count:,} of {len(result.heads):,} heads changed significantly {models}; the maps of "
            f"head {result.heads[farthest[0]]} differ most"
        )
    nothing = torch.zeros(len(result.heads), dtype=torch.bool, device="cpu")
    panels = [Panel("how far apart the maps are", "apart", result.apart, unsure=nothing)]
    for column, name in enumerate(result.statistics):
        if not (change := result.change[0, :, column]).isnan().all():
            unsure = ~changed[:, column]
            panels.append(Panel(TITLES.get(name, name), name, change, unsure, signed=True))
    with new_page(width, caption, [*result.shown_labels, *result.statistics], figure) as page:
        end = head_panels(page, result.heads, panels, page.heading(title) + 0.06)
        parts = _caption(result, farthest)
        return page.finish(end + CAPTION_GAP, parts, result.checked_agreement)


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
