"""A worked example as tables: what is printed, and ours from the inputs and from the print."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from attnviz.analyses.example.compute import example as replay
from attnviz.analyses.example.result import ExampleResult
from attnviz.analyses.example.tables import Table, given_block, stage_block
from attnviz.analyses.example.wording import slips_sentence
from attnviz.figures.layout import Page, Ruler
from attnviz.figures.style import (
    FULL_WIDTH,
    MM,
    MUTED,
    SMALL_SIZE,
    style,
)
from attnviz.results.labels import literal

_MARGIN = 0.06  # inches
_APART, _BELOW = 0.34, 0.16  # inches between two stages, across and down


def example(worked: ExampleResult | str, *, width: float = FULL_WIDTH) -> Figure:
    """Draw a worked example: what is given; then of each stage what is printed, and ours, twice.

    Cells that do not follow from the inputs, or from the printed stages before, are framed.

    Parameters
    ----------
    worked : from `make_example`; or the name of an example that comes along.
    width : of the figure, in mm: 89 is one column of a journal, 183 two.

    Raises
    ------
    InputError : no such example.
    """
    worked = replay(worked) if isinstance(worked, str) else worked
    blocks = [given_block(one) for one in worked.given]
    stages = [stage_block(number, stage) for number, stage in enumerate(worked.stages, start=1)]
    labels = [label for one in blocks + stages for label in (*one.rows, *one.columns, *one.notes)]
    with style([worked.title, *labels]):
        page, ruler = Page(width * MM), Ruler()
        room = page.width - 2 * _MARGIN
        top = page.title(_MARGIN, _MARGIN, literal(worked.title, 120), room) + _BELOW / 2
        tables = [Table(block, ruler, room) for block in blocks + stages]
        top = _flow(page, tables, top, room)
        caption = ruler.wrap(_caption(worked), room, SMALL_SIZE)
        end = page.write(_MARGIN, top, caption, color=MUTED)
        return page.finish(end + _MARGIN)


def _flow(page: Page, tables: Sequence[Table], top: float, room: float) -> float:
    """Draw tables beside each other, in order, as there is room; return where they end."""
    left, bottom = _MARGIN, top
    for table in tables:
        if left > _MARGIN and left + table.width > _MARGIN + room + 1e-9:
            left, top = _MARGIN, bottom + _BELOW
        bottom = max(bottom, table.draw(page, left, top))
        left += table.width + _APART
    return bottom + _BELOW


def _caption(worked: ExampleResult) -> str:
    summary = worked.summary()
    parts = [
        "Each stage is computed again from what is given and, where something is printed before "
        "it, from the nearest printed stages.",
        f"{summary[0].upper()}{summary[1:]}.",
    ]
    if worked.slips or any(stage.printed is not None for stage in worked.stages):
        parts.insert(
            1,
            "A framed cell does not follow: it differs from the printed one by more than half a "
            "unit of that matrix's last digit and all that the rounding of those before can do.",
        )
    if worked.slips:
        parts.append(f"{slips_sentence(worked)}.")
    return " ".join([*parts, "Own code, float64; no model."])
