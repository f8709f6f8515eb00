"""The colors of attention weights: one rule for maps, tiles, pages and the terminal."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.artist import ArtistInspector
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import QuadMesh
from matplotlib.colors import Colormap, LogNorm, Normalize, to_rgba
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.nn.functional import adaptive_max_pool2d

from attnviz.errors import InputError, did_you_mean
from attnviz.figures.claims import is_logarithmic
from attnviz.figures.style import theme
from attnviz.heads import Maps

BELOW_EVEN = 3  # a logarithmic scale begins at this part of even weights


def signed_norm(numbers: Iterable[float]) -> Normalize:
    """Return a scale of signed numbers that ends at the largest, on both sides."""
    largest = max((abs(number) for number in numbers if number == number), default=0.0) or 1.0
    return Normalize(-largest, largest)


def pool_largest(weights: Tensor, size: tuple[int, int]) -> Tensor:
    """Return weights (maps, m, n) pooled to a size: the largest of each cell, whatever its sign."""
    largest, least = adaptive_max_pool2d(weights, size), -adaptive_max_pool2d(-weights, size)
    return torch.where(largest >= -least, largest, least) if (weights < 0).any() else largest


def weight_norm(weights: Tensor) -> Normalize:
    """Return the scale of attention weights (…, n) of n keys.

    It ends at the largest weight, which alone has the darkest color. A logarithmic scale begins at
    a third of even weights, a linear one at 0.
    """
    top, keys = float(weights.max()), weights.shape[-1]
    if is_logarithmic(keys):
        return LogNorm(1 / (BELOW_EVEN * keys), max(top, BELOW_EVEN / keys))
    return Normalize(0.0, max(top, 1e-12))


_ARGUMENTS = "annot", "cbar", "cbar_ax", "cmap", "heads", "norm", "title", "vmax", "vmin", "width"


@dataclass(frozen=True, eq=False)
class Look:
    """What the user set of the look of a map: see `attnviz.plot.heatmap`."""

    vmin: float | None = None
    vmax: float | None = None
    norm: Normalize | None = None
    cmap: str | Colormap | None = None
    annot: bool | None = None
    cbar: bool = True
    cbar_ax: Axes | None = None
    title: str | None = None
    mesh: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.norm is not None and (self.vmin, self.vmax) != (None, None):
            raise InputError("norm already has limits. Pass it alone, or vmin and vmax.")
        if self.cbar_ax is not None and not self.cbar:
            raise InputError("cbar=False draws no color bar into cbar_ax. Leave one of them out.")
        if isinstance(self.cmap, str) and self.cmap not in mpl.colormaps:
            raise InputError(
                f"{self.cmap!r} is no colormap. {did_you_mean(self.cmap, list(mpl.colormaps))}"
            )
        if not self.mesh:
            return
        inspector = ArtistInspector(QuadMesh)
        short = chain.from_iterable(inspector.aliasd.values())
        known = [*inspect.signature(Axes.pcolormesh).parameters, *inspector.get_setters(), *short]
        for name in self.mesh:
            if name not in known:
                hint = did_you_mean(name, [*_ARGUMENTS, *known])
                raise InputError(f"{name} is no argument of heatmap, nor of pcolormesh. {hint}")


@dataclass(frozen=True, eq=False)
class WeightScale:
    """The colors of maps (…, m, n) whose cells differ in what they say."""

    norm: Normalize  # of the cells between words
    neutral: Normalize | None  # of uninformative cells, in gray; None without any
    uninformative: Tensor  # (m, n), as in `Maps`
    masked: Tensor | None  # (m, n), as in `AttentionMap`
    colors: Colormap = field(default_factory=lambda: theme().weights)  # between words
    name: str = ""  # what uninformative cells are

    @classmethod
    def of(cls, maps: Maps, weights: Tensor | None = None) -> WeightScale:
        """Return the scale of some maps. If no cell is informative, all count as such.

        Signed weights have one scale, which ends at the largest on both sides.

        weights : those of several maps on one scale, in place of the maps' own.
        """
        weights, uninformative = maps.weights if weights is None else weights, maps.uninformative
        if maps.signed or uninformative.all() or is_logarithmic(weights.shape[-1]):
            uninformative = torch.zeros_like(uninformative)
        if maps.signed:
            size = weights.float().nan_to_num(0.0, 0.0, 0.0).abs().max().item()
            return cls(signed_norm([size]), None, uninformative, maps.masked, theme().values)
        largest = weights.reshape(-1, *uninformative.shape).nan_to_num(0.0, 0.0, 0.0).amax(0)
        neutral = None
        if uninformative.any():
            neutral = weight_norm(largest.masked_fill(~uninformative, 0.0))
        norm = weight_norm(largest.masked_fill(uninformative, 0.0))
        return cls(norm, neutral, uninformative, maps.masked, name=maps.uninformative_name)

    def with_look(self, look: Look) -> WeightScale:
        """Return the scale with what the user set, which then counts for all cells alike."""
        if all(one is None for one in (look.vmin, look.vmax, look.norm, look.cmap)):
            return self
        norm = look.norm
        if norm is None:
            top = max(norm.vmax or 0.0 for norm in (self.norm, self.neutral) if norm is not None)
            low = self.norm.vmin if look.vmin is None else look.vmin
            norm = type(self.norm)(low, top if look.vmax is None else look.vmax)
        colors = self.colors if look.cmap is None else mpl.colormaps.get_cmap(look.cmap)
        nothing = torch.zeros_like(self.uninformative)
        return WeightScale(norm, None, nothing, self.masked, colors)

    def pooled(self, size: tuple[int, int]) -> WeightScale:
        """Return the scale of maps that `pool_largest` pools to a size."""
        cells = pool_largest(self.uninformative[None].float(), size)[0] > 0
        masked = self.masked
        if masked is not None:
            masked = pool_largest((~masked)[None].float(), size)[0] == 0
        return replace(self, uninformative=cells, masked=masked)

    @property
    def signed(self) -> bool:
        """Whether the scale is centered at 0."""
        return float(self.norm.vmin or 0.0) < 0

    @property
    def bars(self) -> list[tuple[str, ScalarMappable]]:
        """What each color bar shows, with its colors."""
        bars = [("between words", ScalarMappable(self.norm, self.colors))]
        if self.neutral is None:
            return [("", bars[0][1])]
        return [*bars, (self.name, ScalarMappable(self.neutral, theme().neutral))]

    def rgba(self, weights: Tensor) -> NDArray[np.uint8]:
        """Return the colors (…, m, n, 4) of weights; masked cells have a color of their own."""
        values = weights.float().numpy()
        colors = _colors(values, self.norm, self.colors)
        if self.neutral is not None:
            gray = _colors(values, self.neutral, theme().neutral)
            colors = np.where(self.uninformative.numpy()[..., None], gray, colors)
        if self.masked is not None:
            colors[..., self.masked.numpy(), :] = bytes_of(theme().masked)
        return colors


def bytes_of(color: str) -> NDArray[np.uint8]:
    """Return red, green, blue and opacity of a color, 0 to 255."""
    return _rounded(to_rgba(color))


def _rounded(colors: ArrayLike) -> NDArray[np.uint8]:
    """Return colors as bytes; those of matplotlib are truncated."""
    return np.rint(255 * np.asarray(colors, np.float32)).astype(np.uint8)


def _colors(values: NDArray[np.float32], norm: Normalize, colors: Colormap) -> NDArray[np.uint8]:
    lowest = norm.vmin if isinstance(norm, LogNorm) else None
    shown = values.ravel() if lowest is None else np.maximum(values.ravel(), lowest)
    return _rounded(colors(norm(shown))).reshape(*values.shape, 4)
