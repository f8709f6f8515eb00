"""Where each head of a model stands in a figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from torch import Tensor

from attnviz.figures.layout import Page
from attnviz.figures.scale import signed_norm
from attnviz.figures.style import AXIS_ROOM, SMALL_SIZE, theme


@dataclass(frozen=True)
class HeadGrid:
    """A cell for each head: the longer of layers and heads runs across, to fit a page.

    layers, heads : their numbers, as they are written along the sides.
    """

    layers: Sequence[int]
    heads: Sequence[int]

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

    def number_sides(
        self, ax: Axes, cell: tuple[float, float], middle: tuple[float, float] = (0.5, 0.5)
    ) -> None:
        """Number the layers and the heads; see `number_axis`, across and down."""
        sides = [("layer", self.layers), ("head", self.heads)]
        named = sides if self.layers_across else sides[::-1]
        for axis, (name, numbers), room, at in zip(
            (ax.xaxis, ax.yaxis), named, cell, middle, strict=True
        ):
            number_axis(axis, numbers, room, name, at)


def number_axis(
    axis: Axis, numbers: Sequence[int], cell: float, name: str = "", middle: float = 0.5
) -> None:
    """Number the cells along one axis, with gaps where there is little room.

    cell : its size in inches. middle : what the numbers stand beside, as a share of the cell.
    """
    every = math.ceil(1.6 * SMALL_SIZE / 72 / cell)
    labels = [str(number) for number in numbers[::every]]
    axis.set_ticks(np.arange(0, len(numbers), every) + middle, labels, fontsize=SMALL_SIZE)
    axis.set_tick_params(length=0)
    axis.set_label_text(name, color=theme().muted)


def draw_effects(
    page: Page,
    effects: Tensor,
    place: tuple[float, float],
    room: float,
    *,
    unit: str,
    raises: str,
    estimated: Tensor | None = None,
) -> float:
    """Draw what is lost without each head (L, H), with a key below; return the lower edge.

    Heads without a number are left white.

    place : the left and the upper edge. room : inches across. raises : what a head does without
    which something is lost. estimated : which numbers are estimates, (L, H); they have a dot.
    """
    left, top = place
    layers, heads = effects.shape
    grid = HeadGrid(range(layers), range(heads))
    across = min(0.22, (room - AXIS_ROOM) / grid.columns)
    down = min(0.22, max(across, 0.1), 3.0 / grid.rows)
    ax = page.axes(left + AXIS_ROOM, top, across * grid.columns, down * grid.rows)
    scale = signed_norm(effects.flatten().tolist())
    cells = grid.arrange(effects).numpy()
    extent = (0, grid.columns, grid.rows, 0)
    ax.imshow(cells, cmap=theme().values, norm=scale, aspect="auto", extent=extent)
    if estimated is not None and estimated.any():
        dots = np.array([grid.place(*cell) for cell in estimated.nonzero().tolist()]).T + 0.5
        ax.plot(*dots, ".", color=theme().muted, markersize=1.5, clip_on=False)
    grid.number_sides(ax, (across, down))
    key = f"red: {raises} (at most {scale.vmax:.2g} {unit})"
    key += "; blue: the head lowers it" if (effects < 0).any() else ""
    if estimated is not None and estimated.any():
        key += "; dots: estimated from the gradient"
    bottom = top + down * grid.rows + AXIS_ROOM
    return page.paragraph(left + AXIS_ROOM, bottom, key, room - AXIS_ROOM)
