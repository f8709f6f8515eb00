"""What stands under every figure: which model, layer and head, what was done, and the verdict."""

from __future__ import annotations

from collections.abc import Sequence

from attnviz.plot.layout import Page, Ruler
from attnviz.plot.style import ALARM, INK, MUTED, SMALL_SIZE, literal
from attnviz.records import AgreementReport, AttentionMap, Provenance


def selection(stack: str, layer: int, heads: Sequence[int]) -> str:
    """Return "Layer 3, head 5", or which heads were averaged; what a model has beside is said."""
    beside = {"cross": "Cross-attention", "vision": "Vision", "audio": "Audio"}.get(stack)
    where = f"Layer {layer}" if beside is None else f"{beside}, layer {layer}"
    if len(heads) == 1:
        return f"{where}, head {heads[0]}"
    return f"{where}, mean of heads {', '.join(map(str, heads))}"


def short(drawn: AttentionMap) -> str:
    """Return the caption of a map among others: two short lines."""
    agreement = drawn.agreement
    proof = agreement.verdict.upper()
    if proof == "VERIFIED":
        proof = f"verified to {agreement.largest_difference():.0e}"
    name = literal(drawn.provenance.model)
    return f"{selection(drawn.stack, drawn.layer, drawn.heads)}\n{name}, {proof}"


def source(provenance: Provenance) -> str:
    """Return the text, image or sound that was read, and the model that read it."""
    read = [f"“{_quoted(text)}”" for text in (provenance.text, provenance.pair) if text is not None]
    read += [literal(name, 80) for name in (provenance.image, provenance.audio) if name is not None]
    target = "" if provenance.target is None else f" to say “{_quoted(provenance.target)}”"
    return f"{' + '.join(read)}, read by {provenance.model}{target}"


def _quoted(text: str) -> str:
    return literal(" ".join(text.split()), 120)


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
    text = " ".join(f"{_capital(part)}." for part in parts)
    top = page.write(left, top, ruler.wrap(text, width, SMALL_SIZE), color=MUTED)
    verdict = agreement.summary()
    verdict = verdict[0].upper() + verdict[1:] + "."
    if agreement.verdict == "verified":
        return page.write(left, top, ruler.wrap(verdict, width, SMALL_SIZE), color=INK)
    lines = ruler.wrap(verdict, width, SMALL_SIZE, "bold")
    return page.write(left, top, lines, color=ALARM, weight="bold")


def _capital(part: str) -> str:
    """Begin a sentence with a capital; the name of a file stays as it is."""
    first = part.split(maxsplit=1)[0]
    return part if "." in first else part[0].upper() + part[1:]
