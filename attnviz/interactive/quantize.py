"""Numbers as codes of few bits, so that a page weighs little and says how exact it is."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from attnviz.errors import ModelError

_MIDDLE = 2**15  # the code of 0 where numbers have a sign


def _numbers(given: Tensor) -> Tensor:
    """Return numbers in float64; raise ModelError where they are none, which no code stands for."""
    if not given.isfinite().all():
        raise ModelError(
            "Expected weights, queries and keys that are numbers, but some that the model computes "
            "are nan or infinite. Choose another --dtype (dtype=), or draw a heatmap of them."
        )
    return given.double()


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
        wide = _numbers(weights)
        top = wide.amax((-2, -1))
        top = torch.where(top > 0, top, 1.0)
        codes = (wide / top[..., None, None]).sqrt().mul(levels).round().long()
        return cls(codes.clamp(min=1) * (wide > 0), "root", levels, top)

    @classmethod
    def of_vectors(cls, vectors: Tensor) -> Codes:
        """Return codes of numbers of both signs, (n, d), in even steps of 1/32,767 of the largest.

        For the largest numbers, which make most of a score, that is finer than float16.
        """
        wide = _numbers(vectors)
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

    @property
    def planes(self) -> bytes:
        """All low bytes, then all high ones where there are any."""
        planes = [self.codes & 255] + ([self.codes >> 8] if self.levels > 255 else [])
        return b"".join(plane.to(torch.uint8).numpy().tobytes() for plane in planes)

    @cached_property
    def size(self) -> int:
        """How many bytes they take when they are deflated."""
        return len(deflate(self.planes))

    def about(self, block: int, at: int) -> dict[str, Any]:
        """Return what a reader has to know, who finds them at a byte of an inflated block."""
        return {
            "block": block,
            "at": at,
            "shape": list(self.codes.shape),
            "kind": self.kind,
            "levels": self.levels,
            "scale": self.scale.tolist(),
        }


def deflate(data: bytes) -> bytes:
    """Return bytes deflated, without a header."""
    compressor = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return compressor.compress(data) + compressor.flush()


K = TypeVar("K", bound=Hashable)


@dataclass
class Blocks:
    """Deflated bytes, written as text one block after the other."""

    text: list[str] = field(default_factory=list)
    places: list[tuple[int, int]] = field(default_factory=list)
    length: int = 0

    def add(self, codes: Mapping[K, Codes]) -> dict[K, dict[str, Any]]:
        """Add codes as one block, none for none; return what a reader has to know of each."""
        if not codes:
            return {}
        found, at = {}, 0
        planes = {name: each.planes for name, each in codes.items()}
        for name, each in codes.items():
            found[name] = each.about(len(self.places), at)
            at += len(planes[name])
        text = base64.b64encode(deflate(b"".join(planes.values()))).decode("ascii")
        self.text.append(text)
        self.places.append((self.length, len(text)))
        self.length += len(text)
        return found
