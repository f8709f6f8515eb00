"""What stands under every figure: which model, layer and head, what was done, and the verdict."""

from __future__ import annotations

from collections.abc import Sequence

from attnviz.plot.layout import Page, Ruler
from attnviz.plot.style import ALARM, INK, MUTED, SMALL_SIZE, literal
from attnviz.records import AgreementReport, Provenance


def selection(stack: str, layer: int, heads: Sequence[int]) -> str:
    """Return "Layer 3, head 5", or which heads were averaged; cross-attention is said."""
    where = f"Cross-attention, layer {layer}" if stack == "cross" else f"Layer {layer}"
    if len(heads) == 1:
        return f"{where}, head {heads[0]}"
    return f"{where}, mean of heads {', '.join(map(str, heads))}"


def source(provenance: Provenance) -> str:
    """Return the text that was read and the model that read it."""
    quoted = {
        what: f"“{literal(' '.join(text.split()), 120)}”"
        for what in ("text", "pair", "target")
        if (text := getattr(provenance, what)) is not None
    }
    target = f" to say {quoted.pop('target')}" if "target" in quoted else ""
    return f"{' + '.join(quoted.values())}, read by {provenance.model}{target}"


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
    ruler, width = Ruler(), right - left
    text = " ".join(part[0].upper() + part[1:] + "." for part in parts)
    top = page.write(left, top, ruler.wrap(text, width, SMALL_SIZE), color=MUTED)
    verdict = agreement.summary()
    verdict = verdict[0].upper() + verdict[1:] + "."
    if agreement.verdict == "verified":
        return page.write(left, top, ruler.wrap(verdict, width, SMALL_SIZE), color=INK)
    lines = ruler.wrap(verdict, width, SMALL_SIZE, "bold")
    return page.write(left, top, lines, color=ALARM, weight="bold")
