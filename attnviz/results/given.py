"""Weights that the user gave: an attention without the queries and keys that it follows from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attnviz.errors import InputError
from attnviz.results.attention_record import AttentionRecord
from attnviz.results.axis import Axis
from attnviz.results.base import Rules, fits


def _without_vectors(what: str) -> InputError:
    return InputError(
        f"{what[0].upper()}{what[1:]} the queries and keys of a model, but these weights were "
        "given by the user. Run the model: attend(text, model=…)."
    )


def expect_vectors(record: AttentionRecord, what: str) -> None:
    """Raise InputError for weights that the user gave; `what` needs more, as in "steps need"."""
    if isinstance(record, GivenAttention):
        raise _without_vectors(what)


@dataclass(frozen=True, eq=False)
class GivenAttention(AttentionRecord):
    """The weights of one layer that the user gave.

    given : (H, m, n), on the CPU. Queries, keys and values have no features.
    """

    given: Tensor = field(kw_only=True)

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

    def __repr__(self) -> str:
        """Return a summary without the tensors."""
        H, m, n = self.given.shape
        return f"GivenAttention({self.place}, {H} heads, {m} queries × {n} keys)"

    def _rules(self) -> Rules:
        H, m, n = self.heads, len(self.query_axis), len(self.key_axis)
        yield "a weight for each pair of labels", H > 0 and fits(self.given, {H}, {m}, {n})
        yield "queries and keys without features", not self.query.numel() + self.key.numel()

    @property
    def finite(self) -> bool:
        """Whether all weights are numbers."""
        return bool(self.given.isfinite().all())

    def scores(
        self,
        head: int | None = None,
        rows: slice | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Raise InputError: scores follow from queries and keys, which nobody gave."""
        raise _without_vectors("scores need")

    def weights(
        self,
        head: int | None = None,
        rows: slice | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Return the weights as they were given: (m, n) for one head, else (H, m, n)."""
        weights = self.given if head is None else self.given[head]
        return weights[..., slice(None) if rows is None else rows, :].to(dtype or weights.dtype)
