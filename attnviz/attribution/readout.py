"""The numbers of a model's output that are explained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from attnviz.attribution.stacks import Place, Stacks


@dataclass(frozen=True, eq=False)
class Readout:
    """What is read off the output of a model: here the vector of a word.

    A subclass reads other numbers, such as the logit of a token.
    """

    module: nn.Module  # the model that runs
    rows: tuple[int, ...]  # the positions at which the output is read
    # Of an encoder and a decoder, whose output is read; None for a model with one stack.
    stacks: Stacks | None = field(default=None, kw_only=True)

    @classmethod
    def word(cls, module: nn.Module, rows: Sequence[int]) -> Readout:
        """Return the readout of a word's last hidden state, the mean over its pieces."""
        return cls(base_of(module), tuple(rows))

    @property
    def positions(self) -> tuple[int, ...]:
        """The positions among all tokens at which the output is read."""
        source = 0 if self.stacks is None else self.stacks.source
        return tuple(source + row for row in self.rows)

    @property
    def bases(self) -> list[nn.Module]:
        """The models without a head that have blocks: one, or the encoder and the decoder."""
        if self.stacks is None:
            return [base_of(self.module)]
        module: Any = self.module
        return [module.get_encoder(), module.get_decoder()]

    @property
    def places(self) -> dict[nn.Module, Place]:
        """The place of each attention module among all tokens; none in a model with one stack."""
        if self.stacks is None:
            return {}
        paths = self.stacks.attentions
        return {self.module.get_submodule(path): self.stacks.place(path) for path in paths}

    def reads(self, place: Place) -> bool:
        """Return whether the position that is read is among the queries of an attention."""
        return self.stacks is None or place.queries.start == self.stacks.source

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
        """Return the same readout in a text without the tokens at some positions.

        Where the token itself is deleted, the one before it takes its place.
        """

        def moved(place: int) -> int:
            return place - sum(position < place for position in positions)

        source = 0 if self.stacks is None else self.stacks.source
        ends = [moved(place + 1) - 1 for place in self.positions]
        rows = tuple(max(end - moved(source), 0) for end in ends)
        stacks = None if self.stacks is None else replace(self.stacks, source=moved(source))
        return replace(self, rows=rows, stacks=stacks)


def base_of(module: nn.Module) -> nn.Module:
    """Return a model without its head."""
    base: nn.Module = getattr(module, "base_model", module)
    return base


def unembedding_of(module: nn.Module) -> nn.Module | None:
    """Return the layer that gives the logits of tokens; None if the model predicts no tokens."""
    unembedding: nn.Module | None = getattr(module, "get_output_embeddings", lambda: None)()
    return unembedding
