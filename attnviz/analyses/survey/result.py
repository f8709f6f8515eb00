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
from attnviz.results import AgreementReport, Provenance, Result, Savable
from attnviz.results.agreement_report import LINEAR
from attnviz.results.base import Columns, column, described, doc, documented, finite, proof
from attnviz.results.text import counted, dim, plain_table, with_minus

SURE = 0.01  # a difference with a smaller p-value is sure
NOUNS = {"text": "texts", "image": "images", "audio": "sounds"}
POSITIONS = {"text": "tokens", "image": "patches and special tokens", "audio": "frames and tokens"}
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
        of_heads, count = self._columns_of_heads(), len(self.statistics)
        columns: Columns = {name: np.repeat(of, count).tolist() for name, of in of_heads.items()}
        columns["statistic"] = list(self.statistics) * len(self.heads)
        return columns | {name: column(array) for name, array in self.to_arrays().items()}

    def _columns_of_heads(self) -> Columns:
        names = ("stack", "layer", "head")
        return {name: [getattr(head, name) for head in self.heads] for name in names}


@dataclass(frozen=True)
class Confirmation(Savable):
    """Whether the model does worse what a role claims without the heads that have it.

    Log-probabilities and accuracies are means over the answers of a probe, NaN without a
    measurement.
    """

    role: str  # what the heads are named
    behavior: str  # what the model does worse without them
    heads: tuple[tuple[int, int], ...]  # the (layer, head) of those that have the role
    log_probability: float = math.nan  # of the whole model
    accuracy: float = math.nan
    log_probability_without: float = math.nan  # without the ablated heads
    accuracy_without: float = math.nan
    random_log_probabilities: tuple[float, ...] = ()  # without random sets of as many other heads
    random_accuracies: tuple[float, ...] = ()  # in the same layers
    reason: str = ""  # why it was not measured
    ablated: tuple[tuple[int, int], ...] = ()  # fewer where a layer has few others to compare with

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


@documented
class SurveyResult(HeadTable):
    """Of K heads, S statistics over the texts of a corpus, with their names.

    Examples
    --------
    >>> import attnviz
    >>> texts = ["the train left the station", "the cat saw the dog", "a man read the book"]
    >>> result = attnviz.survey(texts)
    >>> len(result.heads), result.statistics[:4]
    (72, ('distance', 'self', 'previous', 'next'))
    >>> figure = result.plot()
    """

    mean: Tensor = doc("The mean over texts, (K, S).")
    low: Tensor = doc("Where its 95 % interval over texts begins, (K, S).")
    high: Tensor = doc("Where it ends, (K, S).")
    even: Tensor = doc(
        "The mean of the same statistic where the keys of each query are shuffled, that is of even "
        "weights, (K, S). NaN if it has no meaning (entropy)."
    )
    shuffled: Tensor = doc("The mean where the model reads the tokens in another order, (K, S).")
    p_even: Tensor = doc(
        "Two-sided, of the difference from shuffled keys, by sign flips of the texts, corrected "
        "for all heads and statistics, (K, S)."
    )
    p_shuffled: Tensor = doc("Likewise, of the difference from shuffled tokens, (K, S).")
    count: Tensor = doc("How many texts have such a token, (K, S).")
    roles: tuple[str, ...] = doc('The role of each head, or "".')
    sampled: int = doc("How many texts are a sample, of which all stages are compared.")
    texts: int = doc("How many texts were read.")
    tokens: int = doc("How many tokens they have.")
    compared: int = doc(
        "Of how many the statistics were compared with those of the weights that the model's own "
        "code returns."
    )
    notes: tuple[str, ...] = doc(
        "On texts that were left out or cut, and whether the texts are too few to name heads."
    )
    agreement: AgreementReport = doc(
        'Of all stages, on a sample of texts; and "statistics", the largest difference on the '
        "texts compared, as a share of the most that a statistic can be."
    )
    provenance: Provenance = doc("Of the model.")
    left_out: tuple[int, ...] = doc("The texts that were left out, counted from 1.", default=())
    confirmations: tuple[Confirmation, ...] = doc(
        "Of the roles that a probe is about, whether ablation confirms them.", default=()
    )
    kind: str = doc('What the corpus consists of: "text", "image" or "audio".', default="text")

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
            **described(self, "texts tokens notes left_out roles compared sampled"),
            "confirmations": [
                {**finite(asdict(one)), "confirmed": one.confirmed} for one in self.confirmations
            ],
            **proof(self),
        }

    def _columns_of_heads(self) -> Columns:
        return super()._columns_of_heads() | {"role": self.roles}

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
        for role in dict.fromkeys(filter(None, self.roles)):
            of_heads = zip(self.heads, self.roles, strict=True)
            listed = ", ".join(str(head) for head, other in of_heads if other == role)
            yield Text(f"{self.name_of(role)}: ", "bold").append(listed, "not bold")
        for confirmation in self.confirmations:
            yield Text(confirmation.sentence)
        yield from dim(self.notes)
