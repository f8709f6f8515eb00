"""What is known of every score of a softmax, brought to (N, H, m, n): N texts of H heads."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from attnviz.capture.tracing.nodes import Softmax

# What hides a score: put in its place; added to it while others of the row have none of it (their
# weights then differ by e^5000); or so low that the score is lost in it.
_INSTEAD, _BELOW, _ABSORBING = -1e3, 5e3, -3e4


@dataclass(frozen=True, eq=False)
class Terms:
    """The formula and value of every score, and its weight, each (N, H, m, n).

    inner : what is added before the soft cap; None where nothing is.
    """

    factor: Tensor
    offset: Tensor
    scores: Tensor
    weights: Tensor
    inner: Tensor | None = None

    @cached_property
    def live(self) -> Tensor:
        """Return which scores are made of a product, and not hidden by the mask."""
        return (self.factor != 0) & ~self.hidden

    @cached_property
    def hidden(self) -> Tensor:
        """Return which scores are hidden by the mask."""
        instead = (self.factor == 0) & (self.offset <= _INSTEAD)
        highest = torch.where(self.factor != 0, self.offset, -torch.inf).amax(-1, keepdim=True)
        below = (self.offset <= highest - _BELOW) & highest.isfinite()
        return instead | below | (self.offset <= _ABSORBING)

    @cached_property
    def visible(self) -> Tensor:
        """Return which scores count: those with a weight, in a row that sees anything at all.

        A row that sees nothing is uniform in the model, and means nothing.
        """
        return (self.weights != 0) & ~self.hidden.all(-1, keepdim=True)


@dataclass(frozen=True, eq=False)
class Origins:
    """Where every score comes from, each (N, H, m, n).

    q_row, k_row, v_row : which row of all queries, keys and values, -1 for none. q_place, k_place :
    where that row lay in memory, the same for every copy of it.
    """

    q_row: Tensor
    k_row: Tensor
    v_row: Tensor
    q_place: Tensor
    k_place: Tensor


@dataclass(frozen=True)
class Shape:
    """How the dimensions of a softmax divide into texts, heads, rows and columns."""

    dim: int
    texts: int
    inner: tuple[int, ...]  # between the texts and the columns
    head_dims: tuple[int, ...]  # which of these are heads

    @classmethod
    def of(cls, softmax: Softmax, texts: int, heads: int | None, q_number: Tensor) -> Shape:
        """Divide them.

        heads : how many the module counts, if it does. q_number : for each score the number of its
        query within its product.
        """
        moved = q_number.movedim(softmax.dim, -1)
        leading = tuple(moved.shape[:-1]) or (1,)
        if leading[0] % texts:
            texts = 1  # computed once for all of them
        inner = (leading[0] // texts, *leading[1:])
        # Along the dimensions of the rows the number of the query in its product changes.
        numbers = moved.amax(-1).reshape(texts, *inner)
        rows = {
            i
            for i, size in enumerate(inner)
            if size > 1 and (numbers.amax(1 + i) != numbers.amin(1 + i)).any()
        } or {len(inner) - 1}
        return cls(softmax.dim, texts, inner, _head_dims(inner, rows, heads))

    def arrange(self, tensor: Tensor) -> Tensor:
        """Bring a tensor of the shape of the softmax to (N, H, m, n)."""
        moved = tensor.movedim(self.dim, -1)
        moved = moved.reshape(self.texts, *self.inner, moved.shape[-1])
        rest = [i for i in range(len(self.inner)) if i not in self.head_dims]
        order = [0, *(1 + i for i in self.head_dims), *(1 + i for i in rest), moved.dim() - 1]
        heads = prod(self.inner[i] for i in self.head_dims)
        return moved.permute(order).reshape(self.texts, heads, -1, moved.shape[-1])


def _head_dims(inner: tuple[int, ...], rows: set[int], heads: int | None) -> tuple[int, ...]:
    """Return which dimensions are heads: those that the module counts, else all but the rows."""
    free = [i for i in range(len(inner)) if i not in rows]
    if heads is not None:
        for i in reversed(free):
            if inner[i] == heads:
                return (i,)
        for i in free:
            for j in free:
                if i < j and prod(inner[k] for k in free if i <= k <= j) == heads:
                    return tuple(k for k in free if i <= k <= j)
    if len(free) > 1 and inner[0] != 1:
        return (free[-1],)
    return tuple(free)


def rows_of(softmax: Softmax) -> dict[str, Tensor]:
    """Return for each score which query and key it comes from: row, place and number of the row."""
    shadow = softmax.shadow
    assert shadow is not None
    names = ("q_row", "k_row", "q_place", "k_place", "q_number", "k_number")
    rows = {name: torch.full_like(shadow.origin, -1) for name in names}
    q_first = k_first = 0
    for product in softmax.products:
        (batch, m, _), n = product.q.shape, product.k.shape[1]
        inside = shadow.origin - product.first
        here = (inside >= 0) & (inside < batch * m * n)
        inside = inside[here]
        q = inside // n  # b · m + i
        k = inside // (m * n) * n + inside % n  # b · n + j
        rows["q_row"][here] = q_first + q
        rows["k_row"][here] = k_first + k
        rows["q_number"][here] = q % m
        rows["k_number"][here] = k % n
        rows["q_place"][here] = product.q_place.flatten()[q]
        rows["k_place"][here] = product.k_place.flatten()[k]
        q_first += batch * m
        k_first += batch * n
    return rows


def is_transposed(rows: dict[str, Tensor], dim: int) -> bool:
    """Whether the softmax runs over the left side of the product: then the queries are the keys."""
    q, k = (rows[name].movedim(dim, -1) for name in ("q_place", "k_place"))
    known = q >= 0

    def one_in_each_row(place: Tensor) -> bool:
        return bool(((place == place.amax(-1, keepdim=True)) | ~known).all())

    return one_in_each_row(k) and not one_in_each_row(q)


def other_way(rows: dict[str, Tensor]) -> dict[str, Tensor]:
    """Call the queries keys, and the keys queries."""
    other = {"q": "k", "k": "q"}
    return {other[name[0]] + name[1:]: tensor for name, tensor in rows.items()}


def elements(softmax: Softmax, rows: dict[str, Tensor], shape: Shape) -> tuple[Origins, Terms]:
    """Bring all that is known of a softmax to (N, H, m, n); `rows` are those of `rows_of`."""
    shadow = softmax.shadow
    assert shadow is not None
    assert shadow.factor is not None
    assert shadow.offset is not None
    v_row = shape.arrange(_value_rows(softmax))
    # A row whose weights the model throws away (some do with those of padding) sees nothing.
    thrown_away = (v_row < 0).all(-1, keepdim=True)
    names = ("q_row", "k_row", "q_place", "k_place")
    return (
        Origins(v_row=v_row, **{name: shape.arrange(rows[name]) for name in names}),
        Terms(
            factor=shape.arrange(shadow.factor),
            offset=shape.arrange(shadow.offset).masked_fill(thrown_away, -torch.inf),
            scores=shape.arrange(softmax.scores),
            weights=shape.arrange(softmax.weights),
            inner=None if shadow.inner is None else shape.arrange(shadow.inner),
        ),
    )


def _value_rows(softmax: Softmax) -> Tensor:
    """Return for each element of the softmax which row of the values it multiplies."""
    rows = torch.full((softmax.weights.numel(),), -1, device=softmax.weights.device)
    first = 0
    for mixture in softmax.mixtures:
        batch, _, n = mixture.elements.shape
        numbers = torch.arange(batch * n, device=rows.device).view(batch, 1, n)
        numbers = (first + numbers).expand(mixture.elements.shape)
        element = mixture.elements - softmax.first
        here = (element >= 0) & (element < len(rows))
        rows[element[here]] = numbers[here]
        first += batch * n
    return rows.view(softmax.weights.shape)


def head_output_of(softmax: Softmax, shape: Shape) -> Tensor | None:
    """Sum what each row's weights gave, over all products with values that they entered.

    None where something else than these weights was multiplied with values.
    """
    if not all(mixture.unchanged for mixture in softmax.mixtures):
        return None
    count = softmax.weights.shape[softmax.dim]
    numbers = torch.arange(softmax.weights.numel(), device=softmax.weights.device)
    arranged = shape.arrange(numbers.view(softmax.weights.shape))
    row_of = torch.empty_like(numbers)
    row_of[arranged.flatten()] = torch.arange(len(numbers), device=numbers.device) // count
    width = softmax.mixtures[0].v.shape[-1]
    output = softmax.weights.new_zeros(len(numbers) // count, width)
    for mixture in softmax.mixtures:
        element = (mixture.elements - softmax.first).amax(-1)  # any element tells the row
        here = (element >= 0) & (element < len(numbers))
        output.index_add_(0, row_of[element[here]], mixture.output[here].to(output.dtype))
    return output.view(*arranged.shape[:3], width)


def pick(origins: Tensor, live: Tensor, dim: int) -> Tensor:
    """Return what the scores along `dim` have in common; what hides a score may also move it."""
    known = torch.where(live, origins, -1).amax(dim)
    return torch.where(known >= 0, known, origins.amax(dim))
