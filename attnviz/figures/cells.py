"""Draw a matrix: the colors of its cells, their numbers, and the labels along its sides."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.artist import ArtistInspector
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.cbook import normalize_kwargs
from matplotlib.cm import ScalarMappable
from matplotlib.collections import QuadMesh
from matplotlib.colors import Colormap, LogNorm, Normalize, to_rgba
from matplotlib.image import AxesImage
from matplotlib.patches import Patch, PathPatch, Rectangle
from matplotlib.path import Path
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Affine2D, Bbox
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.nn.functional import adaptive_max_pool2d

from attnviz.errors import InputError, did_you_mean
from attnviz.figures import style
from attnviz.figures.claims import is_logarithmic
from attnviz.figures.layout import Page, Pair, Place, Ruler, line_height
from attnviz.figures.style import MM, SMALL_SIZE, SMALLEST_SIZE, TEXT_SIZE, theme
from attnviz.formula.attention import HIDDEN
from attnviz.heads import Maps
from attnviz.results import AxisGeometry, Landmark
from attnviz.results.text import literal, signed, with_minus

Bar: TypeAlias = tuple[str, ScalarMappable, str]  # colors, and what is at both ends
Edges: TypeAlias = tuple[NDArray[np.float64], NDArray[np.float64]]  # of rows and of columns
_ROOM_FOR_NUMBER = {"x": 0.4, "y": 0.25}  # inches from one number of a scale to the next
_PAD = 0.06  # inches between a label and its axis
SCALE = 14 * MM, 1.8 * MM  # the width and the height of a color scale below a text
BELOW_EVEN = 3  # a logarithmic scale begins at this part of even weights


def signed_norm(numbers: Iterable[float]) -> Normalize:
    """Return a scale of signed numbers that ends at the largest, on both sides."""
    largest = max((abs(number) for number in numbers if number == number), default=0.0) or 1.0
    return Normalize(-largest, largest)


def pool_largest(weights: Tensor, size: tuple[int, int]) -> Tensor:
    """Return weights (maps, m, n) pooled to a size: the largest of each cell, whatever its sign."""
    largest, least = adaptive_max_pool2d(weights, size), -adaptive_max_pool2d(-weights, size)
    return torch.where(largest >= -least, largest, least) if (weights < 0).any() else largest


_OWN = "annot ax cbar cbar_ax cmap figsize head heads layer norm title vmax vmin width"
# Words of seaborn: those that are understood, with their kind, and what to use in place of others.
_UNDERSTOOD = {"fmt": str, "annot_kws": dict, "cbar_kws": dict, "square": bool}
_IN_PLACE = {
    "xticklabels": "Tokens name the columns. Set other labels on the axes that it returns.",
    "yticklabels": "Tokens name the rows. Set other labels on the axes that it returns.",
    "mask": 'Use special="hide", or rows= and columns= for a part of the map.',
    "center": "Weights have no center. For two sides use norm=, such as TwoSlopeNorm.",
    "robust": "Set the end of the scale with vmax=.",
    "layers": "Use layer=, which takes several layers too.",
    **dict.fromkeys(("fig", "figure"), "heatmap draws into axes: give ax=figure.subplots()."),
    "array": "The weights are those of the result.",
}


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
        for name, kind in _UNDERSTOOD.items():
            if not isinstance(self.mesh.get(name, kind()), kind):
                raise InputError(f"{name} must be a {kind.__name__}, as in seaborn.heatmap.")
        try:
            format(0.5, fmt := self.mesh.get("fmt", ""))
        except ValueError:
            raise InputError(
                f'fmt={fmt!r:.40} formats no weight. Write one such as ".2f" or ".0%".'
            ) from None
        if not self.cells:
            return
        mesh = ArtistInspector(QuadMesh)
        known = {"shading", *mesh.get_setters()}.union(*mesh.aliasd.values()) - {*_IN_PLACE}
        for name in sorted(self.cells.keys() - known):
            hint = _IN_PLACE.get(name) or did_you_mean(name, _OWN.split())
            hint = hint or did_you_mean(name, known)
            raise InputError(f"{name} is no argument of heatmap, nor of pcolormesh. {hint}")

    @property
    def cells(self) -> dict[str, Any]:
        """What is meant for `Axes.pcolormesh`."""
        return {name: value for name, value in self.mesh.items() if name not in _UNDERSTOOD}


@dataclass(frozen=True, eq=False)
class WeightScale:
    """The colors of maps (…, m, n) whose cells differ in what they say."""

    norm: Normalize  # of the cells between words
    neutral: Normalize | None  # of uninformative cells, in gray; None without any
    uninformative: Tensor  # (m, n), as in `Maps`
    masked: Tensor | None  # (m, n), as in `AttentionMap`
    colors: Colormap = field(default_factory=lambda: theme().weights)  # between words
    name: str = ""  # what uninformative cells are
    look: Look = field(default_factory=Look)  # what the user set besides

    @classmethod
    def of(cls, maps: Maps, weights: Tensor | None = None, *, linear: bool = False) -> WeightScale:
        """Return the scale of some maps. If no cell is informative, all count as such.

        weights : those of several maps on one scale, in place of the maps' own. linear : whether
        the scale is linear whatever the number of keys.
        """
        weights, uninformative = maps.weights if weights is None else weights, maps.uninformative
        logarithmic = is_logarithmic(weights.shape[-1]) and not linear
        if maps.signed or uninformative.all() or logarithmic:
            uninformative = torch.zeros_like(uninformative)
        if maps.signed:
            size = weights.float().nan_to_num(0.0, 0.0, 0.0).abs().max().item()
            return cls(signed_norm([size]), None, uninformative, maps.masked, theme().values)
        largest = weights.reshape(-1, *uninformative.shape).nan_to_num(0.0, 0.0, 0.0).amax(0)
        top, keys = float(largest.masked_fill(uninformative, 0.0).max()), weights.shape[-1]
        norm, neutral = Normalize(0.0, max(top, 1e-12)), None
        if logarithmic:
            norm = LogNorm(1 / (BELOW_EVEN * keys), max(top, BELOW_EVEN / keys))
        if uninformative.any():
            gray = float(largest.masked_fill(~uninformative, 0.0).max())
            neutral = Normalize(0.0, max(gray, 1e-12))
        return cls(norm, neutral, uninformative, maps.masked, name=maps.uninformative_name)

    def with_look(self, look: Look) -> WeightScale:
        """Return the scale with what the user set; its colors then count for all cells alike."""
        if all(one is None for one in (look.vmin, look.vmax, look.norm, look.cmap)):
            return replace(self, look=look)
        norm = look.norm
        if norm is None:
            top = max(norm.vmax or 0.0 for norm in (self.norm, self.neutral) if norm is not None)
            low = self.norm.vmin if look.vmin is None else look.vmin
            norm = type(self.norm)(low, top if look.vmax is None else look.vmax)
        colors = self.colors if look.cmap is None else mpl.colormaps.get_cmap(look.cmap)
        nothing = torch.zeros_like(self.uninformative)
        return WeightScale(norm, None, nothing, self.masked, colors, look=look)

    def pooled(self, size: tuple[int, int]) -> WeightScale:
        """Return the scale of maps that `pool_largest` pools to a size."""
        cells = pool_largest(self.uninformative[None].float(), size)[0] > 0
        masked = self.masked
        if masked is not None:
            masked = pool_largest((~masked)[None].float(), size)[0] == 0
        return replace(self, uninformative=cells, masked=masked)

    @property
    def bars(self) -> list[tuple[str, ScalarMappable]]:
        """What each color bar shows, with its colors."""
        bars = [("between words", ScalarMappable(self.norm, self.colors))]
        if self.neutral is None:
            return [("", bars[0][1])]
        return [*bars, (self.name, ScalarMappable(self.neutral, theme().neutral))]

    @property
    def ends(self) -> list[Bar]:
        """What each color bar shows, between what is at its ends."""
        ends: list[Bar] = []
        for name, bar in self.bars:
            low, high = (float(end or 0.0) for end in (bar.norm.vmin, bar.norm.vmax))  # type: ignore[arg-type]
            what = "on gray words" if " and " in name else name.replace("of ", "on ")
            most = signed(high) if low < 0 else f"{high:.0%} {what or 'of the weight'}"
            least = signed(low) if low < 0 else f"{100 * low:.1g}%" if low else "0"
            ends += [(least, bar, most)] if high > 1e-9 else []
        return ends

    def rgba(self, weights: Tensor) -> NDArray[np.uint8]:
        """Return the colors (…, m, n, 4) of weights; masked cells have a color of their own."""
        values = weights.float().numpy()
        colors = _colors(values, self.norm, self.colors)
        if self.neutral is not None:
            gray = _colors(values, self.neutral, theme().neutral)
            colors = np.where(self.uninformative.numpy()[..., None], gray, colors)
        if self.masked is not None:
            colors[..., self.masked.numpy(), :] = as_bytes(to_rgba(theme().masked))
        return colors


def as_bytes(colors: ArrayLike) -> NDArray[np.uint8]:
    """Return colors as bytes; those of matplotlib are truncated."""
    return np.rint(255 * np.asarray(colors, np.float32)).astype(np.uint8)


def _colors(values: NDArray[np.float32], norm: Normalize, colors: Colormap) -> NDArray[np.uint8]:
    lowest = norm.vmin if isinstance(norm, LogNorm) else None
    shown = values.ravel() if lowest is None else np.maximum(values.ravel(), lowest)
    return as_bytes(colors(norm(shown))).reshape(*values.shape, 4)


def draw_cells(
    ax: Axes,
    values: Tensor,
    colors: Colormap,
    norm: Normalize,
    *,
    lines: bool = True,
    edges: Edges | None = None,
    **mesh: Any,
) -> QuadMesh:
    """Draw numbers (m, n) as cells between edges, by default 0, 1, 2 …; masked ones stay blank."""
    m, n = values.shape
    down, across = edges or (np.arange(m + 1.0), np.arange(n + 1.0))
    # A matrix with more cells is drawn as one image, which keeps files small.
    vector = m * n <= (64 * 64 if lines else 32 * 32)
    look: dict[str, Any] = {
        "edgecolors": theme().ground if vector and lines else "none",
        "linewidth": 0.4 if vector and lines else 0.0,
        "rasterized": not vector,
    }
    shown = values.masked_fill(values < HIDDEN, torch.nan).numpy()
    drawn = ax.pcolormesh(across, down, shown, cmap=colors, norm=norm, **(look | mesh))
    ax.set(xlim=across[[0, -1]], ylim=down[[-1, 0]], xticks=[], yticks=[])
    ax.grid(visible=False)  # axes of the user may have one
    ax.spines[:].set_visible(False)
    return drawn


class CellImage(AxesImage):
    """An image with one pixel for each cell of color.

    SVG and PDF hold these pixels. Those of a PNG are looked up in them: the interpolation of
    matplotlib takes many times as long for the same picture.
    """

    def __init__(self, ax: Axes, colors: NDArray[np.uint8], extent: tuple[int, int]) -> None:
        """Place colors (m, n, 4), the first row on top, over the rows and columns of `extent`."""
        down, across = extent
        super().__init__(ax, interpolation="none", origin="upper", extent=(0, across, down, 0))
        self.set_data(colors)
        self.autoscale_None()  # as imshow does

    def make_image(
        self, renderer: Any, magnification: float = 1.0, unsampled: bool = False
    ) -> tuple[NDArray[Any], float, float, Affine2D]:
        """Return the pixels from the bottom up, their place, and how to transform them."""
        whole = self.get_window_extent(renderer)
        visible = Bbox.intersection(whole, self.axes.bbox)
        if unsampled or visible is None:
            return super().make_image(renderer, magnification, unsampled)
        left, bottom, right, top = np.rint(np.array(visible.extents) * magnification).astype(int)
        colors = np.asarray(self.get_array())[::-1]
        x = (np.arange(left, right) + 0.5) / magnification - whole.x0
        y = (np.arange(bottom, top) + 0.5) / magnification - whole.y0
        m, n = colors.shape[:2]
        columns = (x / whole.width * n).astype(int).clip(0, n - 1)
        rows = (y / whole.height * m).astype(int).clip(0, m - 1)
        pixels = colors[rows[:, None], columns]
        return pixels, left / magnification, bottom / magnification, Affine2D()


def shadow(image: Tensor) -> NDArray[np.float64]:
    """Return a picture (H, W, 3) as a shadow over colors, RGBA: more would hide them."""
    dark = 1 - (image.numpy() @ np.array(style.LUMINANCE) / 255) ** 0.7
    return np.dstack([np.zeros(image.shape), 0.4 * dark])


def draw_values(ax: Axes, values: Tensor, largest: float) -> None:
    """Draw signed numbers in colors that end at ± `largest`."""
    draw_cells(ax, values, theme().values, Normalize(-largest, largest), lines=False)


def range_of(values: Tensor, share: float = 1.0) -> float:
    """Return the quantile of the absolute numbers, without masked ones."""
    finite = values[values > HIDDEN].abs().flatten().sort().values
    return float(finite[int(share * (len(finite) - 1))].clamp(min=1e-12)) if len(finite) else 1.0


def decimals(weight: float) -> str:
    """Return a weight with two decimals for a cell: ".25"."""
    return f"{weight:.2f}".removeprefix("0")


def write_numbers(
    ax: Axes,
    mesh: QuadMesh,
    values: Tensor,
    say: Callable[[float], str] | Sequence[Sequence[str]] = decimals,
    points: float = style.NUMBER_SIZE,
    *,
    shown: Tensor | None = None,
    edges: Edges | None = None,
    **text: Any,
) -> None:
    """Write each number into its cell, in a color with contrast.

    say : a function that formats a number, or the texts of the cells. shown : the cells whose
    number is written, (m, n); by default all. edges : as in `draw_cells`. text : for `Axes.text`.
    """
    edges = edges or (np.arange(len(values) + 1.0), np.arange(values.shape[1] + 1.0))
    down, across = (((one[1:] + one[:-1]) / 2).tolist() for one in edges)  # the middles
    fills = np.asarray(mesh.cmap(mesh.norm(values.numpy())))
    look: dict[str, Any] = {"fontsize": points, "ha": "center", "va": "center_baseline"}
    look |= normalize_kwargs(text, Text)
    for i, j in torch.nonzero(torch.ones_like(values) if shown is None else shown).tolist():
        value = float(values[i, j])
        color = theme().readable_on(fills[i, j] if value > HIDDEN else theme().ground)
        number = say(value) if callable(say) else say[i][j]
        ax.text(across[j], down[i], number, **({"color": color} | look))


def number(value: float) -> str:
    """Return a signed number with at most one decimal for a cell."""
    if value < HIDDEN:
        return "\N{MINUS SIGN}∞"
    return with_minus(f"{value:.1f}" if abs(value) < 100 else f"{value:.0f}")


def frame(
    ax: Axes, corner: Place, size: Pair, color: str | None = None, linewidth: float = 1.0
) -> Patch:
    """Draw a frame around some cells, by default in the color of the claim."""
    look: dict[str, Any] = {"edgecolor": color or theme().claim, "linewidth": linewidth}
    return ax.add_patch(Rectangle(corner, *size, fill=False, clip_on=False, zorder=3, **look))


def draw_scales(page: Page, bars: Iterable[Bar], place: tuple[float, float], top: float) -> float:
    """Draw color scales and what is at their ends, in lines from left to right; return the end."""
    points, (key, tall), lead = SMALL_SIZE - page.smaller, SCALE, line_height(SMALL_SIZE)
    shown, (left, right), x, y = list[tuple[float, float, Any]](), place, place[0], top
    for low, bar, high in bars:
        start, lines = page.ruler.width(low, points) + MM, [high]
        wide = start + key + MM + page.ruler.width(high, points)
        if x > left and x + wide > right:
            x, y = left, y + 3.4 * MM
        if wide > right - left:  # both ends follow the scale
            lines = page.ruler.wrap(f"{low} to {high}", right - left - key - MM, points)
            low, start = "", 0.0
        shown += [(x, y, low), (x + start, y, bar.cmap)]
        shown += [(x + start + key + MM, y + n * lead, line) for n, line in enumerate(lines)]
        x, y = x + wide + 4 * MM, y + (len(lines) - 1) * lead
    ax = page.canvas(left, top, right - left, y + tall - top)
    for x, upper, one in shown:
        if isinstance(one, str):
            page.label(ax, x, upper + tall / 2, one, color=theme().muted, fontsize=points)
            continue
        box = (x, x + key, upper + tall, upper)
        ax.imshow(np.linspace(0, 1, 128)[None], cmap=one, extent=box, aspect="auto")
        frame(ax, (x, upper), SCALE, theme().faint, 0.3)
    return y + tall


def outline(ax: Axes, cells: Tensor, edges: Edges) -> None:
    """Draw one line around some cells (m, n), in the color of the claim."""
    down, across = edges
    inside = np.pad(cells.numpy(), 1)
    above, beside = (np.argwhere(np.diff(inside, axis=axis)) for axis in (0, 1))
    lines = [[(across[n - 1], down[m]), (across[n], down[m])] for m, n in above]
    lines += [[(across[n], down[m - 1]), (across[n], down[m])] for m, n in beside]
    if lines:
        path = Path(np.concatenate(lines), [Path.MOVETO, Path.LINETO] * len(lines))
        look: dict[str, Any] = {"edgecolor": theme().claim, "linewidth": 1.3, "zorder": 3}
        ax.add_patch(PathPatch(path, fill=False, capstyle="projecting", clip_on=False, **look))


@dataclass(frozen=True)
class Ticks:
    """The labels along one axis."""

    labels: tuple[str, ...]
    places: tuple[float, ...]  # in cells from the first
    points: float
    marked: bool  # whether each label has a tick mark
    rotation: int
    room: float  # inches that the labels take, from the axis outwards
    unit: str = ""  # of a scale
    unknown: tuple[bool, ...] = ()  # which words the model read as unknown tokens

    def apply(self, ax: Axes, axis: str) -> None:
        """Draw the labels."""
        # Set for each label, because the axes may be the user's and have another style.
        options: dict[str, Any] = {
            "fontsize": self.points,
            "fontfamily": mpl.rcParams["font.family"],
            "parse_math": False,
            "rotation": self.rotation,
        }
        if self.rotation == 45:
            options |= {"ha": "right", "rotation_mode": "anchor"}
        put = ax.set_yticks if axis == "y" else ax.set_xticks
        ticks = put(self.places, self.labels, **options)
        for tick in itertools.compress(ticks, itertools.cycle(self.unknown or (False,))):
            for label in (tick.label1, tick.label2):
                label.set(color=theme().muted, style="italic")
        ax.tick_params(axis=axis, length=2 if self.marked else 0)  # type: ignore[arg-type]


def fit_ticks(
    tokens: Sequence[str],
    cell: float,
    ruler: Ruler,
    *,
    axis: str,
    side: AxisGeometry = AxisGeometry(),  # noqa: B008  it does not change
    longest: float = math.inf,
    named: int = 0,
) -> Ticks:
    """Choose size, rotation and number of the labels along one axis, "x" or "y".

    cell : its width along the axis in inches. side : the place of the cells in an image, audio or a
    long text; narrow cells then get a scale. longest : inches at which labels are clipped. named :
    a cell that is labeled even if there is room for only some labels.
    """
    line = cell * 72 / 1.2
    seconds = [second for second in side.seconds or () if second is not None]
    if seconds and len(seconds) == len(tokens):
        return _seconds(seconds, cell, ruler, axis)
    if side.landmarks and line < SMALLEST_SIZE:
        return _landmarks(side, cell, ruler, axis, longest)
    if side.patches is not None and line < SMALLEST_SIZE:
        return _rows(tokens, side, cell, ruler, axis)
    points = min(TEXT_SIZE, max(SMALLEST_SIZE, line))
    every = max(1, math.ceil(SMALLEST_SIZE / line))
    if every >= 3 and is_logarithmic(len(tokens)) and not named:
        steps = MaxNLocator(10, steps=[1, 2, 5, 10], integer=True).tick_values(0, len(tokens) - 1)
        starts = [int(place) for place in steps if 0 <= place < len(tokens)]
        marks = tuple(Landmark(i, " ".join(tokens[i : i + 3])) for i in starts)
        return _landmarks(AxisGeometry(landmarks=marks), cell, ruler, axis, longest)
    shown = range(named % every, len(tokens), every)
    labels = tuple(ruler.clip(literal(tokens[i]), longest, points) for i in shown)
    places = tuple(i + 0.5 for i in shown)
    widest = ruler.widest(labels, points)
    rotation, room = 90, widest
    if axis == "y":
        rotation = 0
    elif widest <= 0.92 * cell:
        rotation, room = 0, line_height(points)
    elif every == 1 and cell > 1.4 * line_height(points):
        rotation, room = 45, (widest + line_height(points)) * math.sqrt(0.5)
    unknown = tuple(bool(side.unknown[i]) for i in shown) if side.unknown else ()
    return Ticks(labels, places, points, every > 1, rotation, room + _PAD, unknown=unknown)


def _seconds(seconds: Sequence[float], cell: float, ruler: Ruler, axis: str) -> Ticks:
    """Return a scale of round numbers of seconds. A frame lasts until the next begins."""
    start = seconds[0]
    step = (seconds[-1] - start) / (len(seconds) - 1) if len(seconds) > 1 else 1.0
    end = start + step * len(seconds)
    most = max(1, int(len(seconds) * cell / _ROOM_FOR_NUMBER[axis]))
    values = MaxNLocator(most, steps=[1, 2, 5, 10]).tick_values(start, end)
    inside = [value for value in values if start - 1e-9 <= value <= end + 1e-9]
    labels = tuple(f"{value:g}" for value in np.round(inside, 6))
    places = tuple((value - start) / step for value in inside)
    room = ruler.widest(labels, TEXT_SIZE) if axis == "y" else line_height(TEXT_SIZE)
    return Ticks(labels, places, TEXT_SIZE, True, 0, room + _PAD, "s")


def _landmarks(side: AxisGeometry, cell: float, ruler: Ruler, axis: str, longest: float) -> Ticks:
    """Return numbers of some positions, with the words there along the rows."""
    marks, numbers = side.landmarks, [f"{mark.position:,}" for mark in side.landmarks]
    apart = (marks[-1].position - marks[0].position) / side.cell * cell / max(1, len(marks) - 1)
    if axis == "x":
        every = math.ceil(1.3 * ruler.widest(numbers, SMALL_SIZE) / apart) if apart else 1
        labels, room = tuple(numbers), line_height(SMALL_SIZE)
    else:
        every = math.ceil(line_height(SMALL_SIZE) / apart) if apart else 1
        left = longest - ruler.widest([f"   {number}" for number in numbers], SMALL_SIZE)
        words = [ruler.clip(literal(mark.words), left, SMALL_SIZE) for mark in marks]
        labels = tuple(f"{word}   {n}".strip() for word, n in zip(words, numbers, strict=True))
        room = ruler.widest(labels, SMALL_SIZE)
    places = tuple((mark.position - side.start) / side.cell for mark in marks)
    shown = slice(None, None, every)
    return Ticks(labels[shown], places[shown], SMALL_SIZE, True, 0, room + _PAD, "position")


def _rows(tokens: Sequence[str], side: AxisGeometry, cell: float, ruler: Ruler, axis: str) -> Ticks:
    """Return a label for each row of patches, and for each token that is no patch."""
    cells = zip(tokens, side.patches or (), strict=True)
    names = [token if patch is None else f"row {patch[0]}" for token, patch in cells]
    shown: list[tuple[str, float]] = []
    distance, start = line_height(SMALLEST_SIZE) / cell, 0
    for name, group in itertools.groupby(names):
        size = len(list(group))
        middle = start + size / 2
        start += size
        if not shown or middle - shown[-1][1] >= distance:
            shown.append((literal(name), middle))
    labels, places = zip(*shown, strict=True)
    room = ruler.widest(labels, SMALLEST_SIZE) + _PAD
    return Ticks(labels, places, SMALLEST_SIZE, True, 0 if axis == "y" else 90, room)


@dataclass(frozen=True)
class HeadGrid:
    """A cell for each head: the longer of layers and heads runs across, to fit a page."""

    layers: Sequence[int]  # their numbers, as they are written along the sides
    heads: Sequence[int]  # likewise

    @property
    def layers_across(self) -> bool:
        """Whether layers run across and heads down."""
        return len(self.layers) > len(self.heads)

    @property
    def rows(self) -> int:
        """The number of cells down."""
        return len(self.heads) if self.layers_across else len(self.layers)

    @property
    def columns(self) -> int:
        """The number of cells across."""
        return len(self.layers) if self.layers_across else len(self.heads)

    @property
    def directions(self) -> str:
        """What runs where, for a caption."""
        return "layers across, heads down" if self.layers_across else "layers down, heads across"

    def place(self, layer: int, head: int) -> tuple[int, int]:
        """Return the column and the row of the head at an index of `layers` and of `heads`."""
        return (layer, head) if self.layers_across else (head, layer)

    def arrange(self, values: Tensor) -> Tensor:
        """Arrange numbers (layers, heads, …) as (rows, columns, …)."""
        return values.transpose(0, 1) if self.layers_across else values

    def draw(self, page: Page, corner: Place, cell: Pair, values: Tensor, **image: Any) -> Axes:
        """Draw values (layers, heads, …) as cells (across, down) from a corner (left, top)."""
        ax = page.axes(*corner, cell[0] * self.columns, cell[1] * self.rows)
        extent = (0, self.columns, self.rows, 0)
        ax.imshow(self.arrange(values).numpy(), aspect="auto", extent=extent, **image)
        self.number_sides(ax, cell)
        return ax

    def number_sides(self, ax: Axes, cell: Pair, middle: Place = (0.5, 0.5)) -> None:
        """Number the layers and the heads; see `number_axis`, across and down."""
        sides = [("layer", self.layers), ("head", self.heads)]
        (across, columns), (down, rows) = sides if self.layers_across else sides[::-1]
        number_axis(ax.xaxis, columns, cell[0], across, middle[0])
        number_axis(ax.yaxis, rows, cell[1], down, middle[1])


def number_axis(
    axis: Axis, numbers: Sequence[int], cell: float, name: str = "", middle: float = 0.5
) -> None:
    """Number cells, of a size in inches, beside their middle, with gaps where they have no room."""
    every = math.ceil(1.6 * SMALL_SIZE / 72 / cell)
    labels = [str(number) for number in numbers[::every]]
    axis.set_ticks(np.arange(0, len(numbers), every) + middle, labels, fontsize=SMALL_SIZE)
    axis.set_tick_params(length=0)
    axis.set_label_text(name, color=theme().muted)
