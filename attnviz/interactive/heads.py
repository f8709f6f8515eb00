"""What a page can hold of one head: its map, or the queries and keys that its map follows from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from attnviz.interactive.quantize import Codes
from attnviz.results import AttentionRecord, MaskRule

_ROWS = 2**22  # weights that are held at once while an error is measured
_SAMPLED = 8  # blocks of rows of a long text of which it is measured


@dataclass(frozen=True, eq=False)
class Head:
    """One head of an attention, without padding."""

    record: AttentionRecord
    head: int

    @property
    def cells(self) -> int:
        """How many weights it has."""
        return len(self.record.query_axis) * len(self.record.key_axis)

    @cached_property
    def weights(self) -> Tensor:
        """The whole map, (m, n), float64."""
        return self.record.weights(self.head, dtype=torch.float64).cpu()

    @cached_property
    def _maps(self) -> dict[int, Codes]:
        return {}  # of each head by itself: what is cached for all outlives the page

    def map(self, levels: int) -> Codes:
        """The map in so many levels."""
        if levels not in self._maps:
            self._maps[levels] = Codes.of_weights(self.weights, levels)
        return self._maps[levels]

    @cached_property
    def query(self) -> Codes:
        """Its queries, (m, d)."""
        return Codes.of_vectors(self.record.query[self.head].cpu())

    @cached_property
    def key(self) -> Codes:
        """Its keys, (n, d)."""
        return Codes.of_vectors(self.record.key[self.key_head].cpu())

    @property
    def key_head(self) -> int:
        """The key head that it reads."""
        return self.head // self.sharing

    @property
    def sharing(self) -> int:
        """How many heads read the same keys."""
        return self.record.heads // self.record.key_heads

    @property
    def weight_of_vectors(self) -> int:
        """The bytes of its queries, and of its share of the keys."""
        return self.query.size + self.key.size // self.sharing

    @property
    def vectors_are_less(self) -> bool:
        """Whether queries and keys are fewer than weights, each at about what it takes."""
        both = self.record.query.shape[-1] * sum(
            map(len, (self.record.query_axis, self.record.key_axis))
        )
        return both * 1.5 < self.cells

    @property
    def follows(self) -> bool:
        """Whether weights follow from queries, keys and the rule: no table is added to scores."""
        return not self.rule["added"]

    @cached_property
    def rule(self) -> dict[str, Any]:
        """What weights follow from beside queries and keys.

        "added" says that scores have a table added which is no such rule: position biases, masks.
        """
        record = self.record
        visible = record.visible or MaskRule(offset=len(record.key_axis) - len(record.query_axis))
        tables = (record.bias, record.capped_bias)  # zeros in a generation, whose steps are joined
        added = any(table is not None and bool(table.any()) for table in tables)
        if record.mask is not None:
            found = MaskRule.of(record.mask[self.head if len(record.mask) > 1 else 0])
            visible, added = found or visible, added or found is None
        sinks, m, n = record.sinks, len(record.query_axis), len(record.key_axis)
        if sinks is None:  # a row without a key is even in a model, and all zeros by the rule
            device = record.query.device
            added = added or bool(visible.empty(m, n, device).any())
        hidden = [] if visible.keys is None else (~visible.keys).nonzero().flatten().tolist()
        return {
            "scale": record.scale,
            "softCap": record.soft_cap,
            "sink": None if sinks is None else sinks[self.head].tolist(),
            "before": visible.before,
            "after": visible.after,
            "offset": visible.offset,
            "hidden": hidden,
            "added": added,
        }

    @cached_property
    def error_of_vectors(self) -> float:
        """The largest error of weights that are computed from the codes of queries and keys.

        Of a long text, in some blocks of rows.
        """
        coded = replace(
            self.record,
            query=self.query.values[None],
            key=self.key.values[None],
            bias=self._own(self.record.bias),
            capped_bias=self._own(self.record.capped_bias),
            mask=self._own(self.record.mask),
            sinks=None if (sinks := self.record.sinks) is None else sinks[[self.head]].cpu(),
        )
        worst = 0.0
        for rows in self._blocks():
            had = self.record.weights(self.head, rows, torch.float64).cpu()
            worst = max(
                worst, float((coded.weights(0, rows, torch.float64).cpu() - had).abs().max())
            )
        return worst

    @property
    def sampled(self) -> bool:
        """Whether that error is measured in some rows only."""
        return self.cells > _ROWS * _SAMPLED

    def error_of_map(self, levels: int) -> float:
        """The largest error of weights in so many levels."""
        return float((self.map(levels).values - self.weights).abs().max())

    def _own(self, term: Tensor | None) -> Tensor | None:
        """Return what is added to the scores of this head, (1, m, n)."""
        if term is None:
            return None
        return term[self.head if len(term) > 1 else 0][None].cpu()

    def _blocks(self) -> Iterator[slice]:
        """Yield parts of the rows: all, or some of a long text."""
        m = len(self.record.query_axis)
        step = max(1, _ROWS // len(self.record.key_axis))
        starts = list(range(0, m, step))
        for at in range(0, len(starts), -(-len(starts) // _SAMPLED) if self.sampled else 1):
            yield slice(starts[at], min(m, starts[at] + step))
