"""Formulas as they are set in print: from plain text to what matplotlib calls mathtext."""

from __future__ import annotations

import math
import re

_SIGNS = {"ᵀ": r"^{\mathsf{T}}", "·": r"\cdot ", "…": r"\ldots ", "α": r"\alpha ", "Σ": r"\Sigma "}
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_PARTS = re.compile(
    r"""(?P<index>[\^_]\w+)
    |(?P<word>[A-Za-z]{2,}(?:[ ][a-z]{2,})*)(?P<apart>[ ](?=[A-Z]))?
    |√(?P<root>\d+)
    |(?P<sign>[ᵀ·…αΣ])""",
    re.VERBOSE,
)


def as_math(formula: str) -> str:
    r"""Return a formula as mathtext: words stand upright, what follows ^ or _ is raised or lowered.

    >>> as_math("softmax(Q Kᵀ / √32)")
    '$\\mathrm{softmax}(Q K^{\\mathsf{T}} / \\sqrt{32})$'
    >>> as_math("X W^Q + b^Q")
    '$X W^{Q} + b^{Q}$'
    """
    return f"${_PARTS.sub(_part, formula)}$"


def _part(found: re.Match[str]) -> str:
    if index := found["index"]:
        return f"{index[0]}{{{index[1:]}}}"
    if word := found["word"]:
        said = word + " " * bool(found["apart"])
        return rf"\mathrm{{{said}}}".replace(" ", r"\ ")
    if root := found["root"]:
        return rf"\sqrt{{{root}}}"
    return _SIGNS[found["sign"]]


def power(number: float) -> str:
    """Return a number in powers of ten, as text: what a logarithmic axis can be labelled with.

    >>> power(1.6e-6), power(1000.0), power(float("nan"))
    ('2·10⁻⁶', '10³', 'nan')
    """
    if not math.isfinite(number):
        return str(number)
    digits, exponent = f"{number:.0e}".split("e")
    raised = f"10{str(int(exponent)).translate(_RAISED)}"
    return "0" if not number else raised if digits == "1" else f"{digits}·{raised}"
