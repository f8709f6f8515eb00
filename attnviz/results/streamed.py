"""Summaries of attentions whose full maps are too large to store."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attnviz.errors import InputError
from attnviz.results.attention_record import AttentionRecord
from attnviz.results.axis import Axis
from attnviz.results.base import Rules, Savable, fits

_WEIGHTS = 2**22  # that are held at once


@dataclass(frozen=True, eq=False)
class MapSummary(Savable):
    """What is kept of the m × n weights of each of H heads.

    Attributes
    ----------
    cell : how many rows and columns a cell of the pooled maps joins; the last may be smaller.
    mean, largest : (H, ⌈m / cell⌉, ⌈n / cell⌉), the mean and the largest weight in each cell.
    received : (H, n), the weight that all queries give to a key.
    entropy : (H, m), of each row, in nats.
    distance : (H, m), the mean distance from a query to what it reads, in tokens.
    itself, previous, first : (H, m), the weight of a query for its own position, the one before,
        and the first of the text.
    marked : (H, m), the weight of a query for the keys that were marked; 0 where none were.
    lse : (H, m), the log-sum-exp of each row of scores, sinks among them.
    empty : (m,), queries that may read no key; all their other numbers are 0.
    top_keys, top_weights : (H, m, k), the keys with the largest weights and these, largest first;
        -1 and 0 where a row has fewer keys. k is 0 where none were asked for.
    """

    cell: int
    mean: Tensor
    largest: Tensor
    received: Tensor
    entropy: Tensor
    distance: Tensor
    itself: Tensor
    previous: Tensor
    first: Tensor
    marked: Tensor
    lse: Tensor
    empty: Tensor
    top_keys: Tensor
    top_weights: Tensor

    def _rules(self) -> Rules:
        H, m = self.entropy.shape if self.entropy.dim() == 2 else (0, 0)
        n = self.received.shape[-1] if self.received.dim() == 2 else 0
        yield "cells of one row or more, and something in them", min(self.cell, H, m, n) > 0
        yield "a number for each key", fits(self.received, {H}, {n})
        of_rows = (
            self.distance,
            self.itself,
            self.previous,
            self.first,
            self.marked,
            self.lse,
        )
        yield "a number for each row", all(fits(numbers, {H}, {m}) for numbers in of_rows)
        rows, columns = (-(-length // self.cell) for length in (m, n))
        yield (
            "a number for each cell",
            fits(self.mean, {H}, {rows}, {columns}) and self.mean.shape == self.largest.shape,
        )
        yield "a flag for each row", fits(self.empty, {m})
        yield (
            "a weight for each of the top keys",
            self.top_keys.shape[:2] == (H, m) and self.top_keys.shape == self.top_weights.shape,
        )


def cell_sizes(length: int, cell: int) -> Tensor:
    """Return how many of so many rows, or columns, each cell joins; the last may join fewer.

    >>> cell_sizes(7, 3).tolist()
    [3, 3, 1]
    """
    return (length - torch.arange(0, length, cell)).clamp(max=cell)


@dataclass(frozen=True, eq=False)
class StreamedAttention(Savable):
    """An attention of a long text: what its maps say, reduced while the model ran.

    Attributes
    ----------
    path, call, layer, stack, query_axis, key_axis : as in `AttentionRecord`.
    heads, layers : how many query heads it has, and how many layers its stack.
    kept : which of the heads `summary` tells of, in this order.
    summary : of the maps of these heads.
    record : what the weights follow from, for exact crops, where the layer was asked for.
    """

    path: str
    call: int
    layer: int
    stack: str
    query_axis: Axis
    key_axis: Axis
    heads: int
    layers: int
    kept: tuple[int, ...]
    summary: MapSummary
    record: AttentionRecord | None = None

    def __repr__(self) -> str:
        """Say what it holds, without the tensors."""
        m, n = len(self.query_axis), len(self.key_axis)
        return (
            f"StreamedAttention({self.place}, {len(self.kept)} heads, {m:,} × {n:,}, {self.path})"
        )

    def _rules(self) -> Rules:
        size = (len(self.query_axis), len(self.key_axis))
        yield (
            "a summary of its shape",
            (*self.summary.entropy.shape, self.summary.received.shape[-1])
            == (len(self.kept), *size),
        )
        yield "heads that it has", all(0 <= head < self.heads for head in self.kept)
        yield (
            "a record of its shape",
            self.record is None
            or (self.record.heads, len(self.record.query_axis), len(self.record.key_axis))
            == (self.heads, *size),
        )
        if self.record is not None:
            self.record.check()

    @property
    def place(self) -> str:
        """Which layer of which stack, in words."""
        return f"{self.stack} layer {self.layer}"

    def of_head(self, head: int) -> int:
        """Return where a head stands in the summary; InputError if it was not kept."""
        if head in self.kept:
            return self.kept.index(head)
        kept = ", ".join(map(str, self.kept))
        raise InputError(
            f"Expected one of the heads that were kept of layer {self.layer}, {kept}, got {head}. "
            "Ask for it: attend(text, heads=[…])."
        )

    def crop(self, head: int, rows: slice, columns: slice) -> Tensor:
        """Return the exact weights of some queries for some keys, (rows, columns), float32.

        Rows and columns are tokens, counted from 0.

        Raises
        ------
        InputError : what the weights follow from was not kept, or no such head or part.
        """
        self.of_head(head)
        if self.record is None:
            raise InputError(
                f"Expected layer {self.layer} to be kept for exact weights, but of a long text "
                f"only what is asked for is. Ask for it: attend(text, exact=[{self.layer}])."
            )
        start, stop, _ = rows.indices(len(self.query_axis))
        step = max(1, _WEIGHTS // len(self.key_axis))  # whole rows, that their sums be known
        parts = [
            self.record.weights(head, slice(at, min(at + step, stop)))[..., columns]
            for at in range(start, stop, step)
        ]
        if not parts:
            raise InputError(f"Expected some rows of {len(self.query_axis):,}, got {rows}.")
        return torch.cat(parts)
