"""Captions: the model, the layer and head, what was done, and the verdict of the agreement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from matplotlib.figure import Figure

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
from attnviz.results import AgreementReport, Provenance
from attnviz.results.words import literal, selection


class _Map(Protocol):
    """A map as captions know it: `AttentionMap`."""

    @property
    def stack(self) -> str: ...
    @property
    def layer(self) -> int: ...
    @property
    def heads(self) -> tuple[int, ...]: ...
    @property
    def agreement(self) -> AgreementReport: ...
    @property
    def provenance(self) -> Provenance: ...


def short(drawn: _Map) -> str:
    """Return a caption of two short lines, for a map in the user's axes."""
    agreement = drawn.agreement
    verdict = agreement.verdict.upper()
    if verdict == "VERIFIED":
        verdict = f"verified to {agreement.largest_difference():.0e}"
    name = literal(drawn.provenance.model)
    return f"{selection(drawn.stack, drawn.layer, drawn.heads)}\n{name}, {verdict}"


def write_caption(
    page: Page,
    place: tuple[float, float],
    top: float,
    parts: Sequence[str],
    agreement: AgreementReport,
) -> float:
    """Write parts as sentences, with the verdict below; return the lower edge of the caption.

    place : the left and right edge in inches. top : the upper edge in inches.
    """
    left, right = place
    for lines, font in _paragraphs(parts, agreement, right - left):
        top = page.write(left, top, lines, **font)
    return top


def add_caption(
    figure: Figure, *, text: str | Sequence[str], agreement: AgreementReport | None = None
) -> Figure:
    """Write a caption below a figure of your own. The figure becomes taller.

    Parameters
    ----------
    figure : Figure
        A figure of matplotlib.
    text : str or sequence of str
        The caption. Each part becomes a sentence.
    agreement : AgreementReport, optional
        The agreement of the result that is shown. Its verdict is written below the text.

    Returns
    -------
    Figure
        The same figure.

    Raises
    ------
    InputError
        `figure` is not a figure of matplotlib.
    """
    if not isinstance(figure, Figure):
        raise InputError(
            f"Expected a figure of matplotlib, got {type(figure).__name__}. For axes, pass "
            "ax.figure."
        )
    parts = [part for part in ((text,) if isinstance(text, str) else text) if part.strip()]
    with style(parts):
        width = float(figure.get_size_inches()[0])
        paragraphs = list(_paragraphs(parts, agreement, width - 2 * MARGIN))
        text_height = sum(len(lines) for lines, _ in paragraphs) * line_height(SMALL_SIZE)
        height = grow_below(figure, text_height + 2 * MARGIN)
        top = text_height + MARGIN
        for lines, font in paragraphs:
            for line in lines:
                place = MARGIN / width, top / height
                figure.text(*place, line, fontsize=SMALL_SIZE, va="top", **font)
                top -= line_height(SMALL_SIZE)
    return figure


def _paragraphs(
    parts: Sequence[str], agreement: AgreementReport | None, width: float
) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """Yield the sentences and the verdict, broken into lines, each with its color and weight."""
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
    """Capitalize the first letter of a sentence, unless it begins with the name of a file."""
    first = part.split(maxsplit=1)[0]
    return part if "." in first else part[0].upper() + part[1:]
