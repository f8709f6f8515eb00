"""How a side of the map is cut into tiles of lanes, a power of two, for cells of any size."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cut:
    """Tiles of one side of the map: each holds whole cells, or a part of one.

    Attributes
    ----------
    length, cell : of how many positions the side consists, and each of its cells.
    size : how many lanes a tile has, a power of two.
    """

    length: int
    cell: int
    size: int

    @classmethod
    def best(cls, length: int, cell: int, most: int) -> Cut:
        """Return tiles of `most` lanes, or of half, where clearly fewer of these stay idle."""
        full, half = cls(length, cell, most), cls(length, cell, most // 2)
        return half if half.used > 1.2 * full.used else full

    @property
    def lanes(self) -> int:
        """How many lanes a cell has, or a part of one."""
        return min(self.size, 1 << (self.cell - 1).bit_length())

    @property
    def parts(self) -> int:
        """How many tiles a cell is cut into."""
        return -(-self.cell // self.lanes)

    @property
    def cells(self) -> int:
        """How many cells a tile holds."""
        return self.size // self.lanes if self.parts == 1 else 1

    @property
    def span(self) -> int:
        """How far the tiles of a cell, or of some cells, stand apart."""
        return self.cells * self.cell if self.parts == 1 else -(-self.cell // self.parts)

    @property
    def tiles(self) -> int:
        """How many tiles there are, the parts of the last cell all among them."""
        return -(-self.length // (self.cells * self.cell)) * self.parts

    @property
    def pooled(self) -> int:
        """How many cells the pooled map has."""
        return -(-self.length // self.cell)

    @property
    def used(self) -> float:
        """Of all lanes, the part that has a position."""
        return self.cell / (self.parts * self.lanes)

    @property
    def whole(self) -> bool:
        """Whether every lane has a position, up to the end of the side."""
        return self.parts * self.lanes == self.cell
