"""Encode what a page holds of one head: its map, or the queries and keys that it follows from."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from attnviz.errors import ModelError
from attnviz.results import AttentionRecord, MaskRule

_ZERO = 2**15  # the code of 0 where numbers have a sign
_BLOCK_CELLS = 2**22  # weights in memory at once while an error is measured
_SAMPLED_BLOCKS = 8  # blocks of rows in which the error of a long text is measured
_ADDRESS_BYTES = 45  # of JSON that say where codes lie, at most


@dataclass(frozen=True, eq=False)
class Codes:
    """Numbers quantized to integers from 0 to `levels`.

    Attributes
    ----------
    codes : Tensor
        int64, any shape.
    kind : {"root", "linear"}
        "root": a number is scale · (code / levels)², and 0 only where it was 0. "linear": it is
        scale · (code - 2¹⁵).
    levels : int
        The largest code, at most 65,535.
    scale : Tensor
        One for all numbers, or one for each first index.
    """

    codes: Tensor
    kind: Literal["root", "linear"]
    levels: int
    scale: Tensor

    @classmethod
    def of_weights(cls, weights: Tensor, levels: int) -> Codes:
        """Quantize weights (m, n), or (H, m, n) with a scale for each head.

        Steps are even on the scale of square roots: the error of a weight w is at most
        √(w · top) / levels + top / levels², where top is the largest weight. No positive weight
        becomes 0.

        Raises
        ------
        ModelError
            A weight is nan or infinite.
        """
        wide = _finite(weights)
        top = wide.amax((-2, -1))
        top = torch.where(top > 0, top, 1.0)
        codes = (wide / top[..., None, None]).sqrt().mul(levels).round().long()
        return cls(codes.clamp(min=1) * (wide > 0), "root", levels, top)

    @classmethod
    def of_vectors(cls, vectors: Tensor) -> Codes:
        """Quantize signed numbers (n, d), in even steps of 1/32,767 of the largest.

        For the largest numbers, which dominate a score, that is finer than float16.

        Raises
        ------
        ModelError
            A number is nan or infinite.
        """
        wide = _finite(vectors)
        scale = wide.abs().max().clamp(min=1e-30) / (_ZERO - 1)
        return cls((wide / scale).round().long() + _ZERO, "linear", 2**16 - 1, scale)

    @property
    def values(self) -> Tensor:
        """The numbers that the codes stand for, float64."""
        codes = self.codes.double()
        if self.kind == "linear":
            return (codes - _ZERO) * self.scale
        scale = self.scale[:, None, None] if self.scale.dim() else self.scale
        return scale * (codes / self.levels) ** 2

    @cached_property
    def text(self) -> str:
        """The codes in base64, deflated: all low bytes, then all high bytes where there are any."""
        planes = [self.codes & 255] + ([self.codes >> 8] if self.levels > 255 else [])
        compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
        deflated = b"".join(
            compressor.compress(plane.to(torch.uint8).numpy().tobytes()) for plane in planes
        )
        return base64.b64encode(deflated + compressor.flush()).decode("ascii")

    @cached_property
    def format(self) -> dict[str, Any]:
        """What a reader needs in order to decode the text."""
        return {
            "shape": list(self.codes.shape),
            "kind": self.kind,
            "levels": self.levels,
            "scale": self.scale.tolist(),
        }

    @property
    def size(self) -> int:
        """The bytes that a page needs for the codes, at most."""
        return len(self.text) + len(json.dumps(self.format, separators=(",", ":"))) + _ADDRESS_BYTES


class Blocks:
    """The texts of codes, one after the other.

    Attributes
    ----------
    places : list of (int, int)
        Where each block begins in the whole text, and how long it is.
    length : int
        The length of the whole text.
    """

    def __init__(self) -> None:
        self._texts: list[str] = []
        self.places: list[tuple[int, int]] = []
        self.length = 0

    def add(self, codes: Codes) -> dict[str, Any]:
        """Append a block, and return where its codes lie and how they are decoded."""
        self._texts.append(codes.text)
        self.places.append((self.length, len(codes.text)))
        self.length += len(codes.text)
        return {"block": len(self.places) - 1, "at": 0, **codes.format}

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self._texts)


@dataclass(frozen=True, eq=False)
class Head:
    """One head of an attention without padding, and its encodings."""

    record: AttentionRecord
    head: int

    @property
    def cells(self) -> int:
        """The number of weights."""
        return len(self.record.query_axis) * len(self.record.key_axis)

    @cached_property
    def weights(self) -> Tensor:
        """The whole map, (m, n), float64."""
        return self.record.weights(self.head, dtype=torch.float64).cpu()

    @cached_property
    def _maps(self) -> dict[int, Codes]:
        return {}  # a cache of each head by itself: one for all heads would outlive the page

    def map(self, levels: int) -> Codes:
        """Quantize the map."""
        if levels not in self._maps:
            self._maps[levels] = Codes.of_weights(self.weights, levels)
        return self._maps[levels]

    @cached_property
    def query(self) -> Codes:
        """The queries, (m, d)."""
        return Codes.of_vectors(self.record.query[self.head].cpu())

    @cached_property
    def key(self) -> Codes:
        """The keys, (n, d)."""
        return Codes.of_vectors(self.record.key[self.key_head].cpu())

    @property
    def key_head(self) -> int:
        """The key head that this head reads; several heads may share one."""
        return self.head // (self.record.heads // self.record.key_heads)

    @property
    def vectors_are_smaller(self) -> bool:
        """Whether queries and keys need fewer bytes than the map, by a rough estimate."""
        tokens = len(self.record.query_axis) + len(self.record.key_axis)
        return 1.5 * tokens * self.record.query.shape[-1] < self.cells

    @property
    def follows(self) -> bool:
        """Whether the map follows from queries, keys and the rule alone."""
        return not self.rule["added"]

    @cached_property
    def rule(self) -> dict[str, Any]:
        """What the map follows from beside queries and keys, in types that JSON knows.

        "added" says that the model adds a table to the scores that this rule cannot express: a
        position bias, or a mask without a pattern.
        """
        record = self.record
        visible = record.visible or MaskRule(offset=len(record.key_axis) - len(record.query_axis))
        tables = (record.bias, record.capped_bias)  # all zeros in the joined steps of a generation
        added = any(table is not None and bool(table.any()) for table in tables)
        if record.mask is not None:
            pattern = MaskRule.of(record.mask[self.head if len(record.mask) > 1 else 0])
            visible, added = pattern or visible, added or pattern is None
        sinks, m, n = record.sinks, len(record.query_axis), len(record.key_axis)
        if sinks is None:  # models give even weights to a row without keys, the rule gives zeros
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

    def error_of_map(self, levels: int) -> float:
        """Return the largest error of the quantized weights."""
        return float((self.map(levels).values - self.weights).abs().max())

    @cached_property
    def error_of_vectors(self) -> float:
        """The largest error of weights that are computed from quantized queries and keys.

        Of a long text it is measured in some blocks of rows only.
        """
        quantized = replace(
            self.record,
            query=self.query.values[None],
            key=self.key.values[None],
            bias=self._of_this_head(self.record.bias),
            capped_bias=self._of_this_head(self.record.capped_bias),
            mask=self._of_this_head(self.record.mask),
            sinks=None if (sinks := self.record.sinks) is None else sinks[[self.head]].cpu(),
        )
        errors = (
            quantized.weights(0, rows, torch.float64).cpu()
            - self.record.weights(self.head, rows, torch.float64).cpu()
            for rows in self._row_blocks()
        )
        return max((float(error.abs().max()) for error in errors), default=0.0)

    @property
    def sampled(self) -> bool:
        """Whether `error_of_vectors` is measured in some rows only."""
        return self.cells > _BLOCK_CELLS * _SAMPLED_BLOCKS

    def _of_this_head(self, term: Tensor | None) -> Tensor | None:
        """Return the score term of this head, (1, m, n)."""
        if term is None:
            return None
        return term[self.head if len(term) > 1 else 0][None].cpu()

    def _row_blocks(self) -> Iterator[slice]:
        """Yield blocks of rows: all, or evenly spaced ones of a long text."""
        m = len(self.record.query_axis)
        rows = max(1, _BLOCK_CELLS // len(self.record.key_axis))
        starts = range(0, m, rows)
        for start in starts[:: -(-len(starts) // _SAMPLED_BLOCKS) if self.sampled else 1]:
            yield slice(start, min(m, start + rows))


def _finite(numbers: Tensor) -> Tensor:
    """Return numbers in float64; raise ModelError unless all are finite."""
    if not numbers.isfinite().all():
        raise ModelError(
            "The page cannot show weights, queries or keys that are nan or infinite, and the model "
            "computes some. Choose another --dtype (dtype=), or draw a heatmap."
        )
    return numbers.double()
