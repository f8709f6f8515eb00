"""The exact parts of what moved a vector, and how nearly they add up to the whole."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from attnviz.results.base import Savable


@dataclass(frozen=True, eq=False)
class ShiftDecomposition(Savable):
    """The difference of two runs at one position, split over layers, heads and sources.

    All numbers are lengths along `direction`, in units of the hidden state; L layers, H heads, T
    sources.

    Attributes
    ----------
    value : (L, H, T), what came because a source's value differs. routing : (L, H, T), what came
        because the position attends to it differently.
    start : what was different at the position itself before the first layer.
    credit : (T,), what each source brought over all paths, also through other positions.
    total : the difference. length : its norm in all directions.
    direction : (d,), of norm 1.
    """

    value: Tensor
    routing: Tensor
    start: float
    credit: Tensor
    total: float
    length: float
    direction: Tensor

    def __repr__(self) -> str:
        """Say what it holds, without the tensors."""
        L, H, T = self.value.shape
        size = f"{L} layers × {H} heads × {T} tokens"
        return f"ShiftDecomposition({size}: {self.total:.2f}, error {self.error:.0e})"

    @property
    def table(self) -> Tensor:
        """Value and routing parts together, (L, H, T)."""
        return self.value + self.routing

    @property
    def error(self) -> float:
        """The completeness error: how far the parts miss the whole, as a share of the length."""
        return abs(self.table.sum().item() + self.start - self.total) / self.length

    @property
    def credit_error(self) -> float:
        """The same for the credits of all paths."""
        return abs(self.credit.sum().item() - self.total) / self.length


@dataclass(frozen=True, eq=False)
class ResidualStream(Savable):
    """The way of one position from its static to its contextual vector, as an account.

    Weights, the scales of norms and the gates of activations are taken as they were; then the
    network is affine, and every part is carried to the end. Numbers are as in `ShiftDecomposition`.

    Attributes
    ----------
    attention : (L, H, T), what each head brought from each source. mlp : (L,), what each MLP made.
    bias : what all biases after the values add. own : what became of the static vector, less it.
    total : the shift along the direction. length : its norm in all directions. direction : (d,).
    """

    attention: Tensor
    mlp: Tensor
    bias: float
    own: float
    total: float
    length: float
    direction: Tensor

    def __repr__(self) -> str:
        """Say what it holds, without the tensors."""
        return (
            f"ResidualStream(attention {self.attention.sum():.2f}, MLPs {self.mlp.sum():.2f}, "
            f"biases {self.bias:.2f}, own {self.own:.2f}: {self.total:.2f}, error {self.error:.0e})"
        )

    @property
    def error(self) -> float:
        """The completeness error: how far the parts miss the whole, as a share of the length."""
        parts = self.attention.sum().item() + self.mlp.sum().item() + self.bias + self.own
        return abs(parts - self.total) / self.length
