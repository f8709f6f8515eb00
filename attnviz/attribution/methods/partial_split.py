"""The split relative to references in which half of the words are hidden."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from attnviz.attribution.decomposition import credits
from attnviz.attribution.interventions import batch_size, gates_without
from attnviz.attribution.methods import method
from attnviz.attribution.target import Score
from attnviz.errors import ModelError
from attnviz.results.axis import token_groups

DIVISIONS = 2  # of the words into two halves


@method("partial-split")
def partial_split(score: Score) -> Tensor:
    """Return the mean contribution of each token over references without half of the words.

    The words are divided into two halves at random, twice. In each of the four references the other
    tokens cannot attend to the words of one half. The contributions of these words add up to the
    difference from the text. A reference without any context, as that of the split, is further from
    the text than one without half of it, and than the change of a single word.

    Sources: DeepLIFT multipliers (Shrikumar et al. 2017, arXiv:1704.02685), averaged over partial
    texts as in Shapley values (Lundberg & Lee 2017, arXiv:1705.07874).
    """
    if score.readout.stacks is not None:
        raise ModelError("it has an encoder and a decoder, and the method is that of one stack")
    total = torch.zeros(score.ids.shape[1], dtype=torch.float64, device="cpu")
    halves = divide(_hidden_words(score))
    size = max(1, batch_size(score.ids) // 2)
    for start in range(0, len(halves), size):
        gates = gates_without(score.ids, halves[start : start + size])
        copies = {name: x.expand(2 * len(gates), -1) for name, x in score.inputs.items()}
        total += credits(score.readout, copies, score.direction, gates).double().cpu()
    return total / DIVISIONS


def divide(words: Sequence[tuple[int, ...]]) -> list[list[tuple[int, ...]]]:
    """Return the words of each half, in each division; the same every time."""
    draw = random.Random(0)
    halves = []
    for _ in range(DIVISIONS):
        shuffled = draw.sample(words, len(words))
        halves += [half for half in (shuffled[::2], shuffled[1::2]) if half]
    return halves


def _hidden_words(score: Score) -> list[tuple[int, ...]]:
    """Return the positions of each word that is neither explained nor kept by every reference."""
    groups = token_groups(score.result.records[0].query_axis)
    return [
        positions
        for positions, special in zip(groups.positions, groups.special, strict=True)
        if not special and score.sink not in positions and not {*positions} & {*score.rows}
    ]
