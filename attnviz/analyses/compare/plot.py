"""Draw checkpoints over a corpus: what changed in which heads, and when."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure

from attnviz.analyses.compare.checkpoints_plot import draw_checkpoints
from attnviz.analyses.compare.checkpoints_result import CheckpointsResult
from attnviz.analyses.compare.result import CompareResult
from attnviz.analyses.survey.plot import Panel, grid_of, head_panels
from attnviz.analyses.survey.result import SURE
from attnviz.analyses.survey.statistics import TITLES
from attnviz.figures import figure
from attnviz.figures.layout import CaptionLength, new_page
from attnviz.figures.style import FULL_WIDTH
from attnviz.results.axis import literal

_LONGEST_NAME = 40  # letters of the name of a model
_NAMED = 8  # heads that the caption names


@figure
def compare(
    result: CompareResult | CheckpointsResult,
    *,
    width: float = FULL_WIDTH,
    caption: CaptionLength = "short",
) -> Figure:
    """Draw how far apart the maps of each head are in two models, and how each statistic changed.

    Of three or more checkpoints, draw the path of each head on the statistic that changes most,
    and how many heads have each role.

    Parameters
    ----------
    result : CompareResult or CheckpointsResult
        From `attnviz.compare`.

    Examples
    --------
    >>> import attnviz
    >>> texts = ["the train left the station", "the cat saw the dog", "a man read the book"]
    >>> models = {"float32": attnviz.load(), "bfloat16": attnviz.load(dtype="bfloat16")}
    >>> figure = attnviz.plot.compare(attnviz.compare(texts, models=models))
    """
    if isinstance(result, CheckpointsResult):
        return draw_checkpoints(result, width, caption)
    names = _names(result)
    with new_page(width, caption, [*names, *result.statistics]) as page:
        top = page.heading(_finding(result)) + 0.06
        nothing = torch.zeros(len(result.heads), dtype=torch.bool, device="cpu")
        panels = [Panel("how far apart the maps are", "apart", result.apart, unsure=nothing)]
        for column, name in enumerate(result.statistics):
            change, unsure = result.change[:, column], ~(result.p_value[:, column] < SURE)
            if not change.isnan().all():
                panels.append(Panel(TITLES.get(name, name), name, change, unsure, signed=True))
        top = head_panels(page, result.heads, panels, top)
        return page.finish_with_caption(top + 0.1, _caption(result), result.checked_agreement)


def _names(result: CompareResult) -> list[str]:
    return [literal(name, _LONGEST_NAME) for name in result.names]


def _finding(result: CompareResult) -> str:
    """Return how many heads changed, and whose maps differ most."""
    models = "from {} to {}".format(*_names(result))
    changed = int((result.p_value < SURE).any(1).sum())
    if not changed:
        return f"No head changed significantly {models}"
    return (
        f"{changed:,} of {len(result.heads):,} heads changed significantly {models}; the maps of "
        f"head {result.heads[_farthest(result)[0]]} differ most"
    )


def _farthest(result: CompareResult) -> list[int]:
    """Return the indices of the heads, those with the most different maps first."""
    order: list[int] = result.apart.nan_to_num(-1).argsort(descending=True).tolist()
    return order


def _caption(result: CompareResult) -> list[str]:
    first, second = _names(result)
    changes = [provenance.with_changes for provenance in result.provenances]
    order = _farthest(result)[:_NAMED]
    most = ", ".join(
        f"{result.heads[n]} ({result.apart[n]:.2g}, {result.apart_low[n]:.2g} to "
        f"{result.apart_high[n]:.2g})"
        for n in order
    )
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
