"""The tokens of an encoder and of its decoder in one row: the source, then the target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from attnviz.errors import ModelError
from attnviz.results import AttentionResult

_DECODER = "decoder_"  # begins the names of the inputs of a decoder
_ALL = slice(0, None)


class Place(NamedTuple):
    """Where the queries and the keys of an attention are among all tokens."""

    queries: slice = _ALL
    keys: slice = _ALL

    def within(self, gate: Tensor) -> Tensor:
        """Return the part of a gate (…, T, T) that concerns this attention, (…, m, n)."""
        return gate[..., self.queries, self.keys]

    def spread(self, numbers: Tensor, T: int) -> Tensor:
        """Return numbers of the keys (…, n) as numbers of all tokens, (…, T), 0 elsewhere."""
        spread = numbers.new_zeros(*numbers.shape[:-1], T)
        spread[..., self.keys] = numbers
        return spread

    def embed(self, weights: Tensor, T: int) -> Tensor:
        """Return weights (H, m, n) between all tokens, (H, T, T).

        Tokens that are no queries keep their vectors: they attend to themselves.
        """
        embedded = torch.eye(T, dtype=weights.dtype, device=weights.device)
        embedded = embedded.repeat(len(weights), 1, 1)
        embedded[:, self.queries] = self.spread(weights, T)
        return embedded


EVERYWHERE = Place()  # of every attention in a model with one stack


@dataclass(frozen=True)
class Stacks:
    """The encoder and the decoder of a model, and what each attention reads.

    Attributes
    ----------
    source : the number of tokens of the source, which the encoder reads. Those of the target follow
        them.
    attentions : by the path of the attention's module, whether its queries, and its keys, are of
        the target.
    """

    source: int
    attentions: Mapping[str, tuple[bool, bool]]

    @classmethod
    def of(cls, result: AttentionResult, source: int, target: int) -> Stacks:
        """Return the stacks of a model that has read a source and a target of so many tokens."""
        sides = {"encoder": (False, False), "decoder": (True, True), "cross": (True, False)}
        attentions = {}
        for record in result.records:
            side = sides.get(record.stack, (False, False))
            lengths = tuple(target if of_target else source for of_target in side)
            if record.stack not in sides or record.weights().shape[-2:] != lengths:
                raise ModelError(
                    f"{record.path} of {result.provenance.model} is the attention of neither an "
                    "encoder nor a decoder, nor from one to the other. Choose another kind of "
                    "model."
                )
            attentions[record.path] = side
        return cls(source, attentions)

    def place(self, path: str) -> Place:
        """Return the place of an attention."""
        sides = slice(0, self.source), slice(self.source, None)
        queries, keys = self.attentions[path]
        return Place(sides[queries], sides[keys])


def token_ids(inputs: Mapping[str, Tensor]) -> Tensor:
    """Return the ids of all tokens that a model reads, (N, T): the source, then the target."""
    ids = [inputs[name] for name in ("input_ids", f"{_DECODER}input_ids") if name in inputs]
    return torch.cat(ids, dim=1)


def with_token_ids(inputs: Mapping[str, Tensor], ids: Tensor) -> dict[str, Tensor]:
    """Return inputs with other ids of all tokens, (N, T)."""
    source = inputs["input_ids"].shape[1]
    other = {**inputs, "input_ids": ids[:, :source]}
    if f"{_DECODER}input_ids" in inputs:
        other[f"{_DECODER}input_ids"] = ids[:, source:]
    return other


def copies_of(inputs: Mapping[str, Tensor], count: int) -> dict[str, Tensor]:
    """Return the inputs of so many runs of one text."""
    return {name: tensor.expand(count, *tensor.shape[1:]) for name, tensor in inputs.items()}


def without_tokens(inputs: Mapping[str, Tensor], positions: set[int]) -> dict[str, Tensor]:
    """Return inputs without the tokens at some positions.

    A mask (1, …, T, T) loses rows and columns.
    """
    source, total = inputs["input_ids"].shape[1], token_ids(inputs).shape[1]
    rest = [
        torch.tensor([n for n in range(length) if first + n not in positions])
        for first, length in ((0, source), (source, total - source))
    ]

    def shortened(name: str, tensor: Tensor) -> Tensor:
        of_decoder = name.startswith(_DECODER)
        kept = rest[of_decoder].to(tensor.device)
        for dim in (1,) if tensor.dim() < 4 else (-2, -1):
            if tensor.shape[dim] == (total - source if of_decoder else source):
                tensor = tensor.index_select(dim, kept)
        return tensor

    return {name: shortened(name, tensor) for name, tensor in inputs.items()}
