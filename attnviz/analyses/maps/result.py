"""The maps that are drawn from captured attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import attnviz
from attnviz.results import AgreementReport, AxisGeometry, Provenance
from attnviz.results.base import Columns, Result, Rules, fits, is_image, proof, stacked
from attnviz.results.words import literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from rich.console import Console, ConsoleOptions, RenderResult

_RAMP = " .:-=+*#%@"  # light to dark, where there are no colors
_LABEL = 16  # cells of a row's label at most


@dataclass(frozen=True, eq=False)
class AttentionMap(Result):
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
        """The weight at which colors end: the largest that a word gives.

        What a special token gives says little, and is often so much that all else looks pale.
        """
        words = ~torch.tensor(self.special_rows or (False,) * len(self.rows))
        weights = self.weights.nan_to_num()  # nan cells have no color
        return float(weights[words].max() if words.any() else weights.max())

    def _rules(self) -> Rules:
        m, n = len(self.rows), len(self.columns)
        yield (
            "a weight for each pair of labels",
            fits(self.weights, {m}, {n})
            and self.weights.is_floating_point()
            and self.weights.numel() > 0,
        )
        yield (
            "special tokens among its labels",
            len(self.special_rows) in (0, m) and len(self.special_columns) in (0, n),
        )
        yield "a place for each label", self.sides[0].fits(m) and self.sides[1].fits(n)
        yield "an image in colors", is_image(self.image)

    def _number_rules(self) -> Rules:
        yield _numbers_if_verified(self)

    def to_arrays(self) -> dict[str, Tensor]:
        """Return the weights (m, n), and the image where there is one."""
        return {"weights": self.weights} | ({} if self.image is None else {"image": self.image})

    def labels(self) -> dict[str, list[str]]:
        """Return the labels of the rows and columns."""
        return {"rows": list(self.rows), "columns": list(self.columns)}

    def about(self) -> dict[str, Any]:
        """Return which head it is, where rows and columns lie, and the proof."""
        which = {"stack": self.stack, "layer": self.layer, "heads": list(self.heads)}
        return {**which, **_places(self.sides), **proof(self)}

    def columns_of_table(self) -> Columns:
        """Return one row for each weight."""
        return stacked({"query": self.rows, "key": self.columns}, {"weight": self.weights})

    def plot(self, **keywords: Any) -> Axes:
        """Draw the map: see `attnviz.plot.heatmap`."""
        return attnviz.plot.heatmap(self, **keywords)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Print blocks of color, or of a ramp of characters where there are no colors."""
        from rich.cells import cell_len, set_cell_size
        from rich.style import Style
        from rich.text import Text

        from attnviz.figures.style import weight_colors

        weights = self.weights.float().nan_to_num()
        top = max(self.top, 1e-12)
        width = 2 if weights.shape[1] < 10 else 3
        labels = [literal(label, _LABEL) for label in self.rows]
        indent = max(map(cell_len, labels)) + 3
        heads = ", ".join(map(str, self.heads))
        yield Text(f"layer {self.layer}, head {heads}, {self.provenance.model}", "bold")
        if indent + 1 + width * weights.shape[1] > options.max_width:
            what = "words" if self.sides == (AxisGeometry(), AxisGeometry()) else "positions"
            what = "parts of the text" if self.sides[0].cell > 1 else what
            yield Text(f"{len(labels)} {what} are too many for this terminal; see the file")
            return
        numbers = "".join(f"{number:>{width}}" for number in range(len(self.columns)))
        yield Text(f"{'':{indent + 1}}{numbers}", "dim")
        colors = weight_colors()
        shades = (weights / top).clamp(max=1).tolist()
        for number, (label, row) in enumerate(zip(labels, shades, strict=True)):
            line = Text(f"{number:>2} {set_cell_size(label, indent - 3)} ")
            for shade in row:
                if console.no_color or not console.is_terminal:
                    line.append(_RAMP[min(int(shade * len(_RAMP)), len(_RAMP) - 1)] * width)
                else:
                    red, green, blue, _ = colors(shade, bytes=True)
                    line.append(" " * width, Style(bgcolor=f"rgb({red},{green},{blue})"))
            yield line
        yield Text(f"darkest: {top:.2f}; rows are queries, columns keys", "dim")
        for note in self.notes:
            yield Text(note, "dim")


@dataclass(frozen=True, eq=False)
class HeadMaps(Result):
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

    def _rules(self) -> Rules:
        m, n, weights = len(self.rows), len(self.columns), self.weights
        heads = weights.shape[1] if weights.dim() == 4 else 0
        yield (
            "a weight for each pair of labels",
            fits(weights, {len(self.layers)}, {heads}, {m}, {n})
            and weights.is_floating_point()
            and weights.numel() > 0,
        )
        yield "a number for each head", len(self.heads) in (0, heads)
        yield "a place for each label", self.sides[0].fits(m) and self.sides[1].fits(n)

    def _number_rules(self) -> Rules:
        yield _numbers_if_verified(self)

    def to_arrays(self) -> dict[str, Tensor]:
        """Return the weights (layers, heads, rows, columns)."""
        return {"weights": self.weights}

    def labels(self) -> dict[str, list[str]]:
        """Return the labels of the rows and columns."""
        return {"rows": list(self.rows), "columns": list(self.columns)}

    def about(self) -> dict[str, Any]:
        """Return which layers they are, where rows and columns lie, and the proof."""
        which = {"stack": self.stack, "layers": list(self.layers)}
        return {**which, **_places(self.sides), **proof(self)}

    def columns_of_table(self) -> Columns:
        """Return one row for each weight."""
        return stacked(
            {
                "layer": self.layers,
                "head": range(self.weights.shape[1]),
                "query": self.rows,
                "key": self.columns,
            },
            {"weight": self.weights},
        )

    def plot(self, **keywords: Any) -> Figure:
        """Draw all maps: see `attnviz.plot.heads`."""
        return attnviz.plot.heads(self, **keywords)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Print how many maps there are, and of what."""
        from rich.text import Text

        layers, heads, m, n = self.weights.shape
        size = f"{layers} × {heads} heads, {m} × {n} weights each"
        yield Text(f"{self.provenance.model}: {size}", "bold")
        yield Text(self.agreement.summary())


def _numbers_if_verified(maps: AttentionMap | HeadMaps) -> tuple[str, bool]:
    return (
        "numbers where it says that they were verified",
        maps.agreement.verdict != "verified" or bool(maps.weights.isfinite().any()),
    )


def _places(sides: tuple[AxisGeometry, AxisGeometry]) -> dict[str, Any]:
    """Return where rows and columns lie in an image, a sound or a long text, if they do."""
    named = list(zip(("rows", "columns"), sides, strict=True))
    tokens: dict[str, Any] = {
        f"tokens_of_{name}": {"first": side.start, "in_each": side.cell}
        for name, side in named
        if side.landmarks
    }
    return tokens | {
        f"{kind}_of_{name}": list(places)
        for name, side in named
        for kind, places in (("patches", side.patches), ("seconds", side.seconds))
        if places is not None
    }
