"""Texts → the statistics of every head, beside those of shuffled tokens and of even weights."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import torch
from torch import Tensor

from attnviz.analyses.survey.batches import batches
from attnviz.analyses.survey.corpus import Text
from attnviz.analyses.survey.result import HeadName
from attnviz.analyses.survey.statistics import Measure, Tokens, most
from attnviz.capture import Together, read_together
from attnviz.inputs import pad_together, padded
from attnviz.models.checkpoint import Checkpoint
from attnviz.results import AttentionRecord
from attnviz.runtime.memory import give_back

Encoding: TypeAlias = "Mapping[str, Sequence[int]]"
TOKENS = 2048  # of a batch, padding among them


@dataclass(frozen=True)
class Read:
    """A text that a tokenizer has read; `number` is its place in the corpus, from 0."""

    number: int
    text: str
    encoding: Encoding

    @property
    def as_text(self) -> Text:
        """The text without what the tokenizer made of it."""
        return Text(self.number, self.text)


@dataclass(frozen=True, eq=False)
class Measured:
    """Statistics of K heads on N texts, each (N, K, S) float32, in the order of STATISTICS.

    numbers : of the texts in their corpus. tokens : how many each has. value : as the model reads
    it. shuffled : with its tokens in another order, special ones left where they are. even : where
    each query gives the same to every key that it may read, as much in all as it does.
    differences : (K,), of some of the texts, the largest from what follows from the model's own
    weights, as a share of the most that a statistic can be; NaN where the model does not tell
    these. compared : how many these texts are.
    """

    numbers: tuple[int, ...]
    tokens: tuple[int, ...]
    heads: tuple[HeadName, ...]
    value: Tensor
    shuffled: Tensor
    even: Tensor
    differences: Tensor
    compared: int


@dataclass(frozen=True, eq=False)
class Meter:
    """Measures the heads of one model.

    known : the attentions of any one text, as `capture` found them. seed : of the shuffles.
    """

    checkpoint: Checkpoint
    known: Sequence[AttentionRecord]
    seed: int = 0

    @cached_property
    def heads(self) -> tuple[HeadName, ...]:
        """The heads, in the order in which the model runs."""
        return tuple(
            HeadName(record.stack, record.layer, head)
            for record in self.known
            for head in range(record.heads)
        )

    @cached_property
    def _stops(self) -> Tensor:
        """The tokens that are a period or a comma, whatever marks a blank before them."""
        assert self.checkpoint.tokenizer is not None
        vocabulary = self.checkpoint.tokenizer.get_vocab().items()
        ids = {id for token, id in vocabulary if token.lstrip("\u0120\u2581") in (".", ",")}
        return torch.tensor(sorted(ids), device=self.checkpoint.device)

    def measure(self, texts: Sequence[Read]) -> Measured:
        """Measure every head on each text; what is measured beside it changes rounding only."""
        lengths = [len(each.encoding["input_ids"]) for each in texts]
        order = list(batches(lengths, TOKENS // 2))  # each text is read twice
        found = [self._measure_batch([texts[at] for at in batch]) for batch in order]
        back = torch.tensor([at for batch in order for at in batch]).argsort()
        give_back()
        *numbers, differences = zip(*found, strict=True)
        value, shuffled, even = (torch.cat(each)[back] for each in numbers)
        return Measured(
            tuple(each.number for each in texts),
            tuple(lengths),
            self.heads,
            *(value, shuffled, even),
            differences=torch.stack(differences).amax(0),
            compared=len(order),
        )

    def _measure_batch(self, texts: Sequence[Read]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return statistics (N, K, S) of texts, shuffled ones and even weights; differences (K,).

        The first text, the shortest and so the one with most padding, is compared.
        """
        plain = [each.encoding for each in texts]
        mixed = [shuffled(each.encoding, f"{self.seed} {each.number}") for each in texts]
        inputs, tokens = self.batch(plain + mixed)
        N = len(texts)
        measure, measure_even, measure_own = (
            Measure(tokens),
            Measure(tokens[:N]),
            Measure(tokens[:1]),
        )
        found: list[Tensor] = []
        even: list[Tensor] = []
        differences: list[Tensor] = []

        def take(attention: Together) -> None:
            def even_weights(rows: slice) -> Tensor:
                even = _even(attention.readable(rows), tokens.real[:N])
                if attention.sinks is None:
                    return even
                return even * attention.weights(rows)[:N].sum(-1, keepdim=True)  # less than 1

            values = measure(attention.weights).cpu()
            found.append(values)
            even.append(measure_even(even_weights).expand_as(values[:N]).cpu())
            if attention.own is None:
                differences.append(torch.full(values.shape[1:2], torch.nan))
            else:
                own = measure_own(attention.own).cpu()
                differences.append(_apart(values[0], own[0], len(plain[0]["input_ids"])))

        read_together(self.checkpoint.module, inputs, self.known, take)
        both = torch.cat(found, dim=1)
        return both[:N], both[N:], torch.cat(even, dim=1), torch.cat(differences)

    def batch(self, encodings: Sequence[Encoding]) -> tuple[dict[str, Tensor], Tokens]:
        """Return texts as the model takes them together, and what the positions are."""
        inputs = pad_together(self.checkpoint, encodings)
        ids = inputs["input_ids"]
        masks = [each["special_tokens_mask"] for each in encodings]
        special = padded(masks, 0).bool().to(ids.device)
        lengths = torch.tensor([len(mask) for mask in masks], device=ids.device)
        real = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
        return inputs, Tokens(ids, real, special, torch.isin(ids, self._stops) & real & ~special)


def shuffled(encoding: Encoding, seed: str) -> Encoding:
    """Return the same tokens in another order; special ones stay where they are."""
    ids = list(encoding["input_ids"])
    places = [at for at, special in enumerate(encoding["special_tokens_mask"]) if not special]
    others = places.copy()
    random.Random(seed).shuffle(others)
    for at, other in zip(places, others, strict=True):
        ids[at] = encoding["input_ids"][other]
    return {**encoding, "input_ids": ids}


def _even(readable: Tensor, real: Tensor) -> Tensor:
    """Return weights that are the same for every key that a query may read, (N, 1, R, T).

    readable : (1 or more than N, R, T). real : (N, T), False for padding.
    """
    seen = (readable[: len(real)] & real[:, None])[:, None]
    return seen / seen.sum(-1, keepdim=True).clamp(min=1)


def _apart(ours: Tensor, own: Tensor, length: int) -> Tensor:
    """Return the largest difference of statistics (H, S) of each head, as shares of the most."""
    unlike = ours.isnan() != own.isnan()
    apart = ((ours - own).abs() / most(length)).nan_to_num(0.0)
    return apart.masked_fill(unlike, torch.inf).amax(-1)
