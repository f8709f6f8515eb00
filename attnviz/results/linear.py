"""Attention without a softmax: a signed matrix that mixes values, and what it follows from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from attnviz.errors import InputError
from attnviz.results.attention_record import AttentionRecord, Reference
from attnviz.results.axis import Axis
from attnviz.results.base import Rules, fits


def row_shares(weights: Tensor) -> Tensor:
    """Return the share of each signed weight in the sizes of its row, (…, n); 0 in rows of zeros.

    >>> row_shares(torch.tensor([[3.0, -1.0], [0.0, 0.0]])).tolist()
    [[0.75, 0.25], [0.0, 0.0]]
    """
    sizes = weights.abs()
    return sizes / sizes.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)


@dataclass(frozen=True, eq=False)
class LinearAttention(AttentionRecord):
    """One layer that mixes values by a matrix M of each head, without a softmax: y = M v.

    Its weights are signed, and a row need not sum to 1. Queries and keys have no features.

    Attributes
    ----------
    matrix : M, (H, m, n), in float32 or wider.
    module : the name of the module's class.
    function : the name of the function of the model whose result is M v.
    arguments : the other arguments of that function that depend on the text, by name: gates,
        decays, queries and keys, as it takes them; none of a long text.
    head_dims : along which dimension of an argument its heads lie, by name; not of those that all
        heads share.
    text : the tokens of a long text, whose maps are pooled; None of others.
    cell : how many tokens each position joins: weights are summed over columns, with their signs,
        and averaged over rows; values are averaged.
    """

    matrix: Tensor = field(kw_only=True)
    module: str = field(kw_only=True)
    function: str = field(kw_only=True)
    arguments: dict[str, Tensor] = field(kw_only=True)
    head_dims: dict[str, int] = field(default_factory=dict, kw_only=True)
    text: Axis | None = field(default=None, kw_only=True)
    cell: int = field(default=1, kw_only=True)

    def __repr__(self) -> str:
        """Return a summary without the tensors."""
        H, m, n = self.matrix.shape
        return f"LinearAttention({self.place}, {H} heads, {m} × {n}, {self.function}, {self.path})"

    def _rules(self) -> Rules:
        H, m, n = self.heads, len(self.query_axis), len(self.key_axis)
        yield "a matrix for each head", H > 0 and fits(self.matrix, {H}, {m}, {n})
        are_values = self.value.dim() == 3 and self.value.shape[:2] == (H, n)
        yield "values for each head", are_values
        yield "queries and keys without features", not self.query.numel() + self.key.numel()

    @property
    def signed(self) -> bool:
        """Whether weights may be negative, and rows sum to anything."""
        return True

    @property
    def finite(self) -> bool:
        """Whether all weights are numbers."""
        return bool(self.matrix.isfinite().all())

    def argument_of(self, name: str, head: int) -> Tensor | None:
        """Return what one head takes of an argument, (m, …), a row for each position.

        None if it has no numbers for each position, or another dimension may be the positions.
        """
        tensor, dim = self.arguments[name], self.head_dims.get(name)
        if dim is not None:
            tensor = tensor.select(dim, head // (self.heads // tensor.shape[dim]))
        positions = [d for d, size in enumerate(tensor.shape) if size == len(self.query_axis)]
        return (
            tensor.movedim(positions[0], 0).reshape(len(self.query_axis), -1)
            if len(positions) == 1
            else None
        )

    def at(self, rows: Tensor, columns: Tensor | slice | None = None) -> LinearAttention:
        """Return the attention of some queries (R,) to some keys (C,), by default the same ones."""
        columns = rows if columns is None else columns
        keys = columns if isinstance(columns, Tensor) else torch.arange(len(self.key_axis))[columns]
        return replace(
            self,
            query_axis=self.query_axis.at(rows.tolist()),
            key_axis=self.key_axis.at(keys.tolist()),
            query=self.query[:, rows],
            key=self.key[:, keys],
            value=self.value[:, keys],
            matrix=self.matrix[:, rows][..., keys],
            visible=None,
        )

    def scores(
        self,
        head: int | None = None,
        rows: slice | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Raise InputError: there is no softmax, and so there are no scores."""
        raise InputError(
            f"Scores need a softmax, but {self.module} has none: its weights are those of "
            f"{self.function}. Use weights()."
        )

    def weights(
        self,
        head: int | None = None,
        rows: slice | None = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Return the matrix: (m, n) for one head, else (H, m, n)."""
        weights = self.matrix if head is None else self.matrix[head]
        return weights[..., slice(None) if rows is None else rows, :].to(dtype or weights.dtype)


@dataclass(frozen=True, eq=False)
class LinearReference(Reference):
    """What the untouched model computed for a linear attention, in a separate run.

    weights : (H, m, c), the mixture of `probes` in float32. head_output : (H, m, d_v), its result.
    probes : (n, c), random columns. exact, rounded : (K, H, m, d_v), the mixture of the values in
    K other orders, the first of them reversed, in float32 and in the model's precision.
    canaries : (H, m, d_v) each, the result with one argument 1 % off, by its name.
    rounded_by : (K,) each, how much of that change is in the rounding errors of `rounded`.
    """

    probes: Tensor = field(kw_only=True)
    exact: Tensor = field(kw_only=True)
    rounded: Tensor = field(kw_only=True)
    canaries: Mapping[str, Tensor] = field(kw_only=True)
    rounded_by: Mapping[str, Tensor] = field(kw_only=True)
