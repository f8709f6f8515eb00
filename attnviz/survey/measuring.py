"""Texts → the statistics of every head, beside those of shuffled tokens and of even weights."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from attnviz.capture import watch
from attnviz.checkpoints import Checkpoint
from attnviz.inputs import pad_together, tokenize
from attnviz.records import AttentionRecord
from attnviz.survey.batches import batches
from attnviz.survey.corpus import Text
from attnviz.survey.statistics import Measure, Tokens
from attnviz.terms import HIDDEN

Encoding: TypeAlias = "Mapping[str, Sequence[int]]"
TOKENS = 4096  # of a batch, padding among them
_WEIGHTS = 2**21  # of a head in all texts of a batch


@dataclass(frozen=True, eq=False)
class Layer:
    """The statistics of H heads on N texts, each (N, H, S) in the order of STATISTICS.

    shuffled : with the tokens of each text in another order, special ones left where they are.
    even : of weights that are the same for every key that may be read, (N, 1, S).
    """

    stack: str
    layer: int
    value: Tensor
    shuffled: Tensor
    even: Tensor


@dataclass(frozen=True, eq=False)
class Measured:
    """What was measured on N texts.

    numbers : of the texts in their corpus. tokens : how many each has. differences : the largest
    difference of our weights from the model's own in each, over all layers and heads.
    """

    numbers: tuple[int, ...]
    tokens: tuple[int, ...]
    differences: tuple[float, ...]
    layers: tuple[Layer, ...]


def measure(
    checkpoint: Checkpoint,
    texts: Sequence[Text],
    *,
    truncate: bool = False,
    tokens: int = TOKENS,
    seed: int = 0,
) -> Measured:
    """Measure every head on each text; the same whatever else is measured beside it.

    Parameters
    ----------
    truncate : cut what is longer than the model can read.
    tokens : how many positions are read at once, padding among them.
    seed : of the shuffles; each text has its own order, by its number.

    Raises
    ------
    InputError : a text that leaves no token, or is longer than the model can read.
    """
    encoded, _ = tokenize(checkpoint, [(each.text, None) for each in texts], truncate=truncate)
    mixed = [
        _shuffled(each, f"{seed} {text.number}") for each, text in zip(encoded, texts, strict=True)
    ]
    lengths = [len(each["input_ids"]) for each in encoded]
    order = [at for some in batches(lengths, tokens, _WEIGHTS) for at in some]
    found = [
        _measure_batch(checkpoint, [encoded[at] for at in some], [mixed[at] for at in some])
        for some in batches(lengths, tokens, _WEIGHTS)
    ]
    back = torch.tensor(order).argsort()
    differences = torch.cat([each for _, each in found])[back]
    layers = [
        Layer(
            of_layer[0].stack,
            of_layer[0].layer,
            *(
                torch.cat([getattr(each, name) for each in of_layer])[back]
                for name in ("value", "shuffled", "even")
            ),
        )
        for of_layer in zip(*(layers for layers, _ in found), strict=True)
    ]
    numbers = tuple(each.number for each in texts)
    return Measured(numbers, tuple(lengths), tuple(differences.tolist()), tuple(layers))


def _measure_batch(
    checkpoint: Checkpoint, plain: Sequence[Encoding], mixed: Sequence[Encoding]
) -> tuple[list[Layer], Tensor]:
    """Return the statistics of each layer, and the largest difference in each text, (N,)."""
    batch, shuffled = (_read(checkpoint, each) for each in (plain, mixed))
    measure, measure_shuffled = (Measure(tokens) for _, tokens in (batch, shuffled))
    real = batch[1].real
    worst = torch.zeros(len(plain))
    layers = []
    for seen, other in zip(
        *(watch(checkpoint.module, inputs) for inputs, _ in (batch, shuffled)), strict=True
    ):
        ours = seen.recompute()
        worst = torch.maximum(worst, _difference(ours, seen.weights, real))
        layers.append(
            Layer(
                seen.record.stack,
                seen.record.layer,
                measure(ours).cpu(),
                measure_shuffled(other.recompute()).cpu(),
                measure(_even(seen.record, real)).cpu(),
            )
        )
    return layers, worst


def _read(checkpoint: Checkpoint, some: Sequence[Encoding]) -> tuple[dict[str, Tensor], Tokens]:
    """Return a batch as the model takes it, and what its positions are."""
    inputs = pad_together(checkpoint, some)
    ids = inputs["input_ids"]
    special = pad_sequence(
        [torch.tensor(each["special_tokens_mask"]) for each in some],
        batch_first=True,
        padding_value=1,
    ).to(ids.device)
    lengths = torch.tensor([len(each["input_ids"]) for each in some], device=ids.device)
    real = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
    special = special.bool() & real
    stops = torch.isin(ids, _stops(checkpoint).to(ids)) & real & ~special
    return inputs, Tokens(ids, real, special, stops)


def _stops(checkpoint: Checkpoint) -> Tensor:
    """Return the tokens that are a period or a comma, whatever marks a blank before them."""
    assert checkpoint.tokenizer is not None
    ids = {
        id
        for token, id in checkpoint.tokenizer.get_vocab().items()
        if token.lstrip("\u0120\u2581") in (".", ",")
    }
    return torch.tensor(sorted(ids))


def _shuffled(encoding: Encoding, seed: str) -> Encoding:
    """Return the same tokens in another order; special ones stay where they are."""
    ids = list(encoding["input_ids"])
    places = [at for at, special in enumerate(encoding["special_tokens_mask"]) if not special]
    others = places.copy()
    random.Random(seed).shuffle(others)
    for at, other in zip(places, others, strict=True):
        ids[at] = encoding["input_ids"][other]
    return {**encoding, "input_ids": ids}


def _difference(ours: Tensor, model: Tensor, real: Tensor) -> Tensor:
    """Return the largest difference in each text, rows that are padding left out, (N,)."""
    both = (ours - model).abs() * real[:, None, :, None]
    return both.flatten(1).amax(1).cpu()


def _even(record: AttentionRecord, real: Tensor) -> Tensor:
    """Return weights that are the same for every key that a query may read, (N, 1, T, T)."""
    N, T = real.shape
    seen = real[:, None, None, :].expand(N, 1, T, T)
    if record.mask is not None:
        mask = record.mask.reshape(N, -1, T, T)[:, :1]
        seen = seen & (mask > HIDDEN)
    return seen / seen.sum(-1, keepdim=True).clamp(min=1)
