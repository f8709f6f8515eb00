"""What the heads of a model do over a corpus, with intervals, beside what chance would give."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from attnviz.results.attention_result import Provenance
from attnviz.results.report import AgreementReport


@dataclass(frozen=True)
class HeadName:
    """One head of a model; layers and heads count from 0."""

    stack: str
    layer: int
    head: int

    def __str__(self) -> str:
        """Return "3.5", after the stack's name where it is not the encoder or the decoder."""
        beside = "" if self.stack in ("encoder", "decoder") else f"{self.stack} "
        return f"{beside}{self.layer}.{self.head}"


@dataclass(frozen=True, eq=False)
class SurveyResult:
    """Of K heads, S statistics over the texts of a corpus.

    Attributes
    ----------
    heads, statistics : their names.
    mean, low, high : (K, S), the mean over texts and its 95 % interval, by a bootstrap over texts.
    even : (K, S), the mean of the same statistic where the keys of each query are shuffled, that is
        of even weights; NaN where it says nothing (entropy). shuffled : where the model reads the
        tokens of each text in another order.
    p_even, p_shuffled : (K, S), two-sided, of the differences from these, corrected for all heads
        and statistics.
    count : (K, S), how many texts have such a token.
    roles : what each head is named, or "". clusters : which heads are alike, counted from 0.
    distances : (K, K), the square root of the Jensen–Shannon divergence between the rows of two
        heads, in bits, from 0 to 1: mean over the rows of some texts; sampled : how many these are.
    texts, tokens : how many were read. compared : of how many the statistics were compared with
        those that follow from the weights that the model's own code returns.
    notes : what was left out or cut.
    agreement : of all stages, on a sample of texts; and "statistics", the largest difference on
        the texts compared, as a share of the most that a statistic can be. provenance : of the
        model.
    """

    heads: tuple[HeadName, ...]
    statistics: tuple[str, ...]
    mean: Tensor
    low: Tensor
    high: Tensor
    even: Tensor
    shuffled: Tensor
    p_even: Tensor
    p_shuffled: Tensor
    count: Tensor
    roles: tuple[str, ...]
    clusters: tuple[int, ...]
    distances: Tensor
    sampled: int
    texts: int
    tokens: int
    compared: int
    notes: tuple[str, ...]
    agreement: AgreementReport
    provenance: Provenance

    def __repr__(self) -> str:
        """Say what it holds, without the tensors."""
        named = sum(map(bool, self.roles))
        return (
            f"SurveyResult({self.provenance.model}: {len(self.heads)} heads on "
            f"{self.texts:,} texts, {named} named, {self.agreement.verdict})"
        )

    @property
    def cluster_sizes(self) -> tuple[int, ...]:
        """How many heads each cluster has, the largest first."""
        return tuple(self.clusters.count(each) for each in range(1 + max(self.clusters)))

    def of(self, statistic: str) -> int:
        """Return the column of a statistic."""
        return self.statistics.index(statistic)
