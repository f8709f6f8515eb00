"""Attentions whose weights do not follow from queries and keys, but are stored as they are.

Those of linear attention are a signed matrix that mixes values; others were given by the user.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from attnviz.errors import InputError
from attnviz.results.attention_record import AttentionRecord, Reference
from attnviz.results.axis import Axis
from attnviz.results.base import Rules, fits

# --- given by the user


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
    def _stored(self) -> Tensor:
        return self.given

    def part_of_scores(self, *args: Any, **keywords: Any) -> Tensor:
        """Raise InputError: scores follow from queries and keys, which nobody gave."""
        raise _without_vectors("scores need")


# --- linear attention


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
    def _stored(self) -> Tensor:
        return self.matrix

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
        part, columns = super().at(rows, columns), rows if columns is None else columns
        assert isinstance(part, LinearAttention)
        return replace(part, matrix=self.matrix[:, rows][..., columns])

    def part_of_scores(self, *args: Any, **keywords: Any) -> Tensor:
        """Raise InputError: there is no softmax, and so there are no scores."""
        raise InputError(
            f"Scores need a softmax, but {self.module} has none: its weights are those of "
            f"{self.function}. Use weights()."
        )


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
