"""Texts → the statistics of every head, beside those of shuffled tokens and of even weights."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from attnviz.analyses.survey.corpus import Encoding, TokenizedText, batches
from attnviz.analyses.survey.result import HeadName
from attnviz.analyses.survey.statistics import Tokens, WeightStatistics, largest
from attnviz.capture import BatchedAttention, capture_batch
from attnviz.inputs import pad_texts, padded
from attnviz.models.checkpoint import Checkpoint
from attnviz.results import AttentionRecord
from attnviz.runtime.memory import release_unused

BATCH_TOKENS = 2048  # positions of a batch, with padding


@dataclass(frozen=True, eq=False)
class TextStatistics:
    """Statistics of K heads on N texts, each (N, K, S), in the order of `STATISTICS`.

    Attributes
    ----------
    numbers : tuple of int
        Of the texts in their corpus.
    tokens : tuple of int
        How many each text has.
    value : Tensor
        Of the text as the model reads it; NaN where a text has no token of the kind.
    shuffled : Tensor
        With the tokens of the text in another order, special tokens in place.
    even : Tensor
        Where each query gives all keys that it may read the same weight, as much in all.
    differences : Tensor
        (K,), on the compared texts, the largest difference from the statistics of the model's own
        weights, as a share of the largest possible value; NaN if the model does not return them.
    compared : int
        How many texts were compared.
    """

    numbers: tuple[int, ...]
    tokens: tuple[int, ...]
    value: Tensor
    shuffled: Tensor
    even: Tensor
    differences: Tensor
    compared: int


@dataclass(frozen=True, eq=False)
class HeadStatistics:
    """Measures the heads of one model.

    Attributes
    ----------
    checkpoint : Checkpoint
        The model.
    records : sequence of AttentionRecord
        The attentions of any one text.
    seed : int
        Of the shuffles.
    """

    checkpoint: Checkpoint
    records: Sequence[AttentionRecord]
    seed: int = 0

    @cached_property
    def heads(self) -> tuple[HeadName, ...]:
        """The heads, in the order in which the model runs."""
        return tuple(
            HeadName(record.stack, record.layer, head)
            for record in self.records
            for head in range(record.heads)
        )

    @cached_property
    def _punctuation_ids(self) -> Tensor:
        """The ids of periods and commas, with or without a mark of a blank before them."""
        assert self.checkpoint.tokenizer is not None
        vocabulary = self.checkpoint.tokenizer.get_vocab().items()
        ids = {id for token, id in vocabulary if token.lstrip("\u0120\u2581") in (".", ",")}
        return torch.tensor(sorted(ids), device=self.checkpoint.device)

    def measure(self, texts: Sequence[TokenizedText]) -> TextStatistics:
        """Measure every head on each text; other texts in the batch change only the rounding."""
        lengths = [len(text) for text in texts]
        order = list(batches(lengths, BATCH_TOKENS // 2))  # each text is read twice
        of_batches = [self._measure_batch([texts[index] for index in batch]) for batch in order]
        positions = torch.tensor([index for batch in order for index in batch]).argsort()
        release_unused()
        *statistics, differences = zip(*of_batches, strict=True)
        value, shuffled, even = (torch.cat(batch)[positions] for batch in statistics)
        return TextStatistics(
            numbers=tuple(text.number for text in texts),
            tokens=tuple(lengths),
            value=value,
            shuffled=shuffled,
            even=even,
            differences=torch.stack(differences).amax(0),
            compared=len(order),
        )

    def _measure_batch(
        self, texts: Sequence[TokenizedText]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return statistics (N, K, S) of texts, shuffled texts, even weights; differences (K,).

        The first text, the shortest and so the one with most padding, is compared.
        """
        plain = [text.encoding for text in texts]
        mixed = [shuffle(text.encoding, f"{self.seed} {text.number}") for text in texts]
        inputs, tokens = self.batch(plain + mixed)
        N = len(texts)
        of_all, of_plain, of_first = (
            WeightStatistics(tokens),
            WeightStatistics(tokens[:N]),
            WeightStatistics(tokens[:1]),
        )
        value: list[Tensor] = []
        even: list[Tensor] = []
        differences: list[Tensor] = []

        def add(attention: BatchedAttention) -> None:
            def even_weights(rows: slice) -> Tensor:
                even = _even(attention.readable(rows), tokens.real[:N])
                if attention.sinks is None:
                    return even
                return even * attention.weights(rows)[:N].sum(-1, keepdim=True)  # less than 1

            values = of_all(attention.weights).cpu()
            value.append(values)
            even.append(of_plain(even_weights).expand_as(values[:N]).cpu())
            if attention.model_weights is None:
                differences.append(torch.full(values.shape[1:2], torch.nan))
            else:
                own = of_first(attention.model_weights).cpu()
                differences.append(_largest_difference(values[0], own[0], len(texts[0])))

        capture_batch(self.checkpoint.module, inputs, self.records, add)
        both = torch.cat(value, dim=1)
        return both[:N], both[N:], torch.cat(even, dim=1), torch.cat(differences)

    def batch(self, encodings: Sequence[Encoding]) -> tuple[dict[str, Tensor], Tokens]:
        """Return texts as one padded input of the model, and their positions."""
        inputs = pad_texts(self.checkpoint, encodings)
        ids = inputs["input_ids"]
        masks = [encoding["special_tokens_mask"] for encoding in encodings]
        special = padded(masks, 0).bool().to(ids.device)
        lengths = torch.tensor([len(mask) for mask in masks], device=ids.device)
        real = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
        punctuation = torch.isin(ids, self._punctuation_ids) & real & ~special
        return inputs, Tokens(ids, real, special, punctuation)


def shuffle(encoding: Encoding, seed: str) -> Encoding:
    """Return the same tokens in another order; special tokens stay where they are."""
    ids = list(encoding["input_ids"])
    special = encoding["special_tokens_mask"]
    places = [index for index in range(len(ids)) if not special[index]]
    sources = places.copy()
    random.Random(seed).shuffle(sources)
    for place, source in zip(places, sources, strict=True):
        ids[place] = encoding["input_ids"][source]
    return {**encoding, "input_ids": ids}


def _even(readable: Tensor, real: Tensor) -> Tensor:
    """Return weights that are equal for all keys that a query may read, (N, 1, R, T).

    Parameters
    ----------
    readable : Tensor
        (1 or more than N, R, T), the keys that the mask leaves.
    real : Tensor
        (N, T), False for padding.
    """
    visible = (readable[: len(real)] & real[:, None])[:, None]
    return visible / visible.sum(-1, keepdim=True).clamp(min=1)


def _largest_difference(ours: Tensor, own: Tensor, tokens: int) -> Tensor:
    """Return the largest difference of statistics (H, S) by head, as shares of the largest."""
    only_one = ours.isnan() != own.isnan()
    shares = ((ours - own).abs() / largest(tokens)).nan_to_num(0.0)
    return shares.masked_fill(only_one, torch.inf).amax(-1)
