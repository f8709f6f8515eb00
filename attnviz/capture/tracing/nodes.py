"""The nodes that a trace consists of: products q·k, softmaxes over them, and products with v."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from attnviz.capture.tracing.provenance import Provenance

# More than any precision loses of a weight, less than anything that a model does on purpose.
_ROUNDING, _TINY = 0.02, 1e-6


@dataclass(frozen=True, eq=False)
class Product:
    """A batched product Q Kᵀ.

    Attributes
    ----------
    first : int
        The number of its first element; it has B·m·n.
    q, k : Tensor
        (B, m, d) and (B, n, d).
    q_place, k_place : Tensor
        (B, m) and (B, n), where each row was stored.
    activations : int
        How many of its two sides depend on the input.
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
    """A batched product A V.

    Attributes
    ----------
    elements : Tensor
        (B, m, n), which elements of the softmax A has.
    v, output : Tensor
        (B, n, d_v) and (B, m, d_v).
    exact_weights : bool
        Whether A has the weights as the softmax computed them; some models sharpen them.
    """

    elements: Tensor
    v: Tensor
    output: Tensor
    exact_weights: bool = True


@dataclass(eq=False)
class Softmax:
    """One softmax over scores: its input and output, and the formula of every score.

    Attributes
    ----------
    scores, weights : Tensor
        Its input and output; the fields of the provenance have the same shape.
    dim : int
        The dimension along which it normalizes.
    first : int
        The number of the first element of the weights.
    provenance : Provenance or None
        That of the scores; None where the arguments of an attention function describe them.
    products, mixtures : list
        The products that the scores are made of, and those that the weights enter.
    used : bool
        Whether anything is computed of the weights; some models ignore them.
    """

    scores: Tensor
    weights: Tensor
    dim: int
    first: int = 0
    provenance: Provenance | None = None
    products: list[Product] = field(default_factory=list)
    mixtures: list[Mixture] = field(default_factory=list)
    used: bool = False

    @property
    def span(self) -> range:
        """The numbers of its elements."""
        return range(self.first, self.first + self.weights.numel())

    def has_weights(self, weights: Tensor, elements: Tensor) -> bool:
        """Whether these are its weights, up to rounding; elements: which, -1 for none of them."""
        inside = (elements >= self.span.start) & (elements < self.span.stop)
        expected = self.weights.flatten()[(elements - self.first)[inside]]
        difference = (weights[inside] - expected).abs()
        return bool((difference <= _ROUNDING * expected + _TINY).all())


class TraceNodes:
    """All products and softmaxes of a run so far, each with the depth of its module."""

    def __init__(self) -> None:
        self.products: list[tuple[int, Product]] = []
        self.softmaxes: list[tuple[int, Softmax]] = []

    def forget(self, depth: int) -> None:
        """Drop the nodes of modules deeper than `depth`."""
        self.products = [node for node in self.products if node[0] <= depth]
        self.softmaxes = [node for node in self.softmaxes if node[0] <= depth]

    def rank(self, score: Provenance) -> tuple[int, bool, int]:
        """Rank the content product of two products that are added over the position product.

        The content product has two activations, and is whole; the product for relative positions
        has a side that is the same for every input, or is cut from a larger product.
        """
        origin, span = score.origin, _span(score.origin)
        if not span:
            return 0, False, 0
        whole = len(span) == origin.numel() == len(torch.unique(origin[origin >= 0]))
        most = max(product.activations for product in self.products_of(score))
        return most, whole, -span.start

    def products_of(self, score: Provenance) -> list[Product]:
        """Return the products that scores are made of."""
        span = _span(score.origin)
        return [product for _, product in self.products if _overlap(product.span, span)]

    def softmaxes_of(self, elements: Tensor) -> list[Softmax]:
        """Return the softmaxes that these elements belong to; -1 belongs to none."""
        span = _span(elements)
        return [softmax for _, softmax in self.softmaxes if _overlap(softmax.span, span)]


def _span(elements: Tensor) -> range:
    """Return the numbers from the first of some elements to the last; -1 is none."""
    used = elements[elements >= 0]
    return range(int(used.min()), int(used.max()) + 1) if len(used) else range(0)


def _overlap(first: range, second: range) -> bool:
    return max(first.start, second.start) < min(first.stop, second.stop)
