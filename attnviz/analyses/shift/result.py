"""What moved a word's vector: its exact parts, and what is lost where other words are changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from attnviz.analyses.shift.decomposition import ResidualStream, ShiftDecomposition
from attnviz.results.attention_result import Provenance
from attnviz.results.report import AgreementReport

_FEWEST = 3  # sources that can be ranked


@dataclass(frozen=True, eq=False)
class ShiftResult:
    """What moved a word's vector in a text, with the proof of the sum and a causal check.

    Attributes
    ----------
    word : the word as it is written, the#2 where there are several. at : which of the words it is.
    words : of the text, special tokens among them, W. positions : of the pieces of each; where a
        word has several, what it brings is their sum, and where `word` itself has, everything is
        the mean over them. special : which words are special tokens.
    tokens : of the text, T.
    reference : what the text is compared with, in words.
    decomposition : the difference to the reference, split.
    residual_stream : what was added from the static to the contextual vector.
    causal : by intervention, what the word loses along the direction where each other word is
        masked, replaced, knocked out or deleted, (W,); NaN where nothing was done.
    patched : (L, H), what the word loses directly where one head gives what it gives in the
        reference; None where that was not asked for.
    raw_attention : (W,), the weights of the word in the last layer, the mean of all heads.
    rollout : (W,), attention multiplied through the layers.
    regions : the names of the regions whose axis the direction is; empty where it is the shift's
        own.
    path : (L + 1,), where the word stands on that axis, from the second region (0) to the first
        (1), as it enters each layer and in the end. distances : (L + 1, 2), how far it is from the
        centre of each, where their own distance in that layer is 1. None without regions.
    notes : what else is to be said.
    agreement, provenance : of the attention of the text.
    methods : further attributions by the name of their method, (W,) each.
    """

    word: str
    at: int
    words: tuple[str, ...]
    positions: tuple[tuple[int, ...], ...]
    special: tuple[bool, ...]
    tokens: tuple[str, ...]
    reference: str
    decomposition: ShiftDecomposition
    residual_stream: ResidualStream
    causal: Mapping[str, Tensor]
    patched: Tensor | None
    raw_attention: Tensor
    rollout: Tensor
    regions: tuple[str, ...]
    path: Tensor | None
    distances: Tensor | None
    notes: tuple[str, ...]
    agreement: AgreementReport
    provenance: Provenance
    methods: Mapping[str, Tensor] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Say what it holds, without the tensors."""
        return (
            f"ShiftResult({self.word!r} in {self.provenance.text!r}: "
            f"{self.decomposition.total:.2f}, completeness error {self.decomposition.error:.0e})"
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The words as they can be asked for: the#1 and the#2 where there are several."""
        return numbered(self.words)

    @property
    def sources(self) -> list[int]:
        """Where the words are that can move the word: no special tokens, not the word itself.

        What rollout gives nothing to is read on no path, as later words in a causal model.
        """
        return [
            at
            for at, special in enumerate(self.special)
            if not special and at != self.at and self.rollout[at] > 0
        ]

    def by_word(self, parts: Tensor) -> Tensor:
        """Sum parts (…, T) over the pieces of each word, (…, W)."""
        return torch.stack([parts[..., list(at)].sum(-1) for at in self.positions], dim=-1)

    @property
    def credit(self) -> Tensor:
        """What each word brought over all paths, (W,)."""
        return self.by_word(self.decomposition.credit)

    @property
    def consensus(self) -> Tensor | None:
        """The mean of all interventions, each in units of its own deviation, (W,).

        None where fewer than two were made.
        """
        return consensus(self.causal, self.sources) if len(self.causal) > 1 else None

    @property
    def rank_correlations(self) -> dict[str, float]:
        """Spearman's ρ of the credits with each intervention, and with their consensus.

        Empty where fewer than three sources differ in what they brought: nothing is ranked then.
        """
        at = self.sources
        credit = self.credit[at]
        if not at or len(set((credit / credit.abs().max() * 1e6).round().tolist())) < _FEWEST:
            return {}
        return self._rank_correlations(self.credit)

    @property
    def method_correlations(self) -> dict[str, dict[str, float]]:
        """The same for each of `methods`: Spearman's ρ with each intervention, and the consensus.

        Methods that cannot be ranked are left out.
        """
        by_method = {name: self._rank_correlations(each) for name, each in self.methods.items()}
        return {name: correlations for name, correlations in by_method.items() if correlations}

    def _rank_correlations(self, attribution: Tensor) -> dict[str, float]:
        """Return Spearman's ρ of an attribution (W,) with each intervention, where there is one."""
        effects = dict(self.causal)
        if (common := self.consensus) is not None:
            effects["consensus"] = common
        at = self.sources
        rhos = {name: spearman(attribution[at], each[at]) for name, each in effects.items()}
        return {name: rho for name, rho in rhos.items() if rho is not None}

    @property
    def heads_correlation(self) -> tuple[float, float] | None:
        """Pearson's r and Spearman's ρ of the heads' parts with what patching them does."""
        if self.patched is None:
            return None
        by_head = self.decomposition.table.sum(-1).flatten()
        patched = self.patched.flatten().to(by_head)
        rho = spearman(by_head, patched)
        r = torch.corrcoef(torch.stack([by_head, patched]))[0, 1].item()
        return None if rho is None else (r, rho)


def numbered(words: Sequence[str]) -> tuple[str, ...]:
    """Return words with a number where they occur several times.

    >>> numbered(["The", "cat", "the"])
    ('The#1', 'cat', 'the#2')
    """
    folded = [word.casefold() for word in words]
    return tuple(
        word if folded.count(each) == 1 else f"{word}#{folded[: at + 1].count(each)}"
        for at, (word, each) in enumerate(zip(words, folded, strict=True))
    )


def consensus(effects: Mapping[str, Tensor], at: list[int]) -> Tensor:
    """Return the mean of effects (W,), each in units of its deviation over some words."""
    scaled = []
    for effect in effects.values():
        deviation = effect[at].std(correction=0) if at else torch.zeros(())
        scaled.append(effect / deviation if deviation > 0 else effect)
    return torch.stack(scaled).mean(0)


def spearman(a: Tensor, b: Tensor) -> float | None:
    """Return the correlation of ranks, ties in between; None below three, or where all tie.

    >>> spearman(torch.tensor([1.0, 2.0, 3.0, 3.0]), torch.tensor([0.0, 5.0, 6.0, 6.0]))
    1.0
    """
    if len(a) < _FEWEST or any(not each.max() > each.min() for each in (a, b)):
        return None
    from scipy.stats import spearmanr

    return float(spearmanr(a.numpy(), b.numpy()).statistic)
