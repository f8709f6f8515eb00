"""The maps that are drawn from captured attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attnviz.results import AgreementReport, AxisGeometry, Provenance


@dataclass(frozen=True, eq=False)
class AttentionMap:
    """One map as it is drawn: weights, labels, and in words what was done to get there.

    Attributes
    ----------
    weights : (m, n), CPU.
    rows, columns : the labels of queries and keys.
    stack, layer : which layer.
    heads : the head, or the heads that were averaged.
    boundary : (row, column) with which the second text of a pair starts, None without one.
    special_rows, special_columns : which queries and keys are special tokens.
    sides : where the rows and the columns lie in an image or a sound.
    image : as in `AttentionResult`.
    notes : what was merged, removed or renormalised, and how the head was chosen.
    agreement, provenance : of the result that it comes from.
    """

    weights: Tensor
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    stack: str
    layer: int
    heads: tuple[int, ...]
    notes: tuple[str, ...]
    agreement: AgreementReport
    provenance: Provenance
    boundary: tuple[int | None, int | None] = (None, None)
    special_rows: tuple[bool, ...] = ()
    special_columns: tuple[bool, ...] = ()
    sides: tuple[AxisGeometry, AxisGeometry] = (AxisGeometry(), AxisGeometry())
    image: Tensor | None = None

    @property
    def top(self) -> float:
        """The weight at which colours end: the largest that a word gives.

        What a special token gives says little, and is often so much that all else looks pale.
        """
        words = ~torch.tensor(self.special_rows or (False,) * len(self.rows))
        weights = self.weights.nan_to_num()  # cells that are no number have no colour
        return float(weights[words].max() if words.any() else weights.max())


@dataclass(frozen=True, eq=False)
class HeadMaps:
    """The maps of all heads, of all layers or of one.

    weights : (layers, heads, rows, columns), CPU. stack, layers : which. heads : their numbers,
    where only some were kept; else empty. The rest as in `AttentionMap`.
    """

    weights: Tensor
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    stack: str
    layers: tuple[int, ...]
    notes: tuple[str, ...]
    agreement: AgreementReport
    provenance: Provenance
    sides: tuple[AxisGeometry, AxisGeometry] = (AxisGeometry(), AxisGeometry())
    heads: tuple[int, ...] = ()
