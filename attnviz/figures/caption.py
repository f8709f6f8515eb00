"""What stands under every figure: which model, layer and head, what was done, and the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from matplotlib.figure import Figure

from attnviz.analyses.maps.result import AttentionMap
from attnviz.errors import InputError
from attnviz.figures.layout import (
    Page,
    Ruler,
    grow_below,
    line_height,
)
from attnviz.figures.style import (
    ALARM,
    INK,
    MARGIN,
    MUTED,
    SMALL_SIZE,
    style,
)
from attnviz.results import AgreementReport
from attnviz.results.labels import literal, selection


def short(drawn: AttentionMap) -> str:
    """Return the caption of a map among others: two short lines."""
    agreement = drawn.agreement
    proof = agreement.verdict.upper()
    if proof == "VERIFIED":
        proof = f"verified to {agreement.largest_difference():.0e}"
    name = literal(drawn.provenance.model)
    return f"{selection(drawn.stack, drawn.layer, drawn.heads)}\n{name}, {proof}"


def write_caption(
    page: Page,
    place: tuple[float, float],
    top: float,
    parts: Sequence[str],
    agreement: AgreementReport,
) -> float:
    """Write the parts as sentences, and the verdict below; return where the caption ends.

    place : the left and right edge, top : the upper one, in inches.
    """
    left, right = place
    for lines, how in _paragraphs(parts, agreement, right - left):
        top = page.write(left, top, lines, **how)
    return top


def add_caption(
    figure: Figure, *, text: str | Sequence[str], agreement: AgreementReport | None = None
) -> Figure:
    """Write a caption below a figure of your own, which grows by as much.

    Parameters
    ----------
    text : what is shown, in one or several parts that become sentences.
    agreement : of the result that is shown; its verdict is written below.

    Returns
    -------
    The same figure.
    """
    if not isinstance(figure, Figure):
        raise InputError(
            f"Expected a figure of matplotlib, got {type(figure).__name__}. Axes have theirs in "
            "ax.figure."
        )
    parts = [part for part in ((text,) if isinstance(text, str) else text) if part.strip()]
    with style(parts):
        width = float(figure.get_size_inches()[0])
        paragraphs = list(_paragraphs(parts, agreement, width - 2 * MARGIN))
        wanted = sum(len(lines) for lines, _ in paragraphs) * line_height(SMALL_SIZE)
        height = grow_below(figure, wanted + 2 * MARGIN)
        top = wanted + MARGIN
        for lines, how in paragraphs:
            for line in lines:
                place = MARGIN / width, top / height
                figure.text(*place, line, fontsize=SMALL_SIZE, va="top", **how)
                top -= line_height(SMALL_SIZE)
    return figure


def _paragraphs(
    parts: Sequence[str], agreement: AgreementReport | None, width: float
) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """Yield the sentences and the verdict, broken into lines, and how each is written."""
    ruler = Ruler()
    text = " ".join(f"{_capital(part.strip().removesuffix('.'))}." for part in parts)
    yield ruler.wrap(text, width, SMALL_SIZE), {"color": MUTED}
    if agreement is None:
        return
    verdict = agreement.summary()
    verdict = verdict[0].upper() + verdict[1:] + "."
    if agreement.verdict == "verified":
        yield ruler.wrap(verdict, width, SMALL_SIZE), {"color": INK}
    else:
        bold = {"color": ALARM, "weight": "bold"}
        yield ruler.wrap(verdict, width, SMALL_SIZE, "bold"), bold


def _capital(part: str) -> str:
    """Begin a sentence with a capital; the name of a file stays as it is."""
    first = part.split(maxsplit=1)[0]
    return part if "." in first else part[0].upper() + part[1:]
