"""A text, and what is explained in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from attnviz.attribution.readout import Readout
from attnviz.errors import InputError
from attnviz.pipeline.attend import Model
from attnviz.results import AttentionResult


@dataclass(frozen=True, eq=False)
class Target:
    """A text, and what is read off the model's output for it."""

    model: Model
    inputs: Mapping[str, Tensor]  # of the model for the text, (1, T) each
    special: tuple[bool, ...]  # which tokens are special
    readout: Readout
    sink: int | None = None  # the position of an ordinary token that every reference keeps

    @property
    def ids(self) -> Tensor:
        """The ids of the tokens, (1, T)."""
        return self.inputs["input_ids"]

    @property
    def rows(self) -> list[int]:
        """The positions at which the output is read."""
        return list(self.readout.rows)

    def outputs(self, count: int, **inputs: Tensor) -> Tensor:
        """Return what is read in `count` copies of the text, with other `inputs`, (N, d)."""
        copies = {name: tensor.expand(count, -1) for name, tensor in self.inputs.items()}
        return self.readout.run({**copies, **inputs})

    def without(self, positions: Sequence[int]) -> Target:
        """Return the same target in the text without the tokens at some positions."""
        rest = [position for position in range(self.ids.shape[1]) if position not in positions]
        return replace(
            self,
            inputs={name: tensor[:, rest] for name, tensor in self.inputs.items()},
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
