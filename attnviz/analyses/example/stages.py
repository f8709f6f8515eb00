"""The stages of attention in one table: what each needs, and how it is computed and written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import matmul, mul
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnviz.analyses.example.intervals import Rounded


@dataclass(frozen=True)
class Stage:
    """One stage.

    needs : what it is computed from. compute : how, from the matrices of one head. joined : whether
    it is one matrix of all heads, of which `compute` then takes each.
    """

    title: str
    formula: str
    needs: tuple[str, ...]
    compute: Callable[..., Rounded]
    joined: bool = False


STAGES = {
    "Q": Stage("Queries Q", "Q = X W_q", ("X", "W_q"), matmul),
    "K": Stage("Keys K", "K = X W_k", ("X", "W_k"), matmul),
    "V": Stage("Values V", "V = X W_v", ("X", "W_v"), matmul),
    "scores": Stage("Scores", "QKᵀ", ("Q", "K"), lambda Q, K: Q @ K.mT),
    "scaled scores": Stage("Scaled scores", "QKᵀ {scale}", ("scores", "scale"), mul),
    "weights": Stage(
        "Weights W",
        "W = softmax({scaled}{mask})",
        ("scaled scores", "mask"),
        lambda scaled, mask: scaled.softmax(mask),
    ),
    "head output": Stage("Attention vectors A", "A = W V", ("weights", "V"), matmul),
    "concatenated": Stage(
        "All heads, side by side",
        "{heads}",
        ("head output",),
        lambda first, *others: first.beside(*others),
        joined=True,
    ),
    "output": Stage("Output", "heads W_o", ("concatenated", "W_o"), matmul, joined=True),
}
WHOLE = ("X", "W_q", "W_k", "W_v", "W_o")  # given in one matrix, whatever the number of heads
BY_HEAD = ("Q", "K", "V", "scores", "weights")  # stages that may be given instead
TOKENS_DOWN = ("K", "V")  # whose rows are what is attended to, not what attends
TOKENS_ACROSS = ("scores", "scaled scores", "weights")
