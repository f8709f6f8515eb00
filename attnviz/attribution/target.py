"""A text, the numbers of the output that are explained, and what each attention reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor, nn

from attnviz.capture.watch import restoring
from attnviz.errors import InputError, ModelError
from attnviz.pipeline import Unrecorded
from attnviz.pipeline.attend import Model
from attnviz.results import AttentionRecord, AttentionResult

_DECODER = "decoder_"  # begins the names of the inputs of a decoder
_ALL = slice(0, None)


class Place(NamedTuple):
    """Where the queries and the keys of an attention are among all tokens."""

    queries: slice = _ALL
    keys: slice = _ALL

    def spread(self, numbers: Tensor, T: int) -> Tensor:
        """Return numbers of the keys (…, n) as numbers of all tokens, (…, T), 0 elsewhere."""
        spread = numbers.new_zeros(*numbers.shape[:-1], T)
        spread[..., self.keys] = numbers
        return spread

    def embed(self, weights: Tensor, T: int) -> Tensor:
        """Return weights (H, T, T) of all tokens; what is no query attends to itself."""
        embedded = torch.eye(T, dtype=weights.dtype, device=weights.device)
        embedded = embedded.repeat(len(weights), 1, 1)
        embedded[:, self.queries] = self.spread(weights, T)
        return embedded


EVERYWHERE = Place()  # of every attention in a model with one stack


@dataclass(frozen=True)
class Stacks:
    """The encoder and the decoder of a model, and what each attention reads; none in others."""

    source: int = 0  # the number of tokens that the encoder reads; those of the target follow them
    # By the path of the attention's module, whether its queries, and its keys, are of the target.
    attentions: Mapping[str, tuple[bool, bool]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether the model has an encoder and a decoder."""
        return len(self.attentions) > 0

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
        """Return the place of an attention among all tokens."""
        if not self:
            return EVERYWHERE
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


@dataclass(frozen=True, eq=False)
class Readout:
    """What is read off a model's output: a word's vector here, other numbers in subclasses."""

    module: nn.Module  # the model that runs
    rows: tuple[int, ...]  # the positions at which the output is read
    stacks: Stacks = field(default_factory=Stacks, kw_only=True)  # of the model, if it has two

    @classmethod
    def word(cls, module: nn.Module, rows: Sequence[int]) -> Readout:
        """Return the readout of a word's last hidden state, the mean over its pieces."""
        return cls(base_of(module), tuple(rows))

    @property
    def positions(self) -> tuple[int, ...]:
        """The positions among all tokens at which the output is read."""
        return tuple(self.stacks.source + row for row in self.rows)

    @property
    def bases(self) -> list[nn.Module]:
        """The models without a head that have blocks: one, or the encoder and the decoder."""
        if not self.stacks:
            return [base_of(self.module)]
        module: Any = self.module
        return [module.get_encoder(), module.get_decoder()]

    @property
    def places(self) -> dict[nn.Module, Place]:
        """The place of each attention module among all tokens; none in a model with one stack."""
        paths = self.stacks.attentions
        return {self.module.get_submodule(path): self.stacks.place(path) for path in paths}

    def reads(self, place: Place) -> bool:
        """Return whether the position that is read is among the queries of an attention."""
        return bool(place.queries.start == self.stacks.source)

    @property
    def fixed(self) -> tuple[int, ...]:
        """The positions that no reference changes: those of the word itself."""
        return self.rows

    @property
    def is_pooled(self) -> bool:
        """Whether the output is a mean over the positions of words that a reference changes."""
        return len(self.rows) > 1 and not self.fixed

    def __call__(self, output: Tensor) -> Tensor:
        """Return what is read of each run, (N, d), from the first output of the model."""
        return output[:, list(self.rows)].mean(1)

    def read(self, outputs: Any) -> Tensor:
        """Return what is read of each run, (N, d), from the outputs of the model."""
        return self(outputs[0])

    def run(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Run the model and return what is read of each text, (N, d)."""
        with torch.no_grad(), self.alone():
            return self.read(self.module(**inputs))

    def alone(self) -> AbstractContextManager[Any]:
        """Leave the logits of other positions undefined: they take longer than many blocks."""
        unembedding, rows = unembedding_of(self.module), list(self.rows)
        if unembedding is None:
            return nullcontext()
        own: Callable[[Tensor], Tensor] = unembedding.forward

        def of_rows(states: Tensor) -> Tensor:
            if states.dim() != 3 or len(rows) >= states.shape[1]:
                return own(states)
            logits = own(states[:, rows])
            every = logits.new_empty(*states.shape[:2], logits.shape[-1])
            every[:, rows] = logits
            return every

        return patch.object(unembedding, "forward", of_rows)

    def without(self, positions: Sequence[int]) -> Readout:
        """Return the readout without some tokens; the one before takes the place of its own."""

        def moved(place: int) -> int:
            return place - sum(position < place for position in positions)

        source = moved(self.stacks.source)
        ends = [moved(place + 1) - 1 for place in self.positions]
        rows = tuple(dict.fromkeys(max(end - source, 0) for end in ends))
        return replace(self, rows=rows, stacks=replace(self.stacks, source=source))


def base_of(module: nn.Module) -> nn.Module:
    """Return a model without its head."""
    base = getattr(module, "base_model", module)
    return module if base is module else base_of(base)


def unembedding_of(module: nn.Module) -> nn.Module | None:
    """Return the layer that gives the logits of tokens; None if the model predicts no tokens."""
    return getattr(module, "get_output_embeddings", lambda: None)()


@dataclass(frozen=True, eq=False)
class Target:
    """A text, and what is read off the output; of two stacks, the source's tokens come first."""

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

    @property
    def ranked(self) -> set[int]:
        """The positions of tokens that are neither special, nor the sink, nor explained."""
        kept = {self.sink, *(() if self.readout.is_pooled else self.readout.positions)}
        return {n for n, flag in enumerate(self.special) if not flag and n not in kept}

    def outputs(self, count: int, ids: Tensor | None = None) -> Tensor:
        """Return what is read in `count` copies of the text, or of other `ids` (N, T), (N, d)."""
        copies = copies_of(self.inputs, count)
        return self.readout.run(copies if ids is None else with_token_ids(copies, ids))

    def as_loaded(self) -> Tensor:
        """Return what is read in the text by the model as it was loaded, (1, d), float64."""
        with restoring(self.model.module, None, seed=2):
            return self.readout.run(self.inputs).double().cpu()

    def without(self, positions: Sequence[int]) -> Target:
        """Return the same target in the text without the tokens at some positions."""
        source, total = self.inputs["input_ids"].shape[1], self.ids.shape[1]
        rest = [
            torch.tensor([n - start for n in range(start, end) if n not in positions])
            for start, end in ((0, source), (source, total))
        ]

        def shortened(name: str, tensor: Tensor) -> Tensor:  # of a mask, rows and columns
            of_decoder = name.startswith(_DECODER)
            kept = rest[of_decoder].to(tensor.device)
            for dim in (1,) if tensor.dim() < 4 else (-2, -1):
                if tensor.shape[dim] == (total - source if of_decoder else source):
                    tensor = tensor.index_select(dim, kept)
            return tensor

        return replace(
            self,
            inputs={name: shortened(name, tensor) for name, tensor in self.inputs.items()},
            special=tuple(flag for n, flag in enumerate(self.special) if n not in positions),
            readout=self.readout.without(positions),  # the sink is the first token, and stays
        )

    @property
    def visible(self) -> Tensor:
        """Which tokens every reference keeps: special ones, the sink, those explained, (T,)."""
        kept = {*self.readout.fixed, self.sink}
        visible = [special or n in kept for n, special in enumerate(self.special)]
        return torch.tensor(visible, device=self.ids.device)

    def masked_ids(self) -> Tensor:
        """Return the ids with [MASK] in place of all tokens that are not kept, (1, T)."""
        return self.ids.masked_fill(~self.visible, mask_token(self.model))


@dataclass(frozen=True, eq=False, kw_only=True)
class Score(Target):
    """One number of a text: what is read, along a direction."""

    direction: Tensor  # in the space of what is read, (d,)
    result: AttentionResult | Unrecorded  # the attention of the text
    gate: Tensor | None  # which keys each query may attend to in the reference, (T, T)
    computed: dict[str, Tensor] = field(default_factory=dict)  # attributions by method, (T,)

    @property
    def attentions(self) -> list[tuple[AttentionRecord, Place]]:
        """The attentions by which the explained position reads, each with its place."""
        readout, records = self.readout, self.result.records
        placed = [(record, readout.stacks.place(record.path)) for record in records]
        return [(record, place) for record, place in placed if readout.reads(place)]

    def project(self, numbers: Tensor) -> Tensor:
        """Return the sum over runs of what is read (N, d) along the direction, ()."""
        return (numbers @ self.direction.to(numbers)).sum()


def mask_id(model: Model) -> int | None:
    """Return the id of the model's mask token, if it has one for all that it reads."""
    token: int | None = getattr(model.tokenizer, "mask_token_id", None)
    return None if has_two_vocabularies(model) else token


def has_two_vocabularies(model: Model) -> bool:
    """Return whether the decoder has another vocabulary than the encoder."""
    target, source = model.checkpoint.target_tokenizer, model.tokenizer
    if target is source or target is None or source is None:
        return False
    return bool(target.get_vocab() != source.get_vocab())


def mask_token(model: Model) -> int:
    """Return the id of the model's mask token, or raise InputError if there is none."""
    if (token := mask_id(model)) is not None:
        return token
    raise InputError(f"{model.name} has no mask token. Choose another reference or intervention.")
