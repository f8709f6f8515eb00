"""The numbers of a model's output that are explained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class Readout:
    """What is read off the output of a model: here the vector of a word.

    A subclass reads other numbers, such as the logit of a token.
    """

    module: nn.Module  # the model that runs
    rows: tuple[int, ...]  # the positions at which the output is read

    @classmethod
    def word(cls, module: nn.Module, rows: Sequence[int]) -> Readout:
        """Return the readout of a word's last hidden state, the mean over its pieces."""
        return cls(base_of(module), tuple(rows))

    @property
    def fixed(self) -> tuple[int, ...]:
        """The positions that no reference changes: those of the word itself."""
        return self.rows

    def __call__(self, output: Tensor) -> Tensor:
        """Return what is read of each run, (N, d), from the first output of the model."""
        return output[:, list(self.rows)].mean(1)

    def run(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Run the model and return what is read of each text, (N, d)."""
        with torch.no_grad():
            return self(self.module(**inputs)[0])

    def without(self, positions: Sequence[int]) -> Readout:
        """Return the same readout in a text without the tokens at some positions."""
        moved = (row - sum(position < row for position in positions) for row in self.rows)
        return replace(self, rows=tuple(moved))


def base_of(module: nn.Module) -> nn.Module:
    """Return a model without its head."""
    base: nn.Module = getattr(module, "base_model", module)
    return base
