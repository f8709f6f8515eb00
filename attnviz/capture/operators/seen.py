"""What the watch over a run keeps: products q·k, softmaxes over them, and their products with v."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from attnviz.capture.operators.formula import Shadow


@dataclass(frozen=True, eq=False)
class Product:
    """A batched product Q Kᵀ: q (B, m, d), k (B, n, d), and where each row lay in memory.

    first : the number of its first element; it has B·m·n. activations : how many of its two sides
    depend on the input.
    """

    first: int
    q: Tensor
    k: Tensor
    q_place: Tensor
    k_place: Tensor
    activations: int


@dataclass(frozen=True, eq=False)
class Mixture:
    """A batched product A V: which elements of the softmax A (B, m, n) has, v (B, n, d_v)."""

    elements: Tensor
    v: Tensor
    output: Tensor


@dataclass(eq=False)
class Softmax:
    """One softmax over scores: its input and output, and the formula of every score.

    scores, weights and the fields of shadow have one shape; the softmax is along `dim`. first
    numbers the elements of the weights; shadow is None where another has told what they are. used :
    whether anything was computed of the weights; some models compute weights that they never use.
    """

    scores: Tensor
    weights: Tensor
    dim: int
    first: int = 0
    shadow: Shadow | None = None
    products: list[Product] = field(default_factory=list)
    mixtures: list[Mixture] = field(default_factory=list)
    used: bool = False
