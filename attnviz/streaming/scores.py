"""What the scores of an attention follow from, and its weights in pieces: rows, pairs, crops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from attnviz.formula.attention import soft_cap
from attnviz.results import AttentionRecord, MaskRule

NEVER = -1e30  # stands for -∞, so that 0 · NEVER is 0
LOG2_E = 1.4426950408889634
_ROWS = 4096  # of which pairs are taken at once


@dataclass(frozen=True, eq=False)
class Scoring:
    """One attention before its softmax: cap(Q Kᵀ · scale + capped_bias) + bias, where visible.

    Attributes
    ----------
    query : (H, m, d). key : (G, n, d), each for H / G heads.
    scale : the factor on Q Kᵀ. soft_cap : the bound of the scaled scores, or None.
    capped_bias, bias : (1 or H, m, n), added before and after the cap; None without one.
    sinks : (H,) or (H, m), a score beside those of the keys; None without one.
    visible : which keys each query may read.
    """

    query: Tensor
    key: Tensor
    scale: float
    visible: MaskRule = field(default_factory=MaskRule)
    soft_cap: float | None = None
    capped_bias: Tensor | None = None
    bias: Tensor | None = None
    sinks: Tensor | None = None

    @classmethod
    def of(cls, record: AttentionRecord) -> Scoring:
        """Return what a record's scores follow from; a mask that is a rule becomes one."""
        bias = record.bias
        visible = record.visible or MaskRule(offset=len(record.key_axis) - len(record.query_axis))
        if record.mask is not None:
            rule = MaskRule.of(record.mask[0]) if len(record.mask) == 1 else None
            visible = rule or visible
            if rule is None:
                mask = record.mask.float().clamp(min=NEVER)
                bias = mask if bias is None else bias + mask
        return cls(
            record.query, record.key, record.scale, visible, record.soft_cap,
            record.capped_bias, bias, record.sinks,
        )  # fmt: skip

    @property
    def shape(self) -> tuple[int, int, int]:
        """How many heads, queries and keys there are: H, m, n."""
        return self.query.shape[0], self.query.shape[1], self.key.shape[1]

    @property
    def plain(self) -> bool:
        """Whether scale and log-sum-exp can be folded into the product: nothing bends it."""
        return self.soft_cap is None and self.capped_bias is None

    @property
    def sinks_by_row(self) -> Tensor | None:
        """The sinks as (H, m or 1), float32."""
        if self.sinks is None:
            return None
        return (self.sinks if self.sinks.dim() == 2 else self.sinks[:, None]).float()

    def of_heads(self, heads: Sequence[int]) -> Scoring:
        """Return the attention of some of the heads, each with keys of its own."""
        at = list(heads)

        def some(term: Tensor | None) -> Tensor | None:
            return term if term is None or len(term) == 1 else term[at]

        shared = len(self.query) // len(self.key)
        return replace(
            self,
            query=self.query[at],
            key=self.key[[head // shared for head in at]],
            capped_bias=some(self.capped_bias),
            bias=some(self.bias),
            sinks=None if self.sinks is None else self.sinks[at],
        )

    def rows(self, rows: slice) -> Scoring:
        """Return the attention of some of the queries."""

        def cut(term: Tensor | None) -> Tensor | None:
            return None if term is None else term[:, rows]

        sinks = self.sinks if self.sinks is None or self.sinks.dim() == 1 else self.sinks[:, rows]
        return replace(
            self,
            query=self.query[:, rows],
            visible=self.visible.rows(rows),
            capped_bias=cut(self.capped_bias),
            bias=cut(self.bias),
            sinks=sinks,
        )

    def read_by(self, heads: slice, each: Tensor) -> Tensor:
        """Return what some heads read of keys or values (G, n, d), (heads or 1, n, d)."""
        shared = self.query.shape[0] // self.key.shape[0]
        first, last = heads.start // shared, (heads.stop - 1) // shared
        if first == last:
            return each[first : first + 1]
        return each.repeat_interleave(shared, dim=0)[heads] if shared > 1 else each[heads]

    def bend(self, products: Tensor, heads: slice, rows: slice, columns: slice) -> None:
        """Turn a part of q · scale · kᵀ, (heads, rows, columns), into scores · log₂e in place.

        Where the scoring is `plain`, log₂e is in the product already. Keys from n on stay as they
        are.
        """

        def add(term: Tensor | None, factor: float) -> None:
            if term is not None:
                own = (term if len(term) == 1 else term[heads])[:, rows, columns]
                products[..., : own.shape[-1]].add_(own, alpha=factor)

        if not self.plain:
            add(self.capped_bias, 1)
            if self.soft_cap is not None:
                products.div_(self.soft_cap).tanh_().mul_(self.soft_cap)
            products.mul_(LOG2_E)
        add(self.bias, LOG2_E)

    def scores(self, rows: slice, columns: slice) -> Tensor:
        """Return the scores of a part of the map, (H, rows, columns), NEVER where it is hidden."""
        H, _, n = self.shape
        K = self.key[:, columns].float().repeat_interleave(H // self.key.shape[0], dim=0)
        scores = self.query[:, rows].float() @ K.mT * self.scale
        scores = self._bent(scores, lambda term: term[:, rows, columns])
        i = torch.arange(rows.start, rows.stop, device=scores.device)[:, None]
        distance = (
            i
            + self.visible.offset
            - torch.arange(columns.start, columns.stop, device=scores.device)
        )
        return scores.masked_fill(self.visible.hidden(distance, columns, n), NEVER)

    def pairs(self, keys: Tensor) -> Tensor:
        """Return the score of each query with one key, (H, m), NEVER where it is hidden.

        keys : (m,), which key; outside of 0 … n - 1 is hidden.
        """
        H, m, _ = self.shape
        parts = [
            self.listed(
                slice(0, H), slice(at, min(at + _ROWS, m)), keys[None, at : at + _ROWS, None]
            )
            for at in range(0, m, _ROWS)
        ]
        return torch.cat(parts, dim=1)[..., 0]

    def listed(self, heads: slice, rows: slice, keys: Tensor) -> Tensor:
        """Return the scores of some queries with some keys of each, (heads, rows, c).

        keys : (heads or 1, rows, c), which; NEVER where outside of 0 … n - 1, as where hidden.
        """
        H, _, n = self.shape
        Q = self.query[heads, rows].float() * self.scale
        at = keys.clamp(0, n - 1).expand(len(Q), -1, -1)
        K = self.key.new_empty(len(Q), at[0].numel(), Q.shape[-1])
        for i, head in enumerate(range(heads.start, heads.stop)):
            of_head = self.key[head // (H // len(self.key))]
            torch.index_select(of_head, 0, at[i].flatten(), out=K[i])
        products = Q[:, :, None] @ K.view(*at.shape, -1).float().mT

        def part(term: Tensor) -> Tensor:
            own = (term if len(term) == 1 else term[heads])[:, rows]
            return own.expand(len(Q), -1, -1).gather(2, at)

        scores = self._bent(products[:, :, 0], part)
        row = torch.arange(rows.start, rows.stop, device=keys.device)[:, None]
        rule = replace(self.visible, keys=None)
        hidden = rule.hidden(row + self.visible.offset - keys, slice(0, 0), 0)
        hidden |= (keys < 0) | (keys >= n)
        if self.visible.keys is not None:
            hidden = hidden | ~self.visible.keys.to(keys.device)[at]
        return scores.masked_fill(hidden, NEVER)

    def _bent(self, scores: Tensor, part: Callable[[Tensor], Tensor]) -> Tensor:
        """Add what enters between the product and the softmax."""
        if self.capped_bias is not None:
            scores = scores + part(self.capped_bias)
        if self.soft_cap is not None:
            scores = soft_cap(scores, self.soft_cap)
        return scores if self.bias is None else scores + part(self.bias)
