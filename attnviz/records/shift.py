"""What moved a word's vector: its parts, and how nearly they add up to the whole."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attnviz.records.agreement import AgreementReport
from attnviz.records.result import Provenance


@dataclass(frozen=True, eq=False)
class Secant:
    """The difference of two runs at one position, split over layers, heads and sources.

    All numbers are lengths along `direction`, in units of the hidden state; L layers, H heads, T
    sources.

    Attributes
    ----------
    value : (L, H, T), what came because a source's value differs. routing : (L, H, T), what came
        because the position attends to it differently.
    start : what was different at the position itself before the first layer.
    credit : (T,), what each source brought over all paths, also through other positions.
    total : the difference. length : its norm in all directions.
    direction : (d,), of norm 1.
    """

    value: Tensor
    routing: Tensor
    start: float
    credit: Tensor
    total: float
    length: float
    direction: Tensor

    @property
    def table(self) -> Tensor:
        """Value and routing parts together, (L, H, T)."""
        return self.value + self.routing

    @property
    def error(self) -> float:
        """The completeness error: how far the parts miss the whole, as a share of the length."""
        return abs(self.table.sum().item() + self.start - self.total) / self.length

    @property
    def credit_error(self) -> float:
        """The same for the credits of all paths."""
        return abs(self.credit.sum().item() - self.total) / self.length


@dataclass(frozen=True, eq=False)
class Ledger:
    """The way of one position from its static to its contextual vector, as an account.

    Weights, the scales of norms and the gates of activations are taken as they were; then the
    network is affine, and every part is carried to the end. Numbers are as in `Secant`.

    Attributes
    ----------
    attention : (L, H, T), what each head brought from each source. mlp : (L,), what each MLP made.
    bias : what all biases after the values add. own : what became of the static vector, less it.
    total : the shift along the direction. length : its norm in all directions. direction : (d,).
    """

    attention: Tensor
    mlp: Tensor
    bias: float
    own: float
    total: float
    length: float
    direction: Tensor

    @property
    def error(self) -> float:
        """The completeness error: how far the parts miss the whole, as a share of the length."""
        parts = self.attention.sum().item() + self.mlp.sum().item() + self.bias + self.own
        return abs(parts - self.total) / self.length


@dataclass(frozen=True, eq=False)
class ShiftResult:
    """What moved a word's vector in a text, with the proof of the sum and a causal check.

    Attributes
    ----------
    word : the word as it is written. tokens : of the text. pieces : the positions of the word;
        where there are several, everything is the mean over them.
    special : which tokens are special.
    reference : what the text is compared with, in words.
    secant : the difference to the reference, split. ledger : the account from static to contextual.
    causal : (T,), what masking this token takes from the word along the direction; NaN where it was
        not masked, None where the model has no mask token.
    regions : the names of the regions whose axis the direction is; empty where it is the shift's
        own.
    path : (L + 1,), where the word stands on that axis, from the second region (0) to the first
        (1), as it enters each layer and in the end; None without regions.
    notes : what else is to be said.
    agreement, provenance : of the attention of the text.
    """

    word: str
    tokens: tuple[str, ...]
    pieces: tuple[int, ...]
    special: tuple[bool, ...]
    reference: str
    secant: Secant
    ledger: Ledger
    causal: Tensor | None
    regions: tuple[str, ...]
    path: Tensor | None
    notes: tuple[str, ...]
    agreement: AgreementReport
    provenance: Provenance

    @property
    def sources(self) -> list[int]:
        """The positions that stand beside the word: no special tokens, not the word itself."""
        return [
            at for at, special in enumerate(self.special) if not special and at not in self.pieces
        ]

    @property
    def rank_correlation(self) -> float | None:
        """Spearman's, between the credits and the causal check; None below three sources."""
        if self.causal is None or len(self.sources) < 3:
            return None
        both = self.secant.credit[self.sources], self.causal[self.sources]
        ranks = [each.argsort().argsort().double() for each in both]
        return float(torch.corrcoef(torch.stack(ranks))[0, 1])
