"""A text, and what is explained in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from attnviz.attribution.readout import Readout
from attnviz.attribution.stacks import (
    EVERYWHERE,
    Place,
    copies_of,
    token_ids,
    with_token_ids,
    without_tokens,
)
from attnviz.errors import InputError
from attnviz.pipeline.attend import Model
from attnviz.results import AttentionRecord, AttentionResult


@dataclass(frozen=True, eq=False)
class Target:
    """A text, and what is read off the model's output for it.

    In an encoder–decoder its tokens are those of the source, then those of the target.
    """

    model: Model
    inputs: Mapping[str, Tensor]  # of the model for the text, (1, T) each
    special: tuple[bool, ...]  # which tokens are special
    readout: Readout
    sink: int | None = None  # the position of an ordinary token that every reference keeps

    @property
    def ids(self) -> Tensor:
        """The ids of the tokens, (1, T)."""
        return token_ids(self.inputs)

    @property
    def rows(self) -> list[int]:
        """The positions at which the output is read."""
        return list(self.readout.rows)

    def outputs(self, count: int, ids: Tensor | None = None) -> Tensor:
        """Return what is read in `count` copies of the text, or of other `ids` (N, T), (N, d)."""
        copies = copies_of(self.inputs, count)
        return self.readout.run(copies if ids is None else with_token_ids(copies, ids))

    def without(self, positions: Sequence[int]) -> Target:
        """Return the same target in the text without the tokens at some positions."""
        rest = [position for position in range(self.ids.shape[1]) if position not in positions]
        return replace(
            self,
            inputs=without_tokens(self.inputs, set(positions)),
            special=tuple(self.special[position] for position in rest),
            readout=self.readout.without(positions),
            sink=self.sink,  # the first token, which no one deletes
        )

    @property
    def visible(self) -> Tensor:
        """Which tokens every reference keeps: special ones, the sink, those explained, (T,)."""
        visible = torch.tensor(self.special, device=self.ids.device)
        visible[list(self.readout.fixed)] = True
        if self.sink is not None:
            visible[self.sink] = True
        return visible

    def masked_ids(self) -> Tensor:
        """Return the ids with [MASK] in place of all tokens that are not kept, (1, T)."""
        return self.ids.masked_fill(~self.visible, mask_token(self.model))


@dataclass(frozen=True, eq=False, kw_only=True)
class Score(Target):
    """One number of a text: what is read, along a direction."""

    direction: Tensor  # in the space of what is read, (d,)
    result: AttentionResult  # the attention of the text
    gate: Tensor | None  # which keys each query may attend to in the reference, (T, T)
    computed: dict[str, Tensor] = field(default_factory=dict)  # attributions by method, (T,)

    @property
    def attentions(self) -> list[tuple[AttentionRecord, Place]]:
        """The attentions by which the explained position reads, each with its place."""
        stacks = self.readout.stacks
        if stacks is None:
            return [(record, EVERYWHERE) for record in self.result.records]
        placed = [(record, stacks.place(record.path)) for record in self.result.records]
        return [(record, place) for record, place in placed if self.readout.reads(place)]

    @property
    def twice(self) -> dict[str, Tensor]:
        """The inputs of two runs of the text, (2, T) each."""
        return {name: torch.cat([tensor, tensor]) for name, tensor in self.inputs.items()}

    def project(self, numbers: Tensor) -> Tensor:
        """Return the sum over runs of what is read (N, d) along the direction, ()."""
        return (numbers @ self.direction.to(numbers)).sum()


def mask_token(model: Model) -> int:
    """Return the id of the model's mask token, or raise InputError if there is none."""
    token = getattr(model.tokenizer, "mask_token_id", None)
    if token is None:
        raise InputError(
            f"{model.name} has no mask token. Choose another reference or intervention."
        )
    return int(token)
