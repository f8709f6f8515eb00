"""Linear attention in a survey: its weights are signed, and their sizes are measured.

A statistic such as |previous| is that of softmax attention, of the shares of the weights in the
sizes of their row: |M_ij| / Σ_j |M_ij|. So it is a share here, too, and roles follow by the same
criteria. Beside them stands how much of the sizes is of negative weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from attnviz.analyses.survey.corpus import TokenizedText, softmax_only
from attnviz.analyses.survey.statistics import (
    STATISTICS,
    HeadStatistics,
    Statistic,
    TextStatistics,
    WeightStatistics,
    key_order,
    shuffle,
)
from attnviz.capture.batched import capture_matrices
from attnviz.errors import InputError
from attnviz.results import AttentionRecord, AttentionResult, LinearAttention, row_shares

_OF_SIZES = tuple(
    replace(one, name=f"|{one.name}|", title=one.title.replace("weight ", "|weight| "))
    for one in STATISTICS
)
_NEGATIVE = Statistic("negative", "share of negative weights", even_baseline=False)
SIGNED_STATISTICS = (*_OF_SIZES, _NEGATIVE)
"""The statistics of linear attention, in the order of every result."""
SIGNED_TITLES = {one.name: one.title for one in SIGNED_STATISTICS}
_MOST_HEADS = 2048  # of which the bootstrap and the distances fit in memory


def select_stack(result: AttentionResult, stack: str | None) -> AttentionResult:
    """Return a result with the attentions to measure: those with a softmax, or the linear ones.

    Raises
    ------
    InputError
        There is no such stack, or it is one of several with a softmax.
    """
    softmax = [record for record in result.records if not record.signed]
    if stack is None:
        return softmax_only(result) if softmax else result
    chosen = result.stack(stack)
    if not chosen.records[0].signed and len(chosen) < len(softmax):
        raise InputError(
            f"A survey measures all stacks of softmax attention together, not only {stack!r}. "
            "Leave --stack (stack=) out."
        )
    return chosen


def check_head_count(records: Sequence[AttentionRecord]) -> None:
    """Raise InputError if linear attention has more heads than a survey can hold."""
    heads = sum(record.heads for record in records)
    if records[0].signed and heads > _MOST_HEADS:
        raise InputError(
            f"A survey of linear attention takes at most {_MOST_HEADS:,} heads, but here each "
            f"feature may be a head: there are {heads:,}. Choose a smaller model, or one whose "
            "features share matrices, such as Mamba-2."
        )


@dataclass(frozen=True, eq=False)
class SignedHeadStatistics(HeadStatistics):
    """Measures the heads of linear attention, from the whole matrices of one text after the other.

    Nothing is compared: the model returns no weights. The sample of the survey is verified.
    """

    statistics: Sequence[Statistic] = SIGNED_STATISTICS

    def measure(self, texts: Sequence[TokenizedText]) -> TextStatistics:
        """Measure every head on each text; those of a text with one token are NaN."""
        return replace(super().measure(texts), compared=0)

    def _measure_batch(
        self, texts: Sequence[TokenizedText]
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Return statistics (N, K, S) of texts, shuffled texts, even weights and shuffled keys."""
        measured = zip(*map(self._measure_text, texts), strict=True)
        value, shuffled, even, keys = (torch.cat(of_texts) for of_texts in measured)
        not_compared = torch.full((len(self.heads),), torch.nan, device="cpu")
        return value, shuffled, even, keys, not_compared

    def _measure_text(self, text: TokenizedText) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the statistics of one text, (1, K, S) each."""
        if len(text) < 2:  # nothing is mixed
            nothing = torch.full(
                (1, len(self.heads), len(self.statistics)), torch.nan, device="cpu"
            )
            return (nothing,) * 4
        # With as many tokens, neither text is padded.
        mixed = shuffle(text.encoding, f"{self.seed} {text.number}")
        inputs, tokens = self.batch([text.encoding, mixed])
        records = cast("Sequence[LinearAttention]", self.records)
        every = slice(0, len(text))
        real = tokens.real[:1]
        of_both, of_text = (
            _SignedStatistics(WeightStatistics(some, _OF_SIZES)) for some in (tokens, tokens[:1])
        )
        value, even, keys = [], [], []
        matrices = capture_matrices(self.checkpoint.module, inputs, records)
        for matrix, record in zip(matrices, records, strict=True):
            M = matrix.to(real.device)
            readable = torch.ones_like(M[:1, 0], dtype=torch.bool)
            if record.visible is not None:
                readable = readable.tril()
            order = key_order(readable, real, every, [text.number], self.seed)[:, None]
            shares = row_shares(M[:1])
            uniform = readable / readable.sum(-1, keepdim=True)
            value.append(of_both(M))
            even.append(of_text(uniform[:, None] * shares.sum(-1, keepdim=True)))
            keys.append(of_text(shares.gather(-1, order.expand_as(shares))))
        both = torch.cat(value, dim=1)
        return both[:1], both[1:], torch.cat(even, dim=1), torch.cat(keys, dim=1)


@dataclass(frozen=True, eq=False)
class _SignedStatistics:
    """Computes the statistics of signed weights from those of their shares."""

    of_shares: WeightStatistics

    def __call__(self, weights: Tensor) -> Tensor:
        """Return the statistics (N, H, S) of weights (N, H, T, T)."""
        shares, rows = row_shares(weights), self.of_shares.rows[:, None]
        of_sizes = self.of_shares(lambda block: shares[:, :, block])
        negative = (shares * (weights < 0)).sum(-1)
        mean = (negative * rows).sum(-1) / rows.sum(-1)
        return torch.cat([of_sizes, mean[..., None]], dim=-1).cpu()
