"""From a softmax that was watched to q, k, v and score terms, by text and head.

Models lay their scores out as they like: heads beside or inside the batch, one window after
another, keys in overlapping chunks. Here they are brought to (N, H, m, n), N texts of H heads.
Where the keys of a row are not those of the next (windows, chunks), a head gets all its keys, and
those that a row does not see are hidden from it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attnviz.capture.attention_call import Attention
from attnviz.capture.tracing.elements import (
    Origins,
    Shape,
    Terms,
    elements,
    head_output_of,
    is_transposed,
    other_way,
    pick,
    rows_of,
)
from attnviz.capture.tracing.nodes import Product, Softmax

_FAR = 2**48  # further than any memory reaches
_NO_PRODUCT = "a row sees scores that are no product of a query and a key"


class NotExpressibleError(Exception):
    """These scores are no softmax of scale · q·k + terms; the message says why."""


def arrange(softmax: Softmax, texts: int, heads: int | None) -> Attention:
    """Bring a softmax to (N, H, m, n).

    Parameters
    ----------
    softmax : with its shadow, products and mixtures.
    texts : N, how many texts the batch holds.
    heads : how many heads the module says that it has, if it does.

    Raises
    ------
    NotExpressibleError : something else than scale · q·k + terms entered the softmax.
    """
    if not softmax.mixtures:
        raise NotExpressibleError("its weights enter no product with values")
    if texts > 1 and softmax.weights.dim() < 3:
        raise NotExpressibleError("the texts of the batch are not told apart in it")
    rows = rows_of(softmax)
    sides = ["q", "k"]
    if is_transposed(rows, softmax.dim):
        rows, sides = other_way(rows), ["k", "q"]
    shape = Shape.of(softmax, texts, heads, rows["q_number"])
    origins, terms = elements(softmax, rows, shape)
    queries, keys = (_vectors(softmax.products, side) for side in sides)
    values = torch.cat([mixture.v.flatten(0, 1) for mixture in softmax.mixtures])
    place = pick(origins.q_place, terms.live, 3).unsqueeze(3)
    if ((origins.q_place != place) & terms.live).any():
        raise NotExpressibleError("one row holds scores of several queries")
    query = queries[pick(origins.q_row, terms.live, 3).clamp(min=0)]
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
        soft_cap=softmax.shadow.cap if softmax.shadow is not None else None,
        capped_bias=None if inner is None else _one_for_all_heads(inner),
        bias=_one_for_all_heads(bias) if bias.any() else None,
        mask=_one_for_all_heads(mask) if hidden.any() else None,
        sinks=sinks,
        scores=terms.scores,
        weights=terms.weights,
        head_output=head_output_of(softmax, shape),
    )


def _vectors(products: Sequence[Product], side: str) -> Tensor:
    return torch.cat([getattr(product, side).flatten(0, 1) for product in products])


def _by_key(origins: Origins, terms: Terms) -> tuple[Tensor, Tensor, Terms]:
    """Give every column one key: return its rows of keys and values (N, H, n), and the terms."""
    first = pick(origins.k_place, terms.live, 2).unsqueeze(2)
    if ((origins.k_place == first) | ~terms.live).all():
        return pick(origins.k_row, terms.live, 2), pick(origins.v_row, terms.live, 2), terms
    index, columns = _columns(origins.k_place, terms.visible)
    N, H, m, _ = index.shape

    def of_column(rows: Tensor) -> Tensor:
        out = rows.new_full((N, H, columns + 1), -1)
        return out.scatter_(2, index.flatten(2), rows.flatten(2))[..., :columns]

    def spread(tensor: Tensor, empty: float) -> Tensor:
        out = tensor.new_full((N, H, m, columns + 1), empty)
        return out.scatter_(3, index, tensor)[..., :columns]

    spread_terms = Terms(
        factor=spread(terms.factor, 0.0),
        offset=spread(terms.offset, -torch.inf),
        scores=spread(terms.scores, -torch.inf),
        weights=spread(terms.weights, 0.0),
        inner=None if terms.inner is None else spread(terms.inner, 0.0),
    )
    return of_column(origins.k_row), of_column(origins.v_row), spread_terms


def _columns(k_place: Tensor, visible: Tensor) -> tuple[Tensor, int]:
    """Number the keys that any row of a head sees; return the number of each score's key.

    What is hidden gets the number after the last, which is returned too.
    """
    if (visible & (k_place < 0)).any():
        raise NotExpressibleError(_NO_PRODUCT)
    N, H = k_place.shape[:2]
    place = torch.where(visible, _told_apart(k_place, visible), -1)
    keys = [torch.unique(place[n, h]) for n in range(N) for h in range(H)]
    keys = [each[each >= 0] for each in keys]
    columns = max(len(each) for each in keys)
    index = torch.full_like(place, columns)
    for number, each in enumerate(keys):
        of_head = place[number // H, number % H]
        known = of_head >= 0
        index[number // H, number % H][known] = torch.searchsorted(each, of_head[known])
    return index, columns


def _told_apart(places: Tensor, visible: Tensor) -> Tensor:
    """Give the second copy of a key in one row a place of its own, and so the third."""
    order = torch.where(visible, places, -1).sort(dim=-1, stable=True)
    position = torch.arange(places.shape[-1], device=places.device).expand_as(places)
    starts = torch.ones_like(visible)
    starts[..., 1:] = order.values[..., 1:] != order.values[..., :-1]
    rank = position - torch.where(starts, position, 0).cummax(-1).values
    return places + torch.zeros_like(places).scatter_(-1, order.indices, rank) * _FAR


def _without_constant_columns(
    k_row: Tensor, v_row: Tensor, terms: Terms
) -> tuple[Tensor, Tensor, Terms, Tensor | None]:
    """Take out columns that belong to no key: padding, or a sink with a score of its own."""
    none = (k_row < 0).flatten(0, 1).all(0)
    if not none.any():
        return k_row, v_row, terms, None
    sinks = None
    if (seen := none & terms.visible.flatten(0, 2).any(0)).any():
        sink = terms.offset[..., seen]
        if sink.shape[-1] > 1:
            raise NotExpressibleError(_NO_PRODUCT)
        same = (sink == sink[:1, :, :1]).all()
        sinks = sink[0, :, 0, 0] if same else sink[..., 0]
    parts = (terms.factor, terms.offset, terms.scores, terms.weights)
    inner = None if terms.inner is None else terms.inner[..., ~none]
    factor, offset, scores, weights = (part[..., ~none] for part in parts)
    kept = Terms(factor, offset, scores, weights, inner)
    return k_row[..., ~none], v_row[..., ~none], kept, sinks


def _hidden(terms: Terms) -> Tensor:
    """Return which keys have no weight, whatever q·k; (N, H, m, n)."""
    constant = terms.factor == 0
    if (constant & terms.visible).any():
        raise NotExpressibleError(_NO_PRODUCT)
    return constant | terms.hidden


def _fold(
    factor: Tensor, hidden: Tensor, query: Tensor, key: Tensor
) -> tuple[Tensor, Tensor, float]:
    """Return Q and K with one scale for all; what differs by row or column is a part of them."""
    known = torch.where(hidden, torch.nan, factor)
    some = known[~hidden]
    if not len(some):
        return query, key, 1.0
    scale = some[0].item()
    if torch.allclose(some, some[0], rtol=1e-6, atol=0):
        return query, key, scale
    for dim, side in ((3, query), (2, key)):
        own = known.nanmean(dim, keepdim=True)
        if torch.allclose((known / own)[~hidden], torch.ones_like(some), rtol=1e-5, atol=0):
            own = own.nan_to_num(1.0).transpose(2, 3) if dim == 2 else own.nan_to_num(1.0)
            scaled = side * own.to(side.dtype)
            return (scaled, key, 1.0) if dim == 3 else (query, scaled, 1.0)
    raise NotExpressibleError("its scores are scaled element by element")


def _one_for_all_heads(term: Tensor) -> Tensor:
    return term[:, :1] if (term == term[:, :1]).all() else term
