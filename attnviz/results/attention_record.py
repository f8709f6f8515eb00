"""One attention: what it was computed from, and what the model made of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attnviz.formula.attention import (
    repeat_heads,
    scaled_scores,
    soft_cap,
    softmax,
    softmax_with_sink,
)
from attnviz.results.axis import Axis
from attnviz.results.base import Rules, Savable, fits
from attnviz.results.mask_rule import MaskRule
from attnviz.results.projection import Projection


@dataclass(frozen=True, eq=False)
class AttentionRecord(Savable):
    """One attention that a model executed: what its weights follow from, not the weights.

    Attributes
    ----------
    path : the module's name in `model.named_modules()`.
    call : 0, 1, … where one module runs several times (weights shared between layers).
    layer : counted from 0 within the stack.
    stack : "encoder", "decoder", or "cross" for the decoder's attention to the encoder.
    query_axis, key_axis : what the m queries and n keys are.
    query, key, value : Q (H, m, d_k), K (G, n, d_k), V (G, n, d_v), after rotation.
    scale : the factor on Q Kᵀ.
    soft_cap : the bound of the scaled scores, or None.
    capped_bias : (1 or H, m, n), added to the scaled scores before the soft cap; None without one.
    bias : (1 or H, m, n), added to the scores by position; None without one.
    mask : (1 or H, m, n), added to the scores; None where every key is visible.
    visible : the same as a rule, where the text is too long for a mask; else None.
    sinks : (H,), or (H, m) where each query has its own: a score of each head beside those of its
        keys; None without one.
    input : X (m, d_model), what entered the module; None if it was not seen.
    key_input : (n, d_model), what the keys and values were made of in cross-attention; else None.
    projection : how the module makes Q, K, V and its output; None where attnviz does not know.
    rotation : (cos, sin), each (m, r), of a rotary position embedding, one half of the angles after
        the other (equal) half; None without one.
    through_interface : whether the model handed it to transformers' attention interface; else it
        was found among the operators that torch executed.
    """

    path: str
    call: int
    layer: int
    stack: str
    query_axis: Axis
    key_axis: Axis
    query: Tensor
    key: Tensor
    value: Tensor
    scale: float
    soft_cap: float | None = None
    capped_bias: Tensor | None = None
    bias: Tensor | None = None
    mask: Tensor | None = None
    sinks: Tensor | None = None
    input: Tensor | None = None
    key_input: Tensor | None = None
    projection: Projection | None = None
    rotation: tuple[Tensor, Tensor] | None = None
    through_interface: bool = True
    visible: MaskRule | None = None

    def __repr__(self) -> str:
        """Say what it holds, without the tensors."""
        return (
            f"AttentionRecord({self.place}, {self.heads} heads, {len(self.query_axis)} queries × "
            f"{len(self.key_axis)} keys, {self.path})"
        )

    def __post_init__(self) -> None:
        """Check nothing: a record may be incomplete until a result holds it, which checks it."""

    def _rules(self) -> Rules:
        arrays = (self.query, self.key, self.value)
        yield (
            "queries, keys and values of three dimensions, none of them empty",
            all(
                array.dim() == 3 and array.numel() and array.is_floating_point() for array in arrays
            ),
        )
        (H, G), m, n = (self.heads, self.key_heads), len(self.query_axis), len(self.key_axis)
        yield "a query for each label of its rows", self.query.shape[1] == m
        yield (
            "a key and a value for each label of its columns",
            self.key.shape[:2] == self.value.shape[:2] == (G, n),
        )
        yield "queries as wide as keys", self.query.shape[2] == self.key.shape[2]
        yield "as many query heads for each key head", H % G == 0
        yield "a scale that is a number", math.isfinite(self.scale)
        terms = (self.capped_bias, self.bias, self.mask)
        yield "score terms of its shape", all(fits(term, {1, H}, {m}, {n}) for term in terms)
        yield "sinks of its shape", fits(self.sinks, {H}) or fits(self.sinks, {H}, {m})
        yield "inputs of its shape", _has(self.input, m) and _has(self.key_input, n)
        yield "a rotation of its shape", all(_has(angle, m) for angle in self.rotation or ())
        keys = None if self.visible is None else self.visible.keys
        yield "a rule for each key", fits(keys, {n})

    @property
    def finite(self) -> bool:
        """Whether all queries and keys are numbers, padding aside."""
        return all(
            bool(array[:, [not padding for padding in axis.padding]].isfinite().all())
            for array, axis in ((self.query, self.query_axis), (self.key, self.key_axis))
        )

    @property
    def place(self) -> str:
        """Which layer of which stack, in words."""
        return f"{self.stack} layer {self.layer}"

    @property
    def heads(self) -> int:
        """The number of query heads H."""
        return self.query.shape[0]

    @property
    def key_heads(self) -> int:
        """The number of key and value heads G; fewer than H with grouped queries."""
        return self.key.shape[0]

    def at(self, rows: Tensor, columns: Tensor | None = None) -> AttentionRecord:
        """Return the same attention of some queries, with some keys: the same positions by default.

        Parameters
        ----------
        rows : (R,), which queries. columns : (C,), which keys.
        """
        columns = rows if columns is None else columns

        def cut(term: Tensor | None) -> Tensor | None:
            return None if term is None else term[:, rows][..., columns]

        hidden = cut(self.mask)
        if self.visible is not None:
            unread = self.visible.hidden_at(rows, columns)
            low = torch.finfo(self.query.dtype).min
            hidden = torch.zeros_like(unread, dtype=self.query.dtype).masked_fill(unread, low)[None]
        return replace(
            self,
            query_axis=self.query_axis.at(rows.tolist()),
            key_axis=self.key_axis.at(columns.tolist()),
            query=self.query[:, rows],
            key=self.key[:, columns],
            value=self.value[:, columns],
            capped_bias=cut(self.capped_bias),
            bias=cut(self.bias),
            mask=hidden,
            sinks=self.sinks
            if self.sinks is None or self.sinks.dim() == 1
            else self.sinks[:, rows],
            input=None if self.input is None else self.input[rows],
            rotation=None
            if self.rotation is None
            else (self.rotation[0][rows], self.rotation[1][rows]),
            visible=None,
        )

    def scores(
        self,
        head: int | None = None,
        rows: slice | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Recompute what enters the softmax: cap(Q Kᵀ · scale + capped_bias) + bias + mask.

        Parameters
        ----------
        head : one head, or None for all.
        rows : the queries wanted, or None for all.
        dtype : in which to compute; by default float32 or wider.

        Returns
        -------
        (m, n) for one head, else (H, m, n).
        """
        heads = slice(None) if head is None else slice(head, head + 1)
        rows = slice(None) if rows is None else rows
        dtype = dtype or torch.promote_types(self.query.dtype, torch.float32)
        Q = self.query[heads, rows].to(dtype)
        if head is None:
            K = repeat_heads(self.key, self.heads).to(dtype)
        else:
            K = self.key[[head // (self.heads // self.key_heads)]].to(dtype)
        scores = scaled_scores(Q, K, self.scale)

        def add(term: Tensor | None) -> None:
            nonlocal scores
            if term is not None:
                scores = scores + (term if len(term) == 1 else term[heads])[:, rows].to(dtype)

        add(self.capped_bias)
        if self.soft_cap is not None:
            scores = soft_cap(scores, self.soft_cap)
        add(self.bias)
        add(self.mask)
        if self.visible is not None:
            m, n = len(self.query_axis), K.shape[-2]
            i, j = (torch.arange(size, device=scores.device) for size in (m, n))
            hidden = self.visible.hidden_at(i[rows], j)
            scores = scores.masked_fill(hidden, torch.finfo(dtype).min)
        return scores if head is None else scores[0]

    def weights(
        self,
        head: int | None = None,
        rows: slice | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Recompute the attention weights: the softmax of `scores` over the keys.

        Parameters and result are those of `scores`. The softmax is taken in float32 or wider, as
        models do. With sinks a row sums to less than 1.
        """
        scores = self.scores(head, rows, dtype)
        wide = scores.to(torch.promote_types(scores.dtype, torch.float32))
        if self.sinks is None:
            return softmax(wide).to(scores.dtype)
        sinks = self.sinks
        if sinks.dim() == 2 and rows is not None:
            sinks = sinks[:, rows]
        if head is None:
            return softmax_with_sink(wide, sinks.to(wide)).to(scores.dtype)
        sink = sinks[head : head + 1].to(wide)
        return softmax_with_sink(wide[None], sink)[0].to(scores.dtype)


@dataclass(frozen=True, eq=False)
class Reference(Savable):
    """What the untouched model computed in a run of its own, for one attention.

    weights : (H, m, n), what the model's softmax gave.
    scores : (H, m, n), what entered the model's softmax, or None if it was not seen.
    head_output : (H, m, d_v), A·V of each head before W^O, or None.
    output : (m, d_model), after W^O, or None.
    """

    weights: Tensor
    scores: Tensor | None = None
    head_output: Tensor | None = None
    output: Tensor | None = None


def _has(tensor: Tensor | None, positions: int) -> bool:
    return tensor is None or (tensor.dim() == 2 and len(tensor) == positions)
