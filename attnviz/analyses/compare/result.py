"""Two checkpoints of one architecture, head by head over a corpus: what changed, and how surely."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from attnviz.analyses.survey.result import HeadName
from attnviz.results.attention_result import Provenance
from attnviz.results.report import AgreementReport


@dataclass(frozen=True, eq=False)
class CompareResult:
    """Of K heads of two models, S statistics over the same texts, and how far the maps are apart.

    Attributes
    ----------
    heads, statistics : their names; the statistics are those of `SurveyResult`.
    first, second : (K, S), the means over texts in each model.
    change, low, high : (K, S), second less first, text by text, and its 95 % interval, by a
        bootstrap over texts. p_value : two-sided, corrected for all heads and statistics.
    apart, apart_low, apart_high : (K,), the square root of the Jensen–Shannon divergence, in bits,
        between what a head gives to the same keys in both models, from 0 to 1: mean over the rows
        of a text, then over texts, with its interval.
    texts, tokens : how many were read. notes : what was left out.
    agreements, provenances : of the first model and of the second.
    """

    heads: tuple[HeadName, ...]
    statistics: tuple[str, ...]
    first: Tensor
    second: Tensor
    change: Tensor
    low: Tensor
    high: Tensor
    p_value: Tensor
    apart: Tensor
    apart_low: Tensor
    apart_high: Tensor
    texts: int
    tokens: int
    notes: tuple[str, ...]
    agreements: tuple[AgreementReport, AgreementReport]
    provenances: tuple[Provenance, Provenance]

    @property
    def names(self) -> tuple[str, str]:
        """What the models are called; with the start of their SHA-256 where that is the same."""
        one, other = self.provenances
        if one.model != other.model:
            return one.model, other.model
        named = [f"{each.model} ({each.weights_sha256[:6]})" for each in self.provenances]
        return named[0], named[1]

    @property
    def agreement(self) -> AgreementReport:
        """The report that says least for the two."""
        order = ("failed", "not proven", "verified")
        return min(self.agreements, key=lambda each: order.index(each.verdict))

    def __repr__(self) -> str:
        """Say what it holds, without the tensors."""
        one, other = self.provenances
        return (
            f"CompareResult({one.model} and {other.model}: {len(self.heads)} heads on "
            f"{self.texts:,} texts)"
        )
