"""The exact split of the difference from references (DeepLIFT multipliers), and its ensemble."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attnviz.attribution.decomposition import credits
from attnviz.attribution.interventions import batch_size, gates_without
from attnviz.attribution.methods import METHODS, method
from attnviz.attribution.target import Score, copies_of
from attnviz.results.axis import join_axes, token_groups

MEMBERS = "split", "gradient-attention", "direct-attribution"  # of the ensemble
DIVISIONS = 2, 3, 4  # how many parts the words are divided into, one division after the other


@method("split")
def split(score: Score) -> Tensor:
    """Return the contribution of each token over all paths. They add up to the difference.

    In the reference every token may attend only to itself, to special tokens and to the sink.
    """
    return credits(score.readout, copies_of(score.inputs, 2), score.direction, score.gate)


@method("partial-split")
def partial_split(score: Score) -> Tensor:
    """Return the mean contribution of each token over references without some of the words.

    The words are divided into two, three and four parts: every second word, every third and every
    fourth. Each of these nine parts has a reference, in which the other tokens cannot attend to its
    words. Their contributions add up to the difference from the text. In a reference without any
    context, as that of the split, a word that passes on what it has read from another one counts
    nothing. Such words are mostly neighbors, so here one is hidden where the other can be read.

    Sources: DeepLIFT multipliers (Shrikumar et al. 2017, arXiv:1704.02685), averaged over partial
    texts as in Shapley values (Lundberg & Lee 2017, arXiv:1705.07874).
    """
    total = torch.zeros(score.ids.shape[1], dtype=torch.float64, device="cpu")
    parts = divide(_hidden_words(score))
    size = max(1, batch_size(score.ids) // 2)
    for start in range(0, len(parts), size):
        batch = parts[start : start + size]
        gates = gates_without(score.ids.shape[1], batch, score.ids.device)
        copies = copies_of(score.inputs, 2 * len(gates))
        total += credits(score.readout, copies, score.direction, gates).double().cpu()
    return total / len(DIVISIONS)


def divide(words: Sequence[tuple[int, ...]]) -> list[list[tuple[int, ...]]]:
    """Return the words of each part, in each division."""
    parts = [list(words[start::count]) for count in DIVISIONS for start in range(count)]
    return [part for part in parts if part]


def _hidden_words(score: Score) -> list[tuple[int, ...]]:
    """Return the positions of each word that is neither explained nor kept by every reference."""
    records = score.result.records
    tokens = records[0].query_axis
    if score.readout.stacks:
        tokens = join_axes(tokens, records[-1].query_axis)
    groups = token_groups(tokens)
    return [
        positions
        for positions, special in zip(groups.positions, groups.special, strict=True)
        if not special
        and score.sink not in positions
        and not {*positions} & {*score.readout.positions}
    ]


@method("ensemble")
def ensemble(score: Score) -> Tensor:
    """Return the mean of split, gradient × attention and direct attribution.

    Each is divided by the sum of its absolute values over the tokens that are ranked, so that all
    count alike. On next tokens of SmolLM2 the mean ranks words more like interventions than each
    of the three does.
    """
    ranked = [
        row
        for row, special in enumerate(score.special)
        if not special and row != score.sink and row not in score.readout.positions
    ]
    total = torch.zeros(score.ids.shape[1], dtype=torch.float64, device="cpu")
    for name in MEMBERS:
        attribution = METHODS[name](score).detach().double().cpu()
        size = attribution[ranked].abs().sum()
        total += attribution / (size if size > 0 else 1.0) / len(MEMBERS)
    return total
