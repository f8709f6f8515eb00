"""Numbers as codes of few bits, so that a page weighs little and says how exact it is."""

from __future__ import annotations

import base64
import zlib
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

_MIDDLE = 2**15  # the code of 0 where numbers have a sign


@dataclass(frozen=True, eq=False)
class Codes:
    """Numbers as whole numbers from 0 to `levels`, at most 65,535, and what undoes it.

    Attributes
    ----------
    codes : int64, any shape.
    kind : "root": a number is scale · (code / levels)², and 0 only where it was 0. "linear": it is
        scale · (code - 2¹⁵).
    scale : one for all, or one for each first index.
    """

    codes: Tensor
    kind: Literal["root", "linear"]
    levels: int
    scale: Tensor

    @classmethod
    def of_weights(cls, weights: Tensor, levels: int) -> Codes:
        """Return codes of weights (m, n), or of (H, m, n) with a scale for each head.

        Steps are even on the scale of square roots: the error of a weight w is at most
        √(w · top) / levels + top / levels², where top is the largest. No weight vanishes.
        """
        wide = weights.double()
        top = wide.amax((-2, -1))
        top = torch.where(top > 0, top, 1.0)
        codes = (wide / top[..., None, None]).sqrt().mul(levels).round().long()
        return cls(codes.clamp(min=1) * (wide > 0), "root", levels, top)

    @classmethod
    def of_vectors(cls, vectors: Tensor) -> Codes:
        """Return codes of numbers of both signs, (n, d), in even steps of 1/32,767 of the largest.

        For the largest numbers, which make most of a score, that is finer than float16.
        """
        wide = vectors.double()
        scale = wide.abs().max().clamp(min=1e-30) / (_MIDDLE - 1)
        return cls((wide / scale).round().long() + _MIDDLE, "linear", 2**16 - 1, scale)

    @property
    def values(self) -> Tensor:
        """The numbers that the codes stand for, float64."""
        codes = self.codes.double()
        if self.kind == "linear":
            return (codes - _MIDDLE) * self.scale
        scale = self.scale[:, None, None] if self.scale.dim() else self.scale
        return scale * (codes / self.levels) ** 2

    @cached_property
    def deflated(self) -> bytes:
        """All low bytes, then all high ones where there are any, deflated without a header."""
        planes = [self.codes & 255] + ([self.codes >> 8] if self.levels > 255 else [])
        deflate = zlib.compressobj(wbits=-zlib.MAX_WBITS)
        parts = [deflate.compress(plane.to(torch.uint8).numpy().tobytes()) for plane in planes]
        return b"".join([*parts, deflate.flush()])

    def about(self, block: int) -> dict[str, Any]:
        """Return what a reader of the block has to know."""
        return {
            "block": block,
            "shape": list(self.codes.shape),
            "kind": self.kind,
            "levels": self.levels,
            "scale": self.scale.tolist(),
        }


@dataclass
class Blocks:
    """Deflated bytes, written as text one after the other."""

    text: list[str] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)
    known: dict[object, dict[str, Any]] = field(default_factory=dict)
    length: int = 0

    def add(self, codes: Codes, name: object = None) -> dict[str, Any]:
        """Add codes, once for each name, and return what a reader has to know of them."""
        if name in self.known:
            return self.known[name]
        text = base64.b64encode(codes.deflated).decode("ascii")
        about = codes.about(len(self.places))
        self.text.append(text)
        self.places.append((self.length, len(text)))
        self.length += len(text)
        if name is not None:
            self.known[name] = about
        return about
