"""Where each head of a model stands in a figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from torch import Tensor

from attnviz.figures.style import SMALL_SIZE, theme


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
        """Number the layers and the heads, with gaps where there is little room.

        cell : its width and height in inches. middle : what the numbers stand beside, as a share of
        the cell, across and down.
        """
        sides = [("layer", self.layers), ("head", self.heads)]
        across, down = sides if self.layers_across else sides[::-1]
        for axis, (_, numbers), room, place in zip(
            (ax.xaxis, ax.yaxis), (across, down), cell, middle, strict=True
        ):
            every = math.ceil(1.6 * SMALL_SIZE / 72 / room)
            axis.set_ticks(
                np.arange(0, len(numbers), every) + place,
                [str(number) for number in numbers[::every]],
                fontsize=SMALL_SIZE,
            )
        ax.tick_params(length=0)
        ax.set_xlabel(across[0], color=theme().muted)
        ax.set_ylabel(down[0], color=theme().muted)
