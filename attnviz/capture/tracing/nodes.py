"""What the watch over a run keeps: products q·k, softmaxes over them, and their products with v."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from attnviz.capture.tracing.symbolic import Shadow

# More than any precision loses of a weight, less than anything that a model does on purpose.
_ROUNDING, _TINY = 0.02, 1e-6


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

    @property
    def span(self) -> range:
        """The numbers of its elements."""
        return range(self.first, self.first + self.q_place.numel() * self.k.shape[1])


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

    @property
    def span(self) -> range:
        """The numbers of its elements."""
        return range(self.first, self.first + self.weights.numel())

    def holds(self, weights: Tensor, elements: Tensor) -> bool:
        """Whether these are its weights, up to rounding; elements: which, -1 for none of them."""
        here = (elements >= self.span.start) & (elements < self.span.stop)
        given = self.weights.flatten()[(elements - self.first)[here]]
        return bool(((weights[here] - given).abs() <= _ROUNDING * given + _TINY).all())


class Seen:
    """All products and softmaxes of a run so far, each with the depth of the module it was in."""

    def __init__(self) -> None:
        self.products: list[tuple[int, Product]] = []
        self.softmaxes: list[tuple[int, Softmax]] = []

    def forget(self, depth: int) -> None:
        """Drop what was seen in modules deeper than `depth`."""
        self.products = [each for each in self.products if each[0] <= depth]
        self.softmaxes = [each for each in self.softmaxes if each[0] <= depth]

    def rank(self, shadow: Shadow) -> tuple[int, bool, int]:
        """Rank two products that are added: the one is the content's, the other the position's.

        The content's is made of two activations, and is whole; what is added by relative position
        has a side that is the same for every input, or is cut from a larger product.
        """
        origin, span = shadow.origin, _span(shadow.origin)
        if not span:
            return 0, False, 0
        whole = len(span) == origin.numel() == len(torch.unique(origin[origin >= 0]))
        return max(each.activations for each in self.products_of(shadow)), whole, -span.start

    def products_of(self, shadow: Shadow) -> list[Product]:
        """Return the products that scores are made of."""
        span = _span(shadow.origin)
        return [product for _, product in self.products if _meet(product.span, span)]

    def softmaxes_of(self, elements: Tensor) -> list[Softmax]:
        """Return the softmaxes of which these are elements; -1 is an element of none."""
        span = _span(elements)
        return [softmax for _, softmax in self.softmaxes if _meet(softmax.span, span)]


def _span(elements: Tensor) -> range:
    """Return the numbers from the first of some elements to the last; -1 is none."""
    used = elements[elements >= 0]
    return range(int(used.min()), int(used.max()) + 1) if len(used) else range(0)


def _meet(one: range, other: range) -> bool:
    return max(one.start, other.start) < min(one.stop, other.stop)
