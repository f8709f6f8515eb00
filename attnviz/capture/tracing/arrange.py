"""From a traced softmax to q, k, v and score terms, by text and head.

Models arrange their scores in many ways: heads beside or inside the batch, one window after
another, keys in overlapping chunks. Here they are brought to (N, H, m, n), N texts of H heads.
Where the keys of a row differ from those of the next (windows, chunks), a head gets all its keys,
and those that a row does not read are masked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import prod
from typing import Any, Self

import torch
from torch import Tensor

from attnviz.capture.tracing.provenance import (
    TINY,
    VECTOR,
    VECTORS,
    Mixture,
    Provenance,
    Softmax,
    elements_in,
)

# What masks a score: a value in its place; a term added to it while others of the row have none
# (their weights then differ by e^5000); or a value so low that the score is lost in it.
_INSTEAD, _BELOW, _ABSORBING = -1e3, 5e3, -3e4
_NO_KEY = 0.0, -torch.inf, -torch.inf, 0.0, 0.0  # the terms of a column without a product
_KINDS = 4  # of keys in a row, each with queries of its own, at most
_FAR = 2**52  # beyond every place
_SAME = (
    "as many heads as inputs ({}) lie where nothing tells them apart. Give another number of inputs"
)
_NO_PRODUCT = "a row sees scores that are no product of a query and a key"


class NotExpressibleError(Exception):
    """The attention is not softmax(scale · q·k + terms); the message says why."""


@dataclass(frozen=True, eq=False)
class Attention:
    """The tensors of an attention over N texts (1 where it is computed once for all of them)."""

    query: Tensor  # (N, H, m, d_k)
    key: Tensor  # (N, G, n, d_k)
    # (N, G, n, d_v); where the weights are multiplied by several values, these side by side
    value: Tensor
    scale: float  # of q·k
    soft_cap: float | None  # the bound of the scores
    # Added to the scores before the cap, and after it: (N or 1, H or 1, m, n).
    capped_bias: Tensor | None
    bias: Tensor | None
    mask: Tensor | None
    sinks: Tensor | None  # scores beside those of the keys, (H,) or (N, H, m)
    scores: Tensor  # the model's own input of the softmax, (N, H, m, n)
    weights: Tensor  # and its output
    # The model's own A·V, (N, H, m, d_v); None where more than weights and values enters it.
    head_output: Tensor | None
    # Whether all values that the weights are multiplied by are in `value`.
    compares_all: bool = True
    log_softmax: bool = False  # as in AttentionRecord
    over_queries: bool = False  # which are its keys then; values are summed over its queries


@dataclass(frozen=True)
class Batch:
    """What is known of the dimensions of an attention."""

    texts: int
    heads: int | None  # the number that the module names, if it does
    members: int = 1  # of a torch.vmap among the inputs, whose dimensions come first
    is_first: bool = True  # whether inputs stand before heads where nothing tells
    joined: Collection[tuple[int, int]] = ()  # sizes of joined batches, and of the parts of each


def arrange(softmax: Softmax, batch: Batch, lengths: Collection[int] = ()) -> Attention:
    """Bring a softmax with its provenance, products and mixtures (at least one) to (N, H, m, n).

    lengths : those of the model's inputs; positions that the model adds behind one, and masks, are
    left out. Raises NotExpressibleError where something else than scale · q·k + terms enters the
    softmax.
    """
    provenance = softmax.provenance
    assert provenance is not None
    queries, keys = _sides(softmax, provenance)
    if is_turned := _is_transposed(queries, keys, softmax.dim):
        queries, keys = keys, queries
    uses = [_Use.of_softmax(softmax, mixtures) for mixtures in _uses(softmax)]
    places, numbers = (queries.place, keys.place, uses[0].place), queries.number
    axes = Axes.of(places, numbers, batch, softmax.dim)
    terms = _Terms(
        provenance.factor, provenance.offset, softmax.scores, softmax.weights, provenance.inner
    ).map(axes.arrange)
    v_rows = [axes.arrange(use.row) for use in uses]
    unused = torch.stack(v_rows).amax(0) < 0
    # A row whose weights are no numbers, or are set to 0 (padding, not dropout), reads nothing.
    exact, empty = all(one.exact_weights for one in softmax.mixtures), unused.all(3, keepdim=True)
    empty &= ~empty.all(2, keepdim=True) if exact else torch.zeros_like(empty)
    empty |= terms.weights.isnan().all(-1, keepdim=True)
    is_changed = bool((unused & ~empty & (terms.weights > TINY)).any())
    terms = replace(terms, offset=terms.offset.masked_fill(empty, -torch.inf))
    q_place, live = axes.arrange(queries.place), terms.live
    kind = torch.zeros_like(q_place[0, 0, 0])
    if ((q_place != _common(q_place, live, 3)) & live).any():
        # Keys of several kinds, words and entities, may be read by queries of their own.
        kind = torch.unique(q_place, dim=3, return_inverse=True)[1]
    k_place, k_row, k_number = map(axes.arrange, (keys.place, keys.row, keys.number))
    if (kinds := 1 + int(kind.max())) > 1 and (
        kinds > _KINDS or kinds == len(kind) or _repeats(torch.where(live, k_place, -1))
    ):
        raise NotExpressibleError("one row holds scores of several queries")
    rows, of_kind = axes.arrange(queries.row), [kind == n for n in range(kinds)]
    q_row = torch.cat([_common(rows[..., one], live[..., one], 3) for one in of_kind], 3)
    every = [*zip(uses, v_rows, strict=True)]
    one_per_key = [x for x in every if len(uses) == 1 or _has_one_value_per_key(*x, terms.live)]
    compared, v_rows = map(list, zip(*(one_per_key or every[:1]), strict=True))
    kind = kind.expand_as(k_place)
    by_key = [k_row, kind, *v_rows]
    (k_row, kind, *v_rows), terms = _by_key(k_place, k_number, keys.count, by_key, terms)
    # Columns that belong to no key: padding, or a sink with its own score.
    has_key = (k_row >= 0).flatten(0, 1).any(0)
    sinks = None
    if not has_key.all():
        sinks = _sinks(terms, ~has_key)
        k_row, kind, *v_rows = (row[..., has_key] for row in (k_row, kind, *v_rows))
        terms = terms.map(lambda term: term[..., has_key])
    if ((terms.factor == 0) & terms.visible).any():
        raise NotExpressibleError(_NO_PRODUCT)
    read = terms.live.flatten(0, 1).any(0)
    m, n = (_without_padding(read.any(1 - dim), lengths) for dim in (0, 1))
    k_row, kind, *v_rows = (row[..., :n] for row in (k_row, kind, *v_rows))
    terms = terms.map(lambda term: term[:, :, :m, :n])
    hidden = ~terms.live
    values = [use.vectors[row.clamp(min=0)] for use, row in zip(compared, v_rows, strict=True)]
    outputs = [None if is_changed else use.output(softmax) for use in compared]
    known_outputs = [axes.arrange(output)[:, :, :m] for output in outputs if output is not None]
    query = queries.vectors[q_row[:, :, :m].clamp(min=0)].flatten(3)  # of all kinds, side by side
    is_of = kind.clamp(min=0).unsqueeze(-1) == torch.arange(kinds, device=kind.device)
    key = (is_of.unsqueeze(-1) * keys.vectors[k_row.clamp(min=0)].unsqueeze(3)).flatten(3)
    query, key, scale = _fold(terms.factor, hidden, query, key)
    offset = torch.where(hidden, 0.0, terms.offset)
    bias = offset.to(query.dtype)
    if not torch.equal(bias.to(offset.dtype), offset):  # a sum of several may need a wider dtype
        bias = offset
    lowest = torch.finfo(query.dtype).min
    mask = torch.zeros_like(terms.scores, dtype=query.dtype).masked_fill(hidden, lowest)
    mask = mask.masked_fill(empty[:, :, :m] & hidden.all(-1, keepdim=True), -torch.inf)
    inner = None if terms.inner is None else torch.where(hidden, 0.0, terms.inner).to(query.dtype)
    return Attention(
        query=query,
        key=key,
        value=torch.cat(values, -1),
        scale=scale,
        soft_cap=provenance.cap,
        capped_bias=None if inner is None else _one_for_all_heads(inner),
        bias=_one_for_all_heads(bias) if bias.any() else None,
        mask=_one_for_all_heads(mask) if hidden.any() else None,
        sinks=sinks,
        scores=terms.scores,
        weights=terms.weights,
        head_output=torch.cat(known_outputs, -1) if len(known_outputs) == len(outputs) else None,
        compares_all=len(compared) == len(uses),
        log_softmax=provenance.log_sum_exp and terms.scores.dtype == query.dtype,
        over_queries=is_turned and exact and len(known_outputs) < len(outputs),
    )


def _without_padding(is_read: Tensor, lengths: Collection[int]) -> int:
    """Return the length of the input that holds all positions that are read, or their number."""
    size, used = len(is_read), 1 + int(is_read.nonzero().max()) if is_read.any() else 0
    inputs = [length for length in lengths if 0 < used <= length < size]
    return size if size in lengths else min(inputs, default=size)


@dataclass(frozen=True, eq=False)
class _Side:
    """The queries, keys or values of all products, and which of them each score comes from."""

    vectors: Tensor  # (R, d)
    count: int  # of rows in the largest product
    row: Tensor  # for each score its row of these, -1 for none
    place: Tensor  # where that row was stored, the same for every copy of it
    number: Tensor  # that of the row within its product

    @classmethod
    def of(cls, parts: Sequence[tuple[Tensor, ...]], like: Tensor, **more: Any) -> Self:
        """Return one side of all products.

        parts : of each the vectors (B, n, d), their places (B, n), some scores, and the rows of
        these, from 0 to B·n. like : a tensor of the shape of the scores.
        """
        row, first = torch.full((like.numel(),), -1, device=like.device), 0
        for vectors, _, scores, rows in parts:
            row[scores] = first + rows
            first += vectors.shape[:2].numel()
        vectors, places = (torch.cat([part[i].flatten(0, 1) for part in parts]) for i in (0, 1))
        sizes = [part[1].shape for part in parts]
        numbers = torch.cat([torch.arange(n, device=row.device).repeat(B) for B, n in sizes])
        place, number = (x[row].where(row >= 0, -1).view_as(like) for x in (places, numbers))
        return cls(vectors, max(n for _, n in sizes), row.view_as(like), place, number, **more)


def _sides(softmax: Softmax, provenance: Provenance) -> tuple[_Side, _Side]:
    """Return the left sides of all products, and the right ones."""
    left, right = [], []
    for product in softmax.products:
        m, n = product.q.shape[1], product.k.shape[1]
        elements = elements_in(product.span, provenance.origin).flatten()
        scores = (elements >= 0).nonzero()[:, 0]
        element = elements[scores]
        left.append((product.q, product.q_place, scores, element // n))  # b · m + i
        k = element // (m * n) * n + element % n  # b · n + j
        right.append((product.k, product.k_place, scores, k))
    return _Side.of(left, provenance.origin), _Side.of(right, provenance.origin)


def _is_transposed(queries: _Side, keys: _Side, dim: int) -> bool:
    """Whether the softmax runs over the left side of the product: then the queries are the keys."""
    q, k = (side.place.movedim(dim, -1) for side in (queries, keys))
    is_one = (((x == x.amax(-1, keepdim=True)) | (q < 0)).all() for x in (q, k))
    of_queries, of_keys = map(bool, is_one)  # whether a row has scores of one alone
    return of_keys and not of_queries


@dataclass(frozen=True)
class Axes:
    """The dimensions of a softmax without its keys: inputs, heads, and rows with their windows."""

    sizes: tuple[int, ...]  # two dimensions may be stored as one
    inputs: list[int]
    heads: list[int]
    rows: list[int]
    dim: int  # of the softmax, along which its keys lie

    @classmethod
    def of(cls, places: Sequence[Tensor], numbers: Tensor, batch: Batch, dim: int = -1) -> Axes:
        """Return the axes of an attention; raise NotExpressibleError where two may be the inputs.

        places : where queries, keys and values were stored; 1 row is that of all queries, and 1
        column that of all keys. numbers : of the queries in their products.
        """
        texts, heads, members = batch.texts, batch.heads, batch.members
        stored = [x.movedim(dim, -1) for x in places]
        aparts = [_step(x, -1) for x in stored]
        numbers = numbers.movedim(dim, -1).amax(-1)
        places = [x.amax(-1).expand_as(numbers) for x in stored]
        sizes = [n for i in range(numbers.dim()) for n in _parts(places, i)]
        count = len(sizes)
        lead = next((i for i in range(1, count) if prod(sizes[:i]) == members), 0)
        lead, texts = (lead, texts // members) if members > 1 and lead else (0, texts)
        part = -1  # the dimension of the parts of a joined batch
        while True:
            places, numbers = [x.reshape(sizes) for x in places], numbers.reshape(sizes)
            every = range(len(sizes))
            known = numbers.where(numbers >= 0, _FAR)  # rows of padding have no query
            moves = [bool((numbers.amax(i) > known.amin(i)).any()) for i in every]
            aparts[0] = max((_step(places[0], i) for i in every if moves[i]), default=aparts[0])
            lying = [*zip(places, aparts, strict=True)]
            near = [min(_near(*one, i) for one in lying) for i in every]
            free = [i for i in every if not moves[i] and i >= lead]
            vectors = [x for x in places if (x >= VECTORS).all()]  # whose parts are heads
            apart = [i for i in free if sizes[i] > 1 and i != part]
            apart = [i for i in apart if all(_near(x, 0, i) == VECTOR for x in vectors)]
            groups = _groups(apart, sizes, texts) if texts > 1 else [[]]
            whole = [i for i in free if sizes[i] % texts == 0 and near[i] == VECTOR]
            far = [min((near[i] for i in group), default=VECTOR) for group in groups]
            if VECTOR in far or not whole:
                break
            size = sizes[whole[0]]
            both = next((n for n, one in batch.joined if one == texts and size % n == 0), texts)
            part = whole[0] if both > texts else -1
            parts = both // texts, texts, size // both
            sizes[whole[0] : whole[0] + 1] = [n for n in parts if n > 1]
        if not batch.is_first and far.count(VECTOR) > 1 and min(near) == VECTOR:
            raise NotExpressibleError(_SAME.format(texts))
        inputs = [*range(lead), *(groups[far.index(max(far))] if groups else [])]
        free = [i for i in free if i not in inputs]
        # Heads that share their keys are rows of one product.
        is_sure = bool((places[0] >= VECTORS).all())
        shared = [i for i in every if moves[i] and near[i] < VECTOR and is_sure]
        if not any(moves) and free and near[free[-1]] == VECTOR:
            shared.append(free.pop())  # each query has a product of its own
        named = _groups(free, sizes, heads) or _groups(sorted(free + shared), sizes, heads)
        close = [i for i in sorted(free + shared) if near[i] < VECTOR]
        is_whole = bool(inputs) and len(sizes) == count  # else windows stand beside the inputs
        named.sort(key=lambda group: -max(near[i] for i in group))  # parts of vectors last
        one = [] if heads == 1 else close or (free if is_whole else free[-1:])
        found = named[-1] if named else one
        found.sort(key=lambda i: -_near(*lying[0], i))  # as the features of the queries
        rows = [i for i in every if i not in (*inputs, *found)]
        return cls(tuple(sizes), inputs, found, rows, dim)

    def arrange(self, tensor: Tensor) -> Tensor:
        """Bring a tensor of the shape of the softmax to (N, H, m, n)."""
        moved, n = tensor.movedim(self.dim, -1), tensor.shape[self.dim]
        N, H = (prod(self.sizes[i] for i in dims) for dims in (self.inputs, self.heads))
        order = (*self.inputs, *self.heads, *self.rows, len(self.sizes))
        return moved.reshape(*self.sizes, n).permute(order).reshape(N, H, -1, n)

    def beside(self, count: int) -> Tensor | None:
        """Return the numbers of `count` maps by input, or its window, and head; None if unknown."""
        lead = [i for i, size in enumerate(self.sizes) if size > 1 and prod(self.sizes[:i]) < count]
        order = [i for i in (*self.inputs, *self.rows, *self.heads) if i in lead]
        if any(self.sizes[i] > 1 and i not in lead for i in self.heads):
            return None  # heads are rows
        numbers = torch.arange(count).view([self.sizes[i] for i in lead])
        numbers = numbers.permute([lead.index(i) for i in order])
        return numbers.reshape(-1, prod(self.sizes[i] for i in self.heads))


def _groups(dims: Sequence[int], sizes: Sequence[int], size: int | None) -> list[list[int]]:
    """Return the neighbors among some dimensions that have a size together, the shortest last."""
    pairs = [(i, j) for i in range(len(dims)) for j in range(i, len(dims))]
    groups = [list(dims[i : j + 1]) for i, j in sorted(pairs, key=lambda one: one[0] - one[1])]
    return [one for one in groups if prod(sizes[i] for i in one) == size]


def _step(place: Tensor, dim: int) -> int:
    """Return how far from each other the places along a dimension are; 0 if unknown."""
    apart = torch.unique(place.diff(dim=dim))
    return abs(int(apart)) if len(apart) == 1 else 0


def _near(place: Tensor, apart: int, dim: int) -> int:
    """Return how far from each other places along a dimension are, if nearer than positions.

    So are heads, the parts of one vector. VECTOR stands for all others. apart : how far from each
    other positions are; 0 if unknown.
    """
    is_known, step = bool((place >= VECTORS).all()), _step(place, dim)
    return step if 0 < step < (VECTOR if is_known else apart) else VECTOR


def _parts(places: Sequence[Tensor], dim: int) -> tuple[int, ...]:
    """Return the sizes of a dimension's parts: of several, if its places jump now and then."""
    for place in places:
        size = place.shape[dim]
        along = place.movedim(dim, 0).reshape(size, -1)
        apart = along.diff(dim=0)
        jumps = (apart != apart[:1]).any(1).nonzero()
        part = 1 + int(jumps[0]) if len(jumps) else size
        parts = along.reshape(-1, part, *along.shape[1:]) if size % part == 0 else along[None]
        if len(parts) > 1 and _step(parts, 1):
            outer = _parts([parts[:, 0]], 0)
            if outer[1:] or _step(parts, 0):
                return *outer, part
    return (size,)


def _uses(softmax: Softmax) -> list[list[Mixture]]:
    """Return the products with values: a group, in one product or chunk by chunk, is one A·V."""
    uses: list[tuple[Tensor, list[Mixture]]] = []
    for mixture in softmax.mixtures:
        element, width = mixture.elements[mixture.elements >= 0], mixture.v.shape[-1]
        for covered, mixtures in uses:
            if mixtures[0].v.shape[-1] == width and not covered[element].any():
                break
        else:
            covered, mixtures = torch.zeros_like(softmax.weights, dtype=torch.bool).flatten(), []
            uses.append((covered, mixtures))
        covered[element] = True
        mixtures.append(mixture)
    return [mixtures for _, mixtures in uses]


@dataclass(frozen=True, eq=False)
class _Use(_Side):
    """One A·V of a softmax: its values, and which of them each weight is multiplied by."""

    mixtures: list[Mixture]

    @classmethod
    def of_softmax(cls, softmax: Softmax, mixtures: list[Mixture]) -> _Use:
        """Return the values of some products."""
        parts = []
        for mixture in mixtures:
            B, _, n = mixture.elements.shape
            known = mixture.elements >= 0
            rows = torch.arange(B * n, device=known.device).view(B, 1, n).expand_as(known)
            parts.append((mixture.v, mixture.v_place, mixture.elements[known], rows[known]))
        return cls.of(parts, softmax.weights, mixtures=mixtures)

    def output(self, softmax: Softmax) -> Tensor | None:
        """Return A·V of each row over all chunks; None where other weights are multiplied.

        It has the shape of the softmax, but for features in the place of keys.
        """
        if not all(mixture.exact_weights for mixture in self.mixtures):
            return None
        weights = softmax.weights.movedim(softmax.dim, -1)
        output = weights.new_zeros(*weights.shape[:-1], self.vectors.shape[-1]).flatten(0, -2)
        numbers = torch.arange(len(output), device=output.device).view(*weights.shape[:-1], 1)
        row_of = numbers.expand_as(weights).movedim(-1, softmax.dim).flatten()
        for mixture in self.mixtures:
            known = mixture.elements >= 0
            rows = row_of[mixture.elements].where(known, -1)
            row = rows.amax(-1)
            if (known & (rows != row.unsqueeze(-1))).any():
                return None  # values are summed over the queries
            output.index_add_(0, row[row >= 0], mixture.output[row >= 0].to(output.dtype))
        return output.view(*weights.shape[:-1], -1).movedim(-1, softmax.dim)


def _has_one_value_per_key(use: _Use, row: Tensor, live: Tensor) -> bool:
    """Whether all queries of a head read the same values; row (N, H, m, n) : of each weight."""
    number = torch.unique(use.vectors, dim=0, return_inverse=True)[1]
    number, live = number[row].where(row >= 0, -1), live & (row >= 0)
    return bool(((number == _common(number, live, 2)) | ~live).all())


@dataclass(frozen=True, eq=False)
class _Terms:
    """The formula, value and weight of every score, (N, H, m, n); inner : added before the cap."""

    factor: Tensor
    offset: Tensor
    scores: Tensor
    weights: Tensor
    inner: Tensor | None = None

    def map(self, change: Callable[..., Tensor], *others: Sequence[float]) -> _Terms:
        """Return terms, each changed with its own one of each of the others."""
        every = zip([getattr(self, field.name) for field in fields(self)], *others, strict=True)
        changed: Any = [None if one[0] is None else change(*one) for one in every]
        return _Terms(*changed)

    @cached_property
    def live(self) -> Tensor:
        """Which scores are made of a product, and not masked."""
        return (self.factor != 0) & ~self.hidden

    @cached_property
    def hidden(self) -> Tensor:
        instead = (self.factor == 0) & (self.offset <= _INSTEAD)
        highest = torch.where(self.factor != 0, self.offset, -torch.inf).amax(-1, keepdim=True)
        below = (self.offset <= highest - _BELOW) & highest.isfinite()
        return instead | below | (self.offset <= _ABSORBING)

    @cached_property
    def visible(self) -> Tensor:
        """Which scores count: those with a weight, in a row with an unmasked key."""
        return (self.weights > 0) & ~self.hidden.all(-1, keepdim=True)


def _common(origins: Tensor, live: Tensor, dim: int) -> Tensor:
    """Return the origin that the scores along `dim` share; a mask may also move a score."""
    known = torch.where(live, origins, -1).amax(dim, keepdim=True)
    return torch.where(known >= 0, known, origins.amax(dim, keepdim=True))


def _by_key(
    k_place: Tensor, k_number: Tensor, count: int, rows: list[Tensor], terms: _Terms
) -> tuple[list[Tensor], _Terms]:
    """Give each column one key: return its rows of keys and of values (N, H, n), and the terms."""
    if ((k_place == _common(k_place, terms.live, 2)) | ~terms.live).all():
        return [_common(row, terms.live, 2).squeeze(2) for row in rows], terms
    if (terms.visible & (k_place < 0)).any():
        raise NotExpressibleError(_NO_PRODUCT)
    numbered = _numbered(k_place, k_number, count, rows[0])
    index, columns = _columns(k_place, terms.visible) if numbered is None else numbered[::2]
    N, H, m, _ = index.shape

    def by_column(term: Tensor, empty: float) -> Tensor:
        out = term.new_full((N, H, m, columns + 1), empty)
        return out.scatter_(3, index, term)[..., :columns]

    k_row, *others = (by_column(row, -1).amax(2) for row in rows)
    return [k_row if numbered is None else numbered[1], *others], terms.map(by_column, _NO_KEY)


def _numbered(
    k_place: Tensor, k_number: Tensor, count: int, k_row: Tensor
) -> tuple[Tensor, Tensor, int] | None:
    """Return the column of each score, the key of each column, and how many there are.

    Where each product has a key once, its own numbers hold, also for keys that no row has picked.
    The keys of one window stand behind those of another, as their queries do.
    """
    start = (k_row - k_number)[..., 0]
    is_one = ((k_row - k_number) == start.unsqueeze(-1)) & (k_number >= 0)
    earlier = torch.arange(start.shape[-1], 0, -1, device=start.device)
    first = ((start.unsqueeze(-1) == start.unsqueeze(-2)) * earlier).argmax(-1)
    if not is_one.all() or (first != first[:1, :1]).any() or _repeats(k_place):
        return None
    blocks, block = torch.unique(first, return_inverse=True)
    index = block.unsqueeze(-1) * count + k_number
    place = k_place.new_full((*k_place.shape[:2], len(blocks) * count), -1)
    place.scatter_(2, index.flatten(2), k_place.flatten(2))
    is_own = place.gather(2, index.flatten(2)) == k_place.flatten(2)
    if not is_own.all() or _repeats(place):
        return None
    keys = start[..., blocks].unsqueeze(-1) + torch.arange(count, device=start.device)
    return index, keys.flatten(2), place.shape[2]


def _columns(k_place: Tensor, visible: Tensor) -> tuple[Tensor, int]:
    """Return the number of each score's key in its head, and their count, also if masked."""
    # The second copy of a key in one row gets its own place, and so on.
    order = torch.where(visible, k_place, -1).sort(dim=-1, stable=True)
    position = torch.arange(k_place.shape[-1], device=k_place.device).expand_as(k_place)
    starts = torch.ones_like(visible)
    starts[..., 1:] = order.values[..., 1:] != order.values[..., :-1]
    rank = position - torch.where(starts, position, 0).cummax(-1).values
    copies = torch.zeros_like(k_place).scatter_(-1, order.indices, rank)
    place = torch.where(visible, k_place + copies * _FAR, -1).flatten(0, 1)
    masked = k_place.flatten(0, 1)  # a key that no row reads has its place, too
    keys = [torch.unique(torch.cat(both)) for both in zip(place, masked, strict=True)]
    keys = [places[places >= 0] for places in keys]
    columns = max(len(places) for places in keys)
    if columns > min(len(places) for places in keys):
        raise NotExpressibleError("its heads read other keys, which cannot be told apart")
    index = torch.full_like(place, columns)
    for head_index, head_places, places in zip(index, place, keys, strict=True):
        known = head_places >= 0
        head_index[known] = torch.searchsorted(places, head_places[known])
    return index.view_as(k_place), columns


def _repeats(place: Tensor) -> bool:
    """Whether a row holds two scores of one key; -1 is none."""
    ordered = place.sort(-1).values
    return bool(((ordered.diff(dim=-1) == 0) & (ordered[..., 1:] >= 0)).any())


def _sinks(terms: _Terms, keyless: Tensor) -> Tensor | None:
    """Return the scores of the column that belongs to no key and is read: (H,), or (N, H, m)."""
    read = keyless & terms.visible.flatten(0, 2).any(0)
    if not read.any():
        return None
    sink = terms.offset[..., read]
    if sink.shape[-1] > 1:
        raise NotExpressibleError(_NO_PRODUCT)
    return sink[0, :, 0, 0] if (sink == sink[:1, :, :1]).all() else sink[..., 0]


def _fold(
    factor: Tensor, hidden: Tensor, query: Tensor, key: Tensor
) -> tuple[Tensor, Tensor, float]:
    """Return Q and K with one scale; a factor that differs by row or column goes into them."""
    known = torch.where(hidden, torch.nan, factor)
    factors = known[~hidden]
    if not len(factors):
        return query, key, 1.0
    if torch.allclose(factors, factors[0], rtol=1e-6, atol=0):
        return query, key, factors[0].item()
    for dim in (3, 2):
        mean = known.nanmean(dim, keepdim=True)
        if torch.allclose((known / mean)[~hidden], torch.ones_like(factors), rtol=1e-5, atol=0):
            mean = mean.nan_to_num(1.0)
            if dim == 3:
                return query * mean.to(query.dtype), key, 1.0
            return query, key * mean.transpose(2, 3).to(key.dtype), 1.0
    raise NotExpressibleError("its scores are scaled element by element")


def _one_for_all_heads(term: Tensor) -> Tensor:
    return term[:, :1] if (term == term[:, :1]).all() else term
