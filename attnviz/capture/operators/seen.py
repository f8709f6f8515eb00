"""What the watch over a run keeps: products q·k, softmaxes over them, and their products with v."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from attnviz.capture.operators.formula import Shadow

_ROUNDING = 0.02  # more than any precision loses, less than anything that a model does on purpose


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
    """A batched product A V: which elements of the softmax A (B, m, n) has, v (B, n, d_v).

    unchanged : whether A holds the weights as the softmax gave them; some models sharpen them.
    """

    elements: Tensor
    v: Tensor
    output: Tensor
    unchanged: bool = True


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

    def holds(self, weights: Tensor, elements: Tensor) -> bool:
        """Whether these are its weights, up to rounding; elements: which, -1 for none of them."""
        here = (elements >= self.first) & (elements < self.first + self.weights.numel())
        given = self.weights.flatten()[(elements - self.first)[here]]
        return bool(((weights[here] - given).abs() <= _ROUNDING).all())
