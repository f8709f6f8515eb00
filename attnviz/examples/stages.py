"""What each stage is called, its formula, and the labels of its rows and columns."""

from __future__ import annotations

from dataclasses import dataclass

from attnviz.examples.fitting import Plan
from attnviz.examples.reading import Given

SYMBOLS = {
    "Q": "Q", "K": "K", "V": "V", "scores": "QKᵀ", "scaled scores": "S", "weights": "A",
    "head output": "H", "concatenated": "C", "output": "O",
}  # fmt: skip
TITLES = {
    "Q": "queries", "K": "keys", "V": "values", "scores": "scores",
    "scaled scores": "alignment scores", "weights": "attention weights",
    "head output": "attention vectors", "concatenated": "heads side by side", "output": "output",
}  # fmt: skip
_OF_TOKENS = ("K", "V")  # whose rows are what is attended to, not what attends
_ACROSS_TOKENS = ("scores", "scaled scores", "weights")


@dataclass(frozen=True)
class Described:
    """How one stage is written."""

    symbol: str
    title: str
    formula: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]

    def wider(self, count: int) -> tuple[str, ...]:
        """Return the labels of `count` columns: features go on counting."""
        return self.columns + tuple(map(str, range(len(self.columns), count)))


def sides(name: str, shape: tuple[int, int], plan: Plan) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the labels of rows and columns: tokens, or features, which are counted from 0."""
    rows = plan.tokens if name in _OF_TOKENS else plan.queries
    return (
        tuple(map(str, range(shape[0]))) if name.startswith("W_") else rows,
        plan.tokens if name in _ACROSS_TOKENS else tuple(map(str, range(shape[1]))),
    )


def describe(stage: str, plan: Plan, given: Given, scale: float) -> Described:
    """Return how a stage is written."""
    rows, columns = sides(stage, plan.shapes[stage], plan)
    return Described(
        SYMBOLS[stage], TITLES[stage], _formula(stage, plan, given, scale), rows, columns
    )


def _formula(stage: str, plan: Plan, given: Given, scale: float) -> str:
    scaled = f"QKᵀ · {scale:.4g}"
    if given.scale is None and "Q" in plan.shapes:
        scaled = f"QKᵀ / √{plan.shapes['Q'][1]}"
    hidden = "" if given.mask is None else " + mask"
    return {
        "Q": "Q = X W_q",
        "K": "K = X W_k",
        "V": "V = X W_v",
        "scores": "QKᵀ",
        "scaled scores": f"S = {scaled}",
        "weights": f"A = softmax({'QKᵀ' if scale == 1 else 'S'}{hidden})",
        "head output": "H = A V",
        "concatenated": f"C = Concat({'H' if given.heads == 1 else 'H of all heads'})",
        "output": "O = C W_o",
    }[stage]
