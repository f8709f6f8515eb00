"""One attention: which keys are visible, what its weights follow from, what the model computed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NoReturn, Self

import torch
from torch import Tensor

from attnviz.errors import InputError
from attnviz.formula.attention import HIDDEN, scaled_scores, soft_cap, softmax, softmax_with_sink
from attnviz.results.axis import Axis
from attnviz.results.base import Rules, Savable, doc, documented, fits
from attnviz.results.projection import Projection
from attnviz.runtime.libraries import exact_products

_ALL, _ANY = slice(None), range(2**31)
_CELLS = {"cpu": 2**22, "cuda": 2**26}  # of a mask that are read at once


@documented
class MaskRule(Savable):
    """Which of n keys each of m queries may read; all of them by default.

    A causal model has `after` = 0, a sliding window of w keys `before` = w - 1. Query i stands at
    key i + `offset`, as where m queries go on from a cache of n - m keys.
    """

    before: int | None = doc("No key is further ahead of the query.", default=None)
    after: int | None = doc("No key is further behind it.", default=None)
    offset: int = doc("Where the first query stands.", default=0)
    keys: Tensor | None = doc("(n,), False for keys that no query reads; or None.", default=None)

    @classmethod
    def of(cls, mask: Tensor) -> MaskRule | None:
        """Return the rule that a mask (m, n) follows; None where it follows no such rule.

        The mask is additive, or True for visible keys. Queries end where the keys do, as in every
        causal model.
        """
        m, n = mask.shape
        cells = _CELLS.get(mask.device.type, _CELLS["cuda"])
        step = max(1, cells // n)  # rows at once, so that no copy is as large as the mask
        keys = torch.arange(n, device=mask.device)
        positions = torch.arange(n - m, n, device=mask.device)  # of the queries among the keys
        blocks = list(zip(torch.split(positions, step), torch.split(mask, step), strict=True))
        read, before, after = torch.zeros_like(keys, dtype=torch.bool), 0, 0
        unbiased = mask.dtype == torch.bool  # what a visible cell contains: True, or 0
        for i, block in blocks:
            visible = _visible(block)
            read |= visible.any(0)
            first = visible.byte().argmax(1)
            last = n - 1 - visible.flip(1).byte().argmax(1)
            reach = torch.stack([i - first, last - i]).masked_fill(~visible.any(1), 0).amax(1)
            biased = (visible & (block != unbiased)).any()
            *farthest, is_biased = torch.cat([reach, biased[None]]).tolist()  # one copy to the CPU
            if is_biased:
                return None
            before, after = max(before, farthest[0]), max(after, farthest[1])
        rule = cls(
            before if before < n - 1 else None,
            after if after < n - 1 else None,
            n - m,
            None if read.all() else read,
        )
        for i, block in blocks:
            if not torch.equal(rule.hidden_at(i - rule.offset, keys), ~_visible(block)):
                return None
        return rule

    def hides(self, rows: slice, columns: slice) -> bool:
        """Whether a tile may have a hidden cell."""
        nearest = rows.start + self.offset - (columns.stop - 1)
        farthest = rows.stop - 1 + self.offset - columns.start
        return (
            self.keys is not None
            or (self.after is not None and nearest < -self.after)
            or (self.before is not None and farthest > self.before)
        )

    def hidden_at(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return which of some keys (C,) some of the queries (R,) may not read, (R, C)."""
        distance = rows[:, None] + self.offset - columns
        hidden = torch.zeros_like(distance, dtype=torch.bool)
        if self.after is not None:
            hidden |= distance < -self.after
        if self.before is not None:
            hidden |= distance > self.before
        return hidden if self.keys is None else hidden | ~self.keys.to(columns.device)[columns]

    def empty(self, m: int, n: int, device: torch.device) -> Tensor:
        """Return which queries may read no key at all, (m,)."""
        i = torch.arange(m, device=device) + self.offset
        first = i * 0 if self.before is None else (i - self.before).clamp(0, n)
        end = i * 0 + n if self.after is None else (i + self.after + 1).clamp(0, n)
        empty = end <= first
        if self.keys is not None:
            known = torch.nn.functional.pad(self.keys.to(device).cumsum(0), (1, 0))
            empty |= known[end] <= known[first]
        return empty


@documented
class Attention(Savable):
    """One attention: a call of a module, and the positions of its queries and keys."""

    path: str = doc("The module's name in `model.named_modules()`.")
    call: int = doc("0, 1, … if one module runs several times: layers may share weights.")
    layer: int = doc("Counted from 0 within the stack.")
    stack: str = doc('"encoder", "decoder", or "cross" from the decoder to the encoder.')
    query_axis: Axis = doc("The positions of the m queries.")
    key_axis: Axis = doc("The positions of the n keys.")

    signed: ClassVar[bool] = False
    """Whether weights may be negative, and rows sum to anything: never after a softmax."""

    @property
    def place(self) -> str:
        """Which layer of which stack, in words."""
        return f"{self.stack} layer {self.layer}"

    @property
    def size(self) -> tuple[int, int]:
        """The number of queries m and of keys n."""
        return len(self.query_axis), len(self.key_axis)


@documented
class AttentionRecord(Attention):
    """One attention that a model executed: what its weights follow from, not the weights.

    What is optional is None without one, or if it is not known.

    Examples
    --------
    >>> import attnviz
    >>> record = attnviz.attend("the train left the station").record(5)
    >>> record.path
    'encoder.layer.5.attention.self'
    >>> record.query.shape, record.key.shape  # heads × tokens × numbers
    (torch.Size([12, 7, 32]), torch.Size([12, 7, 32]))
    >>> record.weights().shape  # derived, not stored
    torch.Size([12, 7, 7])
    """

    query: Tensor = doc("Q (H, m, d_k), after rotation.")
    key: Tensor = doc("K (G, n, d_k), after rotation.")
    value: Tensor = doc("V (G, n, d_v).")
    scale: float = doc("The factor on Q Kᵀ.")
    soft_cap: float | None = doc("The bound of the scaled scores.", default=None)
    capped_bias: Tensor | None = doc("(1 or H, m, n), added before the soft cap.", default=None)
    bias: Tensor | None = doc("(1 or H, m, n), added to the scores by position.", default=None)
    mask: Tensor | None = doc("(1 or H, m, n), added to the scores.", default=None)
    sinks: Tensor | None = doc("(H,) or (H, m), a score beside those of the keys.", default=None)
    input: Tensor | None = doc("X (m, d_model), the module's input.", default=None)
    key_input: Tensor | None = doc("(n, d_model), that of keys in cross-attention.", default=None)
    projection: Projection | None = doc("How the module makes Q, K, V and output.", default=None)
    rotation: tuple[Tensor, Tensor] | None = doc(
        "(cos, sin) of a rotary position embedding, (m, r) each: two equal halves.", default=None
    )
    through_interface: bool = doc(
        "Whether it was captured at transformers' interface, not among operators.", default=True
    )
    visible: MaskRule | None = doc("The mask as a rule, for a long text.", default=None)
    log_softmax: bool = doc(
        "Whether weights come from a log-softmax in the model's own precision.", default=False
    )

    # The field with the weights (H, m, n), where they do not follow from queries and keys.
    _stored: ClassVar[str | None] = None

    def __repr__(self) -> str:
        m, n = self.size
        size = f"{self.heads} heads, {m} queries × {n} keys"
        return f"{type(self).__name__}({self.place}, {size}, {self.path})"

    def __post_init__(self) -> None:
        """Check nothing: a record may be incomplete until a result holds it, which checks it."""

    def _rules(self) -> Rules:
        arrays, (m, n) = (self.query, self.key, self.value), self.size
        if self._stored is not None:
            H, weights = self.heads, getattr(self, self._stored)
            yield "a weight for each pair of labels", H > 0 and fits(weights, {H}, {m}, {n})
            are_values = self.value.dim() == 3 and self.value.shape[:2] == (H, n)
            yield "values for each head", are_values
            yield "queries and keys without features", not self.query.numel() + self.key.numel()
            return
        are_full = all(x.dim() == 3 and x.numel() and x.is_floating_point() for x in arrays)
        yield "queries, keys and values of three dimensions, none of them empty", are_full
        H, G = self.heads, self.key_heads
        yield "a query for each label of its rows", self.query.shape[1] == m
        is_of_keys = self.key.shape[:2] == self.value.shape[:2] == (G, n)
        yield "a key and a value for each label of its columns", is_of_keys
        yield "queries as wide as keys", self.query.shape[2] == self.key.shape[2]
        yield "as many query heads for each key head", H % G == 0
        yield "a scale that is a number", math.isfinite(self.scale)
        terms = (self.capped_bias, self.bias, self.mask)
        yield "score terms of its shape", all(fits(term, {1, H}, {m}, {n}) for term in terms)
        yield "sinks of its shape", fits(self.sinks, {H}) or fits(self.sinks, {H}, {m})
        yield "a rotation of its shape", all(fits(one, {m}, _ANY) for one in self.rotation or ())
        yield "a rule for each key", self.visible is None or fits(self.visible.keys, {n})

    def _number_rules(self) -> Rules:
        # Checked with files only: a module may cut its input into blocks of other lengths.
        m, n = self.size
        yield "inputs of its shape", fits(self.input, {m}, _ANY) and fits(self.key_input, {n}, _ANY)

    @property
    def finite(self) -> bool:
        """Whether all weights that are stored, or queries and keys, padding aside, are numbers."""
        if self._stored is not None:
            return bool(getattr(self, self._stored).isfinite().all())
        return all(
            bool(array[:, [not padding for padding in axis.padding]].isfinite().all())
            for array, axis in ((self.query, self.query_axis), (self.key, self.key_axis))
        )

    @property
    def heads(self) -> int:
        """The number of query heads H."""
        return self.query.shape[0]

    def expect_vectors(self, what: str) -> None:
        """Raise InputError if the user gave the weights; `what` needs more, as in "steps need"."""

    @property
    def kept(self) -> tuple[int, ...]:
        """The numbers of the heads, as those of a long text that were kept."""
        return tuple(range(self.heads))

    @property
    def key_heads(self) -> int:
        """The number of key and value heads G; fewer than H with grouped queries."""
        return self.key.shape[0]

    def at(self, rows: Tensor, columns: Tensor | slice | None = None) -> Self:
        """Return the attention of some queries (R,) to some keys (C,), by default the same ones.

        Indices on the CPU cost no wait for the device; `slice(None)` copies no key.
        """
        columns = rows if columns is None else columns
        query_axis, key_axis = self.query_axis.at(rows.tolist()), self.key_axis
        rows = rows.to(self.query.device)
        if isinstance(columns, Tensor):
            key_axis = key_axis.at(columns.tolist())
            columns = columns.to(self.query.device)

        def cut(term: Tensor | None) -> Tensor | None:
            return None if term is None else term[:, rows][..., columns]

        names = filter(None, ("capped_bias", "bias", self._stored))
        cells: dict[str, Any] = {name: cut(getattr(self, name)) for name in names}
        mask, sinks = cut(self.mask), self.sinks
        if (hidden := self._hidden(rows, columns)) is not None:
            low = torch.finfo(self.query.dtype).min
            mask = torch.zeros_like(hidden, dtype=self.query.dtype).masked_fill(hidden, low)[None]
        if sinks is not None and sinks.dim() == 2:
            sinks = sinks[:, rows]
        return replace(
            self,
            query_axis=query_axis,
            key_axis=key_axis,
            query=self.query[:, rows],
            key=self.key[:, columns],
            value=self.value[:, columns],
            mask=mask,
            sinks=sinks,
            input=None if self.input is None else self.input[rows],
            rotation=self.rotation and (self.rotation[0][rows], self.rotation[1][rows]),
            visible=None,
            **cells,
        )

    @exact_products()
    def scores(
        self,
        head: int | Tensor | None = None,
        rows: slice | Tensor | None = None,
        dtype: torch.dtype | None = None,
        columns: slice | Tensor = _ALL,
    ) -> Tensor:
        """Recompute what enters the softmax: cap(Q Kᵀ · scale + capped_bias) + bias + mask.

        Parameters
        ----------
        head : int, Tensor or None
            One head, or the numbers of several (h,); by default all.
        rows : slice, Tensor or None
            Some of the queries; by default all.
        dtype : torch.dtype or None
            The precision to compute in; by default float32 or wider.
        columns : slice or Tensor
            Some of the keys; by default all.

        Returns
        -------
        Tensor
            (m, n) for one head, else (H, m, n).
        """
        dtype = dtype or torch.promote_types(self.query.dtype, torch.float32)
        rows = _ALL if rows is None else rows
        shared = self.heads // self.key_heads
        Q, K = self.query[:, rows], self.key[:, columns]
        if head is None:
            Q = self.join_shared(Q)
        elif isinstance(head, Tensor):
            Q, K = Q[head], K[head // shared]
        else:
            Q, K = Q[head][None], K[head // shared][None]
        scores = scaled_scores(Q.to(dtype), K.to(dtype), self.scale)
        if head is None:
            scores = scores.view(self.heads, -1, K.shape[1])

        def add(term: Tensor | None) -> None:
            nonlocal scores
            if term is not None:
                term = term[:, rows][..., columns]
                if head is not None and len(term) > 1:
                    term = term[head].view(scores.shape)
                scores = scores + term.to(dtype)

        add(self.capped_bias)
        if self.soft_cap is not None:
            scores = soft_cap(scores, self.soft_cap)
        add(self.bias)
        add(self.mask)
        if (hidden := self._hidden(rows, columns)) is not None:
            scores.masked_fill_(hidden, torch.finfo(dtype).min)
        return scores if head is None or isinstance(head, Tensor) else scores[0]

    def readable(self) -> Tensor | None:
        """Return which keys each query may read in any head, (m, n); None where it is all."""
        readable = None if self.mask is None else _visible(self.mask).any(0)
        if (hidden := self._hidden(_ALL, _ALL)) is not None:
            readable = ~hidden if readable is None else readable & ~hidden
        return readable

    def _hidden(self, rows: slice | Tensor, columns: slice | Tensor) -> Tensor | None:
        """Return what the rule hides of some queries and keys, (R, C); None without a rule."""
        if self.visible is None:
            return None
        queries, keys = (
            some if isinstance(some, Tensor) else torch.arange(size, device=self.query.device)[some]
            for size, some in zip(self.size, (rows, columns), strict=True)
        )
        return self.visible.hidden_at(queries, keys)

    def join_shared(self, rows: Tensor) -> Tensor:
        """Join the rows (H, m, …) of the heads that read the same keys: (G, H / G · m, …)."""
        return rows.reshape(self.key_heads, -1, rows.shape[-1])

    def mix(self, weights: Tensor) -> Tensor:
        """Return A·V of each head, (H, m, d_v), in the precision of the weights (H, m, n)."""
        mixed = self.join_shared(weights) @ self.value.to(weights)
        return mixed.view(*self.query.shape[:2], -1)

    def weights(
        self,
        head: int | None = None,
        rows: slice | None = None,
        dtype: torch.dtype | None = None,
        scores: Tensor | None = None,
    ) -> Tensor:
        """Recompute the attention weights: the softmax of `scores` over the keys.

        Parameters and result are those of `scores`, which are computed where they are not given.
        The softmax is taken in float32 or wider, as models do; a `log_softmax` in the model's own
        `dtype`. With sinks a row sums to less than 1.
        """
        if self._stored is not None:
            stored: Tensor = getattr(self, self._stored)[_ALL if head is None else head]
            return stored[..., _ALL if rows is None else rows, :].to(dtype or stored.dtype)
        if scores is None:
            scores = self.scores(head, rows, dtype)
        if self.log_softmax and dtype == self.query.dtype:
            return torch.exp(scores - scores.logsumexp(-1, keepdim=True))
        wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
        if (sinks := self.sinks) is None:
            return softmax(wide).to(scores.dtype)
        if sinks.dim() == 2 and rows is not None:
            sinks = sinks[:, rows]
        heads = wide.view(wide.shape[:-2].numel(), *wide.shape[-2:])
        sinks = sinks if head is None else sinks[head : head + 1]
        return softmax_with_sink(heads, sinks.to(wide)).view(wide.shape).to(scores.dtype)


@documented
class Reference(Savable):
    """What the untouched model computed for one attention, in a separate run."""

    weights: Tensor = doc("(H, m, n), the result of the model's softmax.")
    scores: Tensor | None = doc("(H, m, n), its input, if it was captured.", default=None)
    head_output: Tensor | None = doc("(H, m, d_v), A·V of each head before W^O.", default=None)
    output: Tensor | None = doc("(m, d_model), after W^O.", default=None)


@documented
class GivenAttention(AttentionRecord):
    """The weights of one layer that the user gave, or the means of several calls of a module.

    Queries, keys and values have no features.
    """

    given: Tensor = doc("(H, m, n), on the CPU.", kw_only=True)
    _stored = "given"
    __repr__ = AttentionRecord.__repr__

    @classmethod
    def of(cls, weights: Tensor, layer: int, stack: str, axes: Sequence[Axis]) -> GivenAttention:
        """Return the attention of given weights (H, m, n) between the positions of two axes."""
        H, m, n = weights.shape
        queries, keys = (torch.empty(H, length, 0, device="cpu") for length in (m, n))
        return cls(
            path=f"given.{layer}",
            call=0,
            layer=layer,
            stack=stack,
            query_axis=axes[0],
            key_axis=axes[1],
            query=queries,
            key=keys,
            value=keys,
            scale=1.0,
            given=weights,
        )

    def expect_vectors(self, what: str) -> NoReturn:
        """Raise InputError: nobody gave queries and keys."""
        why = "were given by the user. Run the model: attend(text, model=…)."
        if not self.path.startswith("given."):
            why = "are means of several calls. Record these without mean=True."
        raise InputError(
            f"{what[0].upper()}{what[1:]} the queries and keys of a model, but these weights {why}"
        )

    def scores(self, *args: Any, **keywords: Any) -> Tensor:
        """Raise InputError: scores follow from queries and keys."""
        self.expect_vectors("scores need")


def row_shares(weights: Tensor) -> Tensor:
    """Return the share of each signed weight in the sizes of its row, (…, n); 0 in rows of 0."""
    sizes = weights.abs()
    return sizes / sizes.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)


@documented
class LinearAttention(AttentionRecord):
    """One layer that mixes values by a matrix M of each head, without a softmax: y = M v.

    Its weights are signed, and a row need not sum to 1. Queries and keys have no features. Of a
    long text the maps are pooled: weights are summed over columns, with their signs, and averaged
    over rows; values are averaged.
    """

    matrix: Tensor = doc("M, (H, m, n), in float32 or wider.", kw_only=True)
    module: str = doc("The name of the module's class.", kw_only=True)
    function: str = doc("The function of the model whose result is M v.", kw_only=True)
    arguments: dict[str, Tensor] = doc(
        "The other arguments of that function that depend on the text, by name: gates, decays, "
        "queries and keys, as it takes them; none of a long text.",
        kw_only=True,
    )
    head_dims: dict[str, int] = doc(
        "Along which dimension of an argument its heads lie, by name, unless they share it.",
        default_factory=dict,
        kw_only=True,
    )
    text: Axis | None = doc("The tokens of a long text.", default=None, kw_only=True)
    cell: int = doc("How many tokens each position joins.", default=1, kw_only=True)
    signed = True
    _stored = "matrix"
    __repr__ = AttentionRecord.__repr__

    def argument_of(self, name: str, head: int) -> Tensor | None:
        """Return what one head takes of an argument, (m, …), a row for each position.

        None if it has no numbers for each position, or another dimension may be the positions.
        """
        tensor, dim = self.arguments[name], self.head_dims.get(name)
        if dim is not None:
            tensor = tensor.select(dim, head // (self.heads // tensor.shape[dim]))
        positions = [d for d, size in enumerate(tensor.shape) if size == len(self.query_axis)]
        if len(positions) != 1:
            return None
        return tensor.movedim(positions[0], 0).reshape(len(self.query_axis), -1)

    def scores(self, *args: Any, **keywords: Any) -> Tensor:
        """Raise InputError: there is no softmax, and so there are no scores."""
        raise InputError(
            f"Scores need a softmax, but {self.module} has none: its weights are those of "
            f"{self.function}. Use weights()."
        )


@documented
class LinearReference(Reference):
    """What the untouched model computed for a linear attention, in a separate run.

    `weights` (H, m, c) are the mixture of `probes` in float32, `head_output` (H, m, d_v) is its
    result.
    """

    probes: Tensor = doc("(n, c), random columns.", kw_only=True)
    rounding: Tensor = doc(
        "(H, m, d_v), how far the function in the model's precision is from that in float32.",
        kw_only=True,
    )
    reproduced: bool = doc("Whether it gives the result again, bit by bit.", kw_only=True)
    canaries: Mapping[str, Tensor] = doc(
        "(H, m, d_v) each, the result with one argument 1 % off, by its name.", kw_only=True
    )


def _visible(mask: Tensor) -> Tensor:
    """Return which cells of a mask are visible; it is additive, or True for those."""
    return mask if mask.dtype == torch.bool else mask > HIDDEN
