"""What is kept of an attention whose map is too large to be kept."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attnviz.errors import InputError
from attnviz.results.attention_record import AttentionRecord
from attnviz.results.axis import Axis
from attnviz.results.map_summary import MapSummary

_WEIGHTS = 2**22  # that are held at once


@dataclass(frozen=True, eq=False)
class StreamedAttention:
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
