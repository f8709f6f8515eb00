"""Everything that determines the scores of an attention, and parts of these scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from attnviz.formula.attention import repeat_heads
from attnviz.results import AttentionRecord, MaskRule

NEVER = -1e30  # used for -∞ where 0 · -∞ would be NaN
LOG2_E = 1.4426950408889634
ALL = slice(None)


@dataclass(frozen=True, eq=False)
class ScoreSpec:
    """One attention before its softmax: cap(Q Kᵀ · scale + capped_bias) + bias, where visible."""

    query: Tensor  # (H, m, d)
    key: Tensor  # (G, n, d), each for H / G heads
    scale: float  # the factor on Q Kᵀ
    visible: MaskRule = field(default_factory=MaskRule)  # which keys each query may read
    soft_cap: float | None = None  # the bound of the scaled scores
    capped_bias: Tensor | None = None  # (1 or H, m, n), added before the cap
    bias: Tensor | None = None  # and after it
    sinks: Tensor | None = None  # (H,) or (H, m), a score beside those of the keys

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
        names = "query", "key", "scale", "soft_cap", "capped_bias", "sinks"
        terms: dict[str, Any] = {name: getattr(record, name) for name in names}
        return cls(visible=visible, bias=bias, **terms)

    @property
    def shape(self) -> tuple[int, int, int]:
        """The numbers of heads, queries and keys: H, m, n."""
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

    def columns(self, rows: slice) -> slice:
        """Return the keys that some rows may read: at least one, which may be hidden."""
        n = self.shape[2]
        first, stop = self.visible.columns(rows, n)
        first = min(first, n - 1)
        return slice(first, min(n, max(stop, first + 1)))

    def select_heads(self, heads: Sequence[int]) -> ScoreSpec:
        """Return the attention of some of the heads; each has a key head for itself."""
        index: slice | list[int] = list(heads)
        if isinstance(heads, range) and heads.step == 1:
            index = slice(heads.start, heads.stop)  # a view

        def select(term: Tensor | None) -> Tensor | None:
            return term if term is None or len(term) == 1 else term[index]

        return replace(
            self,
            query=self.query[index],
            key=self.of_heads(self.key, heads),
            capped_bias=select(self.capped_bias),
            bias=select(self.bias),
            sinks=None if self.sinks is None else self.sinks[index],
        )

    def of_heads(self, tensor: Tensor, heads: Sequence[int]) -> Tensor:
        """Return the keys or values (G, n, d) of some query heads, (heads, n, d)."""
        shared = len(self.query) // len(self.key)
        if len(heads) == 1:
            return tensor[heads[0] // shared :][:1]  # a view
        return tensor[[head // shared for head in heads]]

    def add_terms(
        self, products: Tensor, rows: slice, columns: slice, heads: slice = ALL, unit: float = 1
    ) -> None:
        """Turn a tile of q · scale · kᵀ, (heads, rows, columns), into scores · unit in place.

        If the spec is `plain`, the products contain the factor `unit` already.
        """

        def add(term: Tensor | None, factor: float) -> None:
            if term is not None:
                tile = (term if len(term) == 1 else term[heads])[:, rows, columns]
                products.add_(tile, alpha=factor)

        if not self.plain:
            add(self.capped_bias, 1)
            self.cap(products)
            if unit != 1:
                products.mul_(unit)
        add(self.bias, unit)

    def cap(self, scores: Tensor) -> Tensor:
        """Bound scores by the soft cap, in place, and return them."""
        if self.soft_cap is not None:
            scores.div_(self.soft_cap).tanh_().mul_(self.soft_cap)
        return scores

    def scores(self, rows: slice, columns: slice, out: Tensor) -> Tensor:
        """Fill `out` (H, rows, columns) with a part of the scores, NEVER where it is hidden."""
        heads, _, n = self.shape
        K = repeat_heads(self.key[:, columns].float(), heads)
        torch.matmul(self.query[:, rows].float() * self.scale, K.mT, out=out)
        self.add_terms(out, rows, columns)
        if self.bias is not None:
            out.clamp_(min=NEVER)
        rule, start = self.visible, columns.start
        if rule.before is None and rule.keys is None and rule.after is not None:
            # Only keys behind the first query can be hidden.
            start = max(start, min(columns.stop, rows.start + rule.offset + rule.after + 1))
        if start < columns.stop and rule.hides(rows, slice(start, columns.stop), n):
            i = torch.arange(rows.start, rows.stop, device=out.device)
            j = torch.arange(start, columns.stop, device=out.device)
            out[..., start - columns.start :].masked_fill_(rule.hidden_at(i, j), NEVER)
        return out
