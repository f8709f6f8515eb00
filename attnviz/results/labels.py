"""What figures and pages call what they show: tokens, texts, models and heads."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from attnviz.results.attention_result import Provenance

_STEERING = "Cc", "Cs", "Co", "Cn", "Zl", "Zp"


def literal(token: str, longest: int = 24) -> str:
    """Return a token as it can be drawn: control characters visible, a very long one clipped."""
    shown = "".join("\N{REPLACEMENT CHARACTER}" if _controls(c) else c for c in token)
    return shown if len(shown) <= longest else shown[: longest - 1] + "…"


def _controls(character: str) -> bool:
    """Whether a character steers what shows it: a terminal, the direction or the line."""
    steers_direction = "\u202a" <= character <= "\u202e" or "\u2066" <= character <= "\u2069"
    return steers_direction or unicodedata.category(character) in _STEERING


def selection(stack: str, layer: int, heads: Sequence[int]) -> str:
    """Return "Layer 3, head 5", or which heads were averaged; what a model has beside is said."""
    beside = {"cross": "Cross-attention", "vision": "Vision", "audio": "Audio"}.get(stack)
    where = f"Layer {layer}" if beside is None else f"{beside}, layer {layer}"
    if len(heads) == 1:
        return f"{where}, head {heads[0]}"
    return f"{where}, mean of heads {', '.join(map(str, heads))}"


def source(provenance: Provenance) -> str:
    """Return the text, image or sound that was read, and the model that read it."""
    read = [f"“{_quoted(text)}”" for text in (provenance.text, provenance.pair) if text is not None]
    read += [literal(name, 80) for name in (provenance.image, provenance.audio) if name is not None]
    target = "" if provenance.target is None else f" to say “{_quoted(provenance.target)}”"
    return f"{' + '.join(read)}, read by {literal(provenance.model, 80)}{target}"


def _quoted(text: str) -> str:
    return literal(" ".join(text.split()), 120)
