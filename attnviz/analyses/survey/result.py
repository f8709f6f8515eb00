"""The result of a survey: statistics of every head over a corpus, beside chance baselines."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text
from torch import Tensor

from attnviz.errors import expect_names
from attnviz.results.agreement_report import LINEAR, AgreementReport
from attnviz.results.attention_result import Provenance
from attnviz.results.base import Columns, Result, Savable, column, described, finite
from attnviz.results.text import counted, dim, plain_table, with_minus

SURE = 0.01  # a difference with a smaller p-value is sure
NOUNS = {"text": "texts", "image": "images", "audio": "sounds"}
_ROUNDING = 1e-3  # nats: smaller differences of log-probabilities are rounding


@dataclass(frozen=True)
class HeadName(Savable):
    """One head of a model; layers and heads count from 0."""

    stack: str
    layer: int
    head: int

    def __str__(self) -> str:
        stack = "" if self.stack in ("encoder", "decoder") else f"{self.stack} "
        return f"{stack}{self.layer}.{self.head}"


@dataclass(frozen=True, eq=False)
class HeadTable(Result):
    """Base of results of K heads by S statistics."""

    heads: tuple[HeadName, ...]
    statistics: tuple[str, ...]

    def labels(self) -> dict[str, list[str]]:
        """Return the names of the heads and of the statistics."""
        names = [f"{head.stack} {head.layer}.{head.head}" for head in self.heads]
        return {"head_names": names, "statistics": list(self.statistics)}

    def columns_of_table(self) -> Columns:
        """Return one row for each head and statistic."""
        count = len(self.statistics)
        columns: Columns = {}
        for name, values in self._columns_of_heads().items():
            columns[name] = np.repeat(values, count).tolist()
        columns["statistic"] = list(self.statistics) * len(self.heads)
        for name, array in self.to_arrays().items():
            if array.dim() == 1:
                columns[name] = column(array.repeat_interleave(count))
            elif array.shape[1] == count:
                columns[name] = column(array)
        return columns

    def _columns_of_heads(self) -> Columns:
        names = ("stack", "layer", "head")
        return {name: [getattr(head, name) for head in self.heads] for name in names}


@dataclass(frozen=True)
class Confirmation(Savable):
    """Whether the model does worse what a role claims without the heads that have it.

    Log-probabilities and accuracies are means over the answers of a probe. Without a measurement
    they are NaN, and `reason` says why.

    Attributes
    ----------
    role, behavior : str
        What the heads are named, and what the model does worse without them.
    heads : tuple
        The (layer, head) of the heads that have the role.
    ablated : tuple
        Those that were ablated: fewer where a layer has few other heads to compare with.
    log_probability, accuracy : float
        Of the whole model.
    log_probability_without, accuracy_without : float
        Without the ablated heads.
    random_log_probabilities, random_accuracies : tuple of float
        Without random sets of as many other heads in the same layers.
    reason : str
        Why it was not measured.
    """

    role: str
    behavior: str
    heads: tuple[tuple[int, int], ...]
    log_probability: float = math.nan
    accuracy: float = math.nan
    log_probability_without: float = math.nan
    accuracy_without: float = math.nan
    random_log_probabilities: tuple[float, ...] = ()
    random_accuracies: tuple[float, ...] = ()
    reason: str = ""
    ablated: tuple[tuple[int, int], ...] = ()

    @property
    def confirmed(self) -> bool:
        """Whether the answers lose log-probability, and more than without any random set."""
        if self.reason or not self.random_log_probabilities:
            return False
        least = min(self.log_probability, *self.random_log_probabilities)
        return self.log_probability_without < least - _ROUNDING

    @property
    def sentence(self) -> str:
        """What was measured, in words."""
        verdict = "is confirmed" if self.confirmed else "is not confirmed"
        if self.reason:
            return f"“{self.role}” {verdict}: {self.reason}"
        count, named = len(self.ablated or self.heads), len(self.heads)
        heads = "the head" if named == 1 else f"the {named} heads"
        heads = heads if count == named else f"{count} of {heads}"
        others = "another head" if count == 1 else f"{count} others at random"

        def measured(accuracy: float, log_probability: float) -> str:
            return with_minus(f"{accuracy:.0%} ({log_probability:.2f} nats)")

        worst, best = (
            measured(of(self.random_accuracies), of(self.random_log_probabilities))
            for of in (min, max)
        )
        span = worst if worst == best else f"{worst} to {best}"
        return (
            f"“{self.role}” {verdict}: {self.behavior} is right in "
            f"{measured(self.accuracy, self.log_probability)}, without {heads} in "
            f"{measured(self.accuracy_without, self.log_probability_without)}, without {others} in "
            f"{span}"
        )


@dataclass(frozen=True, eq=False)
class SurveyResult(HeadTable):
    """Of K heads, S statistics over the texts of a corpus.

    Attributes
    ----------
    heads, statistics : their names.
    mean, low, high : (K, S), the mean over texts and its 95 % interval over texts.
    even : (K, S), the mean of the same statistic where the keys of each query are shuffled, that is
        of even weights; NaN if it has no meaning (entropy). shuffled : where the model reads the
        tokens of each text in another order.
    p_even, p_shuffled : (K, S), two-sided, of the differences from shuffled keys and from shuffled
        tokens, by sign flips of the texts, corrected for all heads and statistics.
    count : (K, S), how many texts have such a token.
    roles : the role of each head, or "". clusters : the cluster of similar heads, counted from 0.
    distances : (K, K), the square root of the Jensen–Shannon divergence between the rows of two
        heads, in bits, from 0 to 1: mean over the rows of some texts; sampled : how many these are.
    texts, tokens : how many were read. compared : of how many the statistics were compared with
        those of the weights that the model's own code returns.
    notes : on texts that were left out or cut, and whether the texts are too few to name heads.
    left_out : which texts were left out, counted from 1.
    kind : what the corpus consists of: "text", "image" or "audio".
    confirmations : of the roles that a probe is about, whether ablation confirms them.
    agreement : of all stages, on a sample of texts; and "statistics", the largest difference on
        the texts compared, as a share of the most that a statistic can be. provenance : of the
        model.

    Examples
    --------
    >>> import attnviz
    >>> texts = ["the train left the station", "the cat saw the dog", "a man read the book"]
    >>> result = attnviz.survey(texts)
    >>> len(result.heads), result.statistics[:4]
    (72, ('distance', 'self', 'previous', 'next'))
    >>> figure = result.plot()
    """

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
    left_out: tuple[int, ...] = ()
    confirmations: tuple[Confirmation, ...] = ()
    kind: str = "text"

    def __repr__(self) -> str:
        named = sum(map(bool, self.roles))
        return (
            f"SurveyResult({self.provenance.model}: {len(self.heads)} heads on "
            f"{self.read}, {named} named, {self.checked_agreement.verdict})"
        )

    @property
    def signed(self) -> bool:
        """Whether the heads are of linear attention, whose weights are signed."""
        return all(head.stack == LINEAR for head in self.heads)

    @property
    def read(self) -> str:
        """What was read, in words: "500 texts"."""
        return counted(self.texts, NOUNS[self.kind].removesuffix("s"))

    @property
    def cluster_sizes(self) -> tuple[int, ...]:
        """How many heads each cluster has, the largest first."""
        return tuple(self.clusters.count(number) for number in range(1 + max(self.clusters)))

    def name_of(self, role: str) -> str:
        """Return how a role is named: a role that a probe did not confirm only looks like it."""
        doubted = (one.role for one in self.confirmations if not one.confirmed)
        return f"looks like “{role}”, not confirmed" if role in doubted else role

    def of(self, statistic: str) -> int:
        """Return the column of a statistic; raise InputError for an unknown name."""
        expect_names([statistic], self.statistics, "a statistic")
        return self.statistics.index(statistic)

    def about(self) -> dict[str, Any]:
        """Return the size of the corpus, the role of each head, and the proof."""
        return {
            **described(self, "texts tokens notes left_out roles clusters compared sampled"),
            "confirmations": [
                {**finite(asdict(one)), "confirmed": one.confirmed} for one in self.confirmations
            ],
            "provenance": asdict(self.provenance),
            "agreement": self.checked_agreement.about(),
        }

    def _columns_of_heads(self) -> Columns:
        return super()._columns_of_heads() | {"role": self.roles, "cluster": self.clusters}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        model = self.provenance.model_name
        yield Text(f"{len(self.heads)} heads of {model} on {self.read}", "bold")
        table = plain_table(("statistic",), ("mean", "shuffled keys", "shuffled tokens"))
        table.add_column("most (layer.head)")
        for index, name in enumerate(self.statistics):
            means = [values[:, index].nanmean() for values in (self.mean, self.even, self.shuffled)]
            cells = ["–" if mean.isnan() else f"{mean:.3f}" for mean in means]
            best = self.mean[:, index].nan_to_num(-1.0).topk(min(2, len(self.heads))).indices
            known = [n for n in best.tolist() if self.count[n, index]]
            most = [f"{self.heads[n]} ({self.mean[n, index]:.2f})" for n in known]
            table.add_row(name, *cells, ", ".join(most) or "–")
        yield table
        sizes = ", ".join(map(str, self.cluster_sizes))
        yield Text("clusters of similar heads: ", "bold").append(sizes, "not bold")
        for role in dict.fromkeys(filter(None, self.roles)):
            of_heads = zip(self.heads, self.roles, strict=True)
            listed = ", ".join(str(head) for head, other in of_heads if other == role)
            yield Text(f"{self.name_of(role)}: ", "bold").append(listed, "not bold")
        for confirmation in self.confirmations:
            yield Text(confirmation.sentence)
        yield from dim(self.notes)
