"""From a traced softmax to q, k, v and score terms, by text and head.

Models lay their scores out as they like: heads beside or inside the batch, one window after
another, keys in overlapping chunks. Here they are brought to (N, H, m, n), N texts of H heads.
Where the keys of a row differ from those of the next (windows, chunks), a head gets all its keys,
and those that a row does not read are masked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from attnviz.capture.attention_call import Attention
from attnviz.capture.tracing.nodes import Product, Softmax

# What masks a score: a value in its place; a term added to it while others of the row have none
# (their weights then differ by e^5000); or a value so low that the score is lost in it.
_INSTEAD, _BELOW, _ABSORBING = -1e3, 5e3, -3e4
_FAR = 2**48  # beyond every address in memory
_NO_PRODUCT = "a row sees scores that are no product of a query and a key"


class NotExpressibleError(Exception):
    """The attention is not softmax(scale · q·k + terms); the message says why."""


def arrange(softmax: Softmax, texts: int, heads: int | None) -> Attention:
    """Bring a softmax to (N, H, m, n).

    Parameters
    ----------
    softmax : Softmax
        With its provenance, products and mixtures.
    texts : int
        N, the size of the batch.
    heads : int or None
        The number of heads that the module names, if it does.

    Raises
    ------
    NotExpressibleError
        Something else than scale · q·k + terms enters the softmax.
    """
    if not softmax.mixtures:
        raise NotExpressibleError("its weights enter no product with values")
    if texts > 1 and softmax.weights.dim() < 3:
        raise NotExpressibleError("the texts of the batch are not told apart in it")
    rows = _query_and_key_rows(softmax)
    sides = ["q", "k"]
    if _is_transposed(rows, softmax.dim):
        rows, sides = _swap_sides(rows), ["k", "q"]
    layout = _Layout.of(softmax, texts, heads, rows["q_number"])
    origins, terms = _by_head(softmax, rows, layout)
    queries, keys = (_vectors(softmax.products, side) for side in sides)
    values = torch.cat([mixture.v.flatten(0, 1) for mixture in softmax.mixtures])
    place = _common(origins.q_place, terms.live, 3).unsqueeze(3)
    if ((origins.q_place != place) & terms.live).any():
        raise NotExpressibleError("one row holds scores of several queries")
    query = queries[_common(origins.q_row, terms.live, 3).clamp(min=0)]
    k_row, v_row, terms = _by_key(origins, terms)
    k_row, v_row, terms, sinks = _without_constant_columns(k_row, v_row, terms)
    key, value = keys[k_row.clamp(min=0)], values[v_row.clamp(min=0)]
    hidden = _hidden(terms)
    query, key, scale = _fold(terms.factor, hidden, query, key)
    bias = torch.where(hidden, 0.0, terms.offset).to(query.dtype)
    mask = torch.where(hidden, torch.finfo(query.dtype).min, 0.0).to(query.dtype)
    inner = None if terms.inner is None else torch.where(hidden, 0.0, terms.inner).to(query.dtype)
    return Attention(
        query=query,
        key=key,
        value=value,
        scale=scale,
        soft_cap=softmax.provenance.cap if softmax.provenance is not None else None,
        capped_bias=None if inner is None else _one_for_all_heads(inner),
        bias=_one_for_all_heads(bias) if bias.any() else None,
        mask=_one_for_all_heads(mask) if hidden.any() else None,
        sinks=sinks,
        scores=terms.scores,
        weights=terms.weights,
        head_output=_head_output(softmax, layout),
    )


def _vectors(products: Sequence[Product], side: str) -> Tensor:
    return torch.cat([getattr(product, side).flatten(0, 1) for product in products])


def _by_key(origins: _Origins, terms: _Terms) -> tuple[Tensor, Tensor, _Terms]:
    """Give each column one key: return its row of keys and of values (N, H, n), and the terms."""
    first = _common(origins.k_place, terms.live, 2).unsqueeze(2)
    if ((origins.k_place == first) | ~terms.live).all():
        return _common(origins.k_row, terms.live, 2), _common(origins.v_row, terms.live, 2), terms
    index, columns = _columns(origins.k_place, terms.visible)
    N, H, m, _ = index.shape

    def row_of_column(rows: Tensor) -> Tensor:
        out = rows.new_full((N, H, columns + 1), -1)
        return out.scatter_(2, index.flatten(2), rows.flatten(2))[..., :columns]

    def by_column(tensor: Tensor, empty: float) -> Tensor:
        out = tensor.new_full((N, H, m, columns + 1), empty)
        return out.scatter_(3, index, tensor)[..., :columns]

    column_terms = _Terms(
        factor=by_column(terms.factor, 0.0),
        offset=by_column(terms.offset, -torch.inf),
        scores=by_column(terms.scores, -torch.inf),
        weights=by_column(terms.weights, 0.0),
        inner=None if terms.inner is None else by_column(terms.inner, 0.0),
    )
    return row_of_column(origins.k_row), row_of_column(origins.v_row), column_terms


def _columns(k_place: Tensor, visible: Tensor) -> tuple[Tensor, int]:
    """Number the keys that any row of a head reads; return the number of each score's key.

    A masked score gets the number after the last, which is returned too.
    """
    if (visible & (k_place < 0)).any():
        raise NotExpressibleError(_NO_PRODUCT)
    N, H = k_place.shape[:2]
    place = torch.where(visible, _distinct(k_place, visible), -1)
    keys = [torch.unique(place[n, h]) for n in range(N) for h in range(H)]
    keys = [places[places >= 0] for places in keys]
    columns = max(len(places) for places in keys)
    index = torch.full_like(place, columns)
    for number, places in enumerate(keys):
        head_places = place[number // H, number % H]
        known = head_places >= 0
        index[number // H, number % H][known] = torch.searchsorted(places, head_places[known])
    return index, columns


def _distinct(places: Tensor, visible: Tensor) -> Tensor:
    """Give the second copy of a key in one row a place of its own, and so on."""
    order = torch.where(visible, places, -1).sort(dim=-1, stable=True)
    position = torch.arange(places.shape[-1], device=places.device).expand_as(places)
    starts = torch.ones_like(visible)
    starts[..., 1:] = order.values[..., 1:] != order.values[..., :-1]
    rank = position - torch.where(starts, position, 0).cummax(-1).values
    return places + torch.zeros_like(places).scatter_(-1, order.indices, rank) * _FAR


def _without_constant_columns(
    k_row: Tensor, v_row: Tensor, terms: _Terms
) -> tuple[Tensor, Tensor, _Terms, Tensor | None]:
    """Remove columns that belong to no key: padding, or a sink with a score of its own."""
    keyless = (k_row < 0).flatten(0, 1).all(0)
    if not keyless.any():
        return k_row, v_row, terms, None
    sinks = None
    if (read := keyless & terms.visible.flatten(0, 2).any(0)).any():
        sink = terms.offset[..., read]
        if sink.shape[-1] > 1:
            raise NotExpressibleError(_NO_PRODUCT)
        same = (sink == sink[:1, :, :1]).all()
        sinks = sink[0, :, 0, 0] if same else sink[..., 0]
    has_key = ~keyless
    inner = None if terms.inner is None else terms.inner[..., has_key]
    remaining = _Terms(
        factor=terms.factor[..., has_key],
        offset=terms.offset[..., has_key],
        scores=terms.scores[..., has_key],
        weights=terms.weights[..., has_key],
        inner=inner,
    )
    return k_row[..., has_key], v_row[..., has_key], remaining, sinks


def _hidden(terms: _Terms) -> Tensor:
    """Return which scores are masked, whatever q·k; (N, H, m, n)."""
    constant = terms.factor == 0
    if (constant & terms.visible).any():
        raise NotExpressibleError(_NO_PRODUCT)
    return constant | terms.hidden


def _fold(
    factor: Tensor, hidden: Tensor, query: Tensor, key: Tensor
) -> tuple[Tensor, Tensor, float]:
    """Return Q and K with one scale; a factor that differs by row or column goes into them."""
    known = torch.where(hidden, torch.nan, factor)
    factors = known[~hidden]
    if not len(factors):
        return query, key, 1.0
    scale = factors[0].item()
    if torch.allclose(factors, factors[0], rtol=1e-6, atol=0):
        return query, key, scale
    for dim, side in ((3, query), (2, key)):
        mean = known.nanmean(dim, keepdim=True)
        if torch.allclose((known / mean)[~hidden], torch.ones_like(factors), rtol=1e-5, atol=0):
            mean = mean.nan_to_num(1.0).transpose(2, 3) if dim == 2 else mean.nan_to_num(1.0)
            scaled = side * mean.to(side.dtype)
            return (scaled, key, 1.0) if dim == 3 else (query, scaled, 1.0)
    raise NotExpressibleError("its scores are scaled element by element")


def _one_for_all_heads(term: Tensor) -> Tensor:
    return term[:, :1] if (term == term[:, :1]).all() else term


@dataclass(frozen=True, eq=False)
class _Terms:
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
        """Which scores are made of a product, and not masked."""
        return (self.factor != 0) & ~self.hidden

    @cached_property
    def hidden(self) -> Tensor:
        """Which scores are masked."""
        instead = (self.factor == 0) & (self.offset <= _INSTEAD)
        highest = torch.where(self.factor != 0, self.offset, -torch.inf).amax(-1, keepdim=True)
        below = (self.offset <= highest - _BELOW) & highest.isfinite()
        return instead | below | (self.offset <= _ABSORBING)

    @cached_property
    def visible(self) -> Tensor:
        """Which scores count: those with a weight, in a row with an unmasked key.

        A row without one is uniform in the model, and has no meaning.
        """
        return (self.weights != 0) & ~self.hidden.all(-1, keepdim=True)


@dataclass(frozen=True, eq=False)
class _Origins:
    """Where every score comes from, each (N, H, m, n).

    q_row, k_row, v_row : which row of all queries, keys and values, -1 for none. q_place, k_place :
    where that row was stored, the same for every copy of it.
    """

    q_row: Tensor
    k_row: Tensor
    v_row: Tensor
    q_place: Tensor
    k_place: Tensor


@dataclass(frozen=True)
class _Layout:
    """How the dimensions of a softmax divide into texts, heads, rows and columns."""

    dim: int
    texts: int
    inner: tuple[int, ...]  # between the texts and the columns
    head_dims: tuple[int, ...]  # which of these are heads

    @classmethod
    def of(cls, softmax: Softmax, texts: int, heads: int | None, q_number: Tensor) -> _Layout:
        """Return the layout of a softmax.

        heads : the number that the module names, if it does. q_number : for each score the number
        of its query within its product.
        """
        moved = q_number.movedim(softmax.dim, -1)
        leading = tuple(moved.shape[:-1]) or (1,)
        if leading[0] % texts:
            texts = 1  # computed once for all texts
        inner = (leading[0] // texts, *leading[1:])
        # The number of the query changes along the dimensions of the rows.
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
    """Return which dimensions are heads: those of the named number, or all but the rows."""
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


def _query_and_key_rows(softmax: Softmax) -> dict[str, Tensor]:
    """Return for each score which query and key it comes from: row, place and number of the row."""
    provenance = softmax.provenance
    assert provenance is not None
    names = ("q_row", "k_row", "q_place", "k_place", "q_number", "k_number")
    rows = {name: torch.full_like(provenance.origin, -1) for name in names}
    q_first = k_first = 0
    for product in softmax.products:
        (batch, m, _), n = product.q.shape, product.k.shape[1]
        inside = provenance.origin - product.first
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


def _is_transposed(rows: dict[str, Tensor], dim: int) -> bool:
    """Whether the softmax runs over the left side of the product: then the queries are the keys."""
    q, k = (rows[name].movedim(dim, -1) for name in ("q_place", "k_place"))
    known = q >= 0

    def one_in_each_row(place: Tensor) -> bool:
        return bool(((place == place.amax(-1, keepdim=True)) | ~known).all())

    return one_in_each_row(k) and not one_in_each_row(q)


def _swap_sides(rows: dict[str, Tensor]) -> dict[str, Tensor]:
    """Exchange queries and keys."""
    swapped = {"q": "k", "k": "q"}
    return {swapped[name[0]] + name[1:]: tensor for name, tensor in rows.items()}


def _by_head(softmax: Softmax, rows: dict[str, Tensor], layout: _Layout) -> tuple[_Origins, _Terms]:
    """Bring the origins and terms of a softmax to (N, H, m, n)."""
    provenance = softmax.provenance
    assert provenance is not None
    assert provenance.factor is not None
    assert provenance.offset is not None
    v_row = layout.arrange(_value_rows(softmax))
    # A row whose weights the model discards (some do so for padding) reads nothing.
    discarded = (v_row < 0).all(-1, keepdim=True)
    names = ("q_row", "k_row", "q_place", "k_place")
    return (
        _Origins(v_row=v_row, **{name: layout.arrange(rows[name]) for name in names}),
        _Terms(
            factor=layout.arrange(provenance.factor),
            offset=layout.arrange(provenance.offset).masked_fill(discarded, -torch.inf),
            scores=layout.arrange(softmax.scores),
            weights=layout.arrange(softmax.weights),
            inner=None if provenance.inner is None else layout.arrange(provenance.inner),
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


def _head_output(softmax: Softmax, layout: _Layout) -> Tensor | None:
    """Return A·V of each row, summed over all products with values that its weights enter.

    None where the model multiplies other weights than these with values.
    """
    if not all(mixture.exact_weights for mixture in softmax.mixtures):
        return None
    count = softmax.weights.shape[softmax.dim]
    numbers = torch.arange(softmax.weights.numel(), device=softmax.weights.device)
    arranged = layout.arrange(numbers.view(softmax.weights.shape))
    row_of = torch.empty_like(numbers)
    row_of[arranged.flatten()] = torch.arange(len(numbers), device=numbers.device) // count
    width = softmax.mixtures[0].v.shape[-1]
    output = softmax.weights.new_zeros(len(numbers) // count, width)
    for mixture in softmax.mixtures:
        element = (mixture.elements - softmax.first).amax(-1)  # any element shows the row
        here = (element >= 0) & (element < len(numbers))
        output.index_add_(0, row_of[element[here]], mixture.output[here].to(output.dtype))
    return output.view(*arranged.shape[:3], width)


def _common(origins: Tensor, live: Tensor, dim: int) -> Tensor:
    """Return the origin that the scores along `dim` share; a mask may also move a score."""
    known = torch.where(live, origins, -1).amax(dim)
    return torch.where(known >= 0, known, origins.amax(dim))
