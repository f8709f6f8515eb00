"""From a softmax that was watched to q, k, v and score terms, by text and head.

Models lay their scores out as they like: heads beside or inside the batch, one window after
another, keys in overlapping chunks. Here they are brought to (N, H, m, n), N texts of H heads.
Where the keys of a row are not those of the next (windows, chunks), a head gets all its keys, and
those that a row does not see are hidden from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from attnviz.capture.calls import Attention
from attnviz.capture.operators.elements import (
    Elements,
    Shape,
    elements,
    head_output_of,
    is_transposed,
    other_way,
    pick,
    rows_of,
)
from attnviz.capture.operators.seen import Product, Softmax

_FAR = 2**48  # further than any memory reaches


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
    rows = rows_of(softmax)
    sides = ["q", "k"]
    if is_transposed(rows, softmax.dim):
        rows, sides = other_way(rows), ["k", "q"]
    shape = Shape.of(softmax, texts, heads, rows.pop("q_number"))
    rows.pop("k_number")
    found = elements(softmax, rows, shape)
    queries, keys = (_vectors(softmax.products, side) for side in sides)
    values = torch.cat([mixture.v.flatten(0, 1) for mixture in softmax.mixtures])
    head_output = head_output_of(softmax, shape)
    if not _straight(found):
        found = _with_all_keys(found)
    return _to_attention(found, queries, keys, values, softmax, head_output)


def _vectors(products: Sequence[Product], side: str) -> Tensor:
    return torch.cat([getattr(product, side).flatten(0, 1) for product in products])


def _straight(found: Elements) -> bool:
    """Whether all rows of a head have the same keys, in the same columns."""
    first = pick(found.k_place, found, 2).unsqueeze(2)
    return bool(((found.k_place == first) | ~found.live()).all())


def _with_all_keys(found: Elements) -> Elements:
    """Give each head one column for every key that any of its rows sees."""
    N, H, m, _ = found.k_place.shape
    visible = found.visible()
    if (visible & (found.k_place < 0)).any():
        raise NotExpressibleError("a row sees scores that are no product of a query and a key")
    place = torch.where(visible, _told_apart(found.k_place, visible), -1)
    keys = [torch.unique(place[n, h]) for n in range(N) for h in range(H)]
    keys = [each[each >= 0] for each in keys]
    columns = max(len(each) for each in keys)
    index = torch.full_like(place, columns)  # one more column for what is hidden
    for number, each in enumerate(keys):
        of_head = place[number // H, number % H]
        known = of_head >= 0
        index[number // H, number % H][known] = torch.searchsorted(each, of_head[known])

    def spread(tensor: Tensor, empty: float) -> Tensor:
        out = tensor.new_full((N, H, m, columns + 1), empty)
        return out.scatter_(3, index, tensor)[..., :columns]

    empty = {"factor": 0.0, "offset": -torch.inf, "scores": -torch.inf, "weights": 0.0}
    return Elements(
        **{
            name: spread(getattr(found, name), empty.get(name, -1))
            for name in found.__dataclass_fields__
        }
    )


def _told_apart(places: Tensor, visible: Tensor) -> Tensor:
    """Give the second copy of a key in one row a place of its own, and so the third."""
    order = torch.where(visible, places, -1).sort(dim=-1, stable=True)
    position = torch.arange(places.shape[-1], device=places.device).expand_as(places)
    starts = torch.ones_like(visible)
    starts[..., 1:] = order.values[..., 1:] != order.values[..., :-1]
    rank = position - torch.where(starts, position, 0).cummax(-1).values
    return places + torch.zeros_like(places).scatter_(-1, order.indices, rank) * _FAR


def _to_attention(
    found: Elements,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    softmax: Softmax,
    head_output: Tensor,
) -> Attention:
    found, sinks = _without_constant_columns(found)
    if ((found.q_place != pick(found.q_place, found, 3).unsqueeze(3)) & found.live()).any():
        raise NotExpressibleError("one row holds scores of several queries")
    query = queries[pick(found.q_row, found, 3).clamp(min=0)]
    key = keys[pick(found.k_row, found, 2).clamp(min=0)]
    value = values[pick(found.v_row, found, 2).clamp(min=0)]
    hidden, bias = _hidden(found), found.offset
    query, key, scale = _fold(found.factor, hidden, query, key)
    lowest = torch.finfo(query.dtype).min
    bias = torch.where(hidden, 0.0, bias).to(query.dtype)
    mask = torch.where(hidden, lowest, 0.0).to(query.dtype)
    return Attention(
        query=query,
        key=key,
        value=value,
        scale=scale,
        soft_cap=softmax.shadow.cap if softmax.shadow is not None else None,
        bias=_one_for_all_heads(bias) if bias.any() else None,
        mask=_one_for_all_heads(mask) if hidden.any() else None,
        sinks=sinks,
        scores=found.scores,
        weights=found.weights,
        head_output=head_output,
    )


def _without_constant_columns(found: Elements) -> tuple[Elements, Tensor | None]:
    """Take out columns that belong to no key: padding, or a sink with a score of its own."""
    none = (found.k_row < 0).flatten(0, 2).all(0)
    if not none.any():
        return found, None
    sinks = None
    seen = none & found.visible().flatten(0, 2).any(0)
    if seen.any():
        if seen.sum() > 1:
            raise NotExpressibleError("a row sees scores that are no product of a query and a key")
        sink = found.offset[..., seen]
        if (sink != sink[:1, :, :1]).any():
            raise NotExpressibleError("a row sees scores that are no product of a query and a key")
        sinks = sink[0, :, 0, 0]
    return replace(
        found,
        **{name: getattr(found, name)[..., ~none] for name in found.__dataclass_fields__},
    ), sinks


def _hidden(found: Elements) -> Tensor:
    """Return which keys have no weight, whatever q·k; (N, H, m, n)."""
    constant = found.factor == 0
    if (constant & found.visible()).any():
        raise NotExpressibleError("a row sees scores that are no product of a query and a key")
    return constant | found.hidden()


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
