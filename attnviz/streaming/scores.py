"""Everything that determines the scores of an attention, and parts of these scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from attnviz.formula.attention import soft_cap
from attnviz.results import AttentionRecord, MaskRule

NEVER = -1e30  # in the place of -∞, so that 0 · NEVER is 0
LOG2_E = 1.4426950408889634
_ROWS = 4096  # whose pairs are computed at once


@dataclass(frozen=True, eq=False)
class ScoreSpec:
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
    def of(cls, record: AttentionRecord) -> ScoreSpec:
        """Return the spec of a record; a mask that follows a rule becomes a `MaskRule`."""
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
        """Whether the scores are the scaled product, with at most a bias added after it."""
        return self.soft_cap is None and self.capped_bias is None

    @property
    def sinks_by_row(self) -> Tensor | None:
        """The sinks as (H, m or 1), float32."""
        if self.sinks is None:
            return None
        return (self.sinks if self.sinks.dim() == 2 else self.sinks[:, None]).float()

    def select_heads(self, heads: Sequence[int]) -> ScoreSpec:
        """Return the attention of some of the heads, each with keys of its own."""
        index = list(heads)

        def select(term: Tensor | None) -> Tensor | None:
            return term if term is None or len(term) == 1 else term[index]

        shared = len(self.query) // len(self.key)
        return replace(
            self,
            query=self.query[index],
            key=self.key[[head // shared for head in index]],
            capped_bias=select(self.capped_bias),
            bias=select(self.bias),
            sinks=None if self.sinks is None else self.sinks[index],
        )

    def rows(self, rows: slice) -> ScoreSpec:
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

    def expand_shared(self, heads: slice, tensor: Tensor) -> Tensor:
        """Return the keys or values (G, n, d) of some heads, (heads or 1, n, d)."""
        shared = self.query.shape[0] // self.key.shape[0]
        first, last = heads.start // shared, (heads.stop - 1) // shared
        if first == last:
            return tensor[first : first + 1]
        return tensor.repeat_interleave(shared, dim=0)[heads] if shared > 1 else tensor[heads]

    def add_terms(self, products: Tensor, heads: slice, rows: slice, columns: slice) -> None:
        """Turn a tile of q · scale · kᵀ, (heads, rows, columns), into scores · log₂e in place.

        If the spec is `plain`, log₂e is in the product already. Keys from n on do not change.
        """

        def add(term: Tensor | None, factor: float) -> None:
            if term is not None:
                tile = (term if len(term) == 1 else term[heads])[:, rows, columns]
                products[..., : tile.shape[-1]].add_(tile, alpha=factor)

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
        scores = self._with_terms(scores, lambda term: term[:, rows, columns])
        i = torch.arange(rows.start, rows.stop, device=scores.device)[:, None]
        distance = (
            i
            + self.visible.offset
            - torch.arange(columns.start, columns.stop, device=scores.device)
        )
        return scores.masked_fill(self.visible.hidden(distance, columns, n), NEVER)

    def pairs(self, keys: Tensor) -> Tensor:
        """Return the score of each query with one key, (H, m), NEVER where it is hidden.

        keys : (m,), which key; outside of 0 … n - 1 it is hidden.
        """
        H, m, _ = self.shape
        scores = [
            self.scores_of(
                slice(0, H),
                slice(start, min(start + _ROWS, m)),
                keys[None, start : start + _ROWS, None],
            )
            for start in range(0, m, _ROWS)
        ]
        return torch.cat(scores, dim=1)[..., 0]

    def scores_of(self, heads: slice, rows: slice, keys: Tensor) -> Tensor:
        """Return the scores of some queries with some keys of each, (heads, rows, c).

        keys : (heads or 1, rows, c), which keys; outside of 0 … n - 1 the score is NEVER.
        """
        H, _, n = self.shape
        Q = self.query[heads, rows].float() * self.scale
        index = keys.clamp(0, n - 1).expand(len(Q), -1, -1)
        K = self.key.new_empty(len(Q), index[0].numel(), Q.shape[-1])
        for i, head in enumerate(range(heads.start, heads.stop)):
            head_keys = self.key[head // (H // len(self.key))]
            torch.index_select(head_keys, 0, index[i].flatten(), out=K[i])
        products = Q[:, :, None] @ K.view(*index.shape, -1).float().mT

        def select(term: Tensor) -> Tensor:
            row_terms = (term if len(term) == 1 else term[heads])[:, rows]
            return row_terms.expand(len(Q), -1, -1).gather(2, index)

        scores = self._with_terms(products[:, :, 0], select)
        row = torch.arange(rows.start, rows.stop, device=keys.device)[:, None]
        rule = replace(self.visible, keys=None)
        hidden = rule.hidden(row + self.visible.offset - keys, slice(0, 0), 0)
        hidden |= (keys < 0) | (keys >= n)
        if self.visible.keys is not None:
            hidden = hidden | ~self.visible.keys.to(keys.device)[index]
        return scores.masked_fill(hidden, NEVER)

    def _with_terms(self, scores: Tensor, select: Callable[[Tensor], Tensor]) -> Tensor:
        """Add the terms between the product and the softmax; `select` gives theirs."""
        if self.capped_bias is not None:
            scores = scores + select(self.capped_bias)
        if self.soft_cap is not None:
            scores = soft_cap(scores, self.soft_cap)
        return scores if self.bias is None else scores + select(self.bias)
