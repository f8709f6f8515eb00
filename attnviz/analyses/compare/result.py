"""Two checkpoints of one architecture, head by head over a corpus: what changed significantly."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from torch import Tensor

import attnviz
from attnviz.analyses.survey.result import SURE, HeadTable
from attnviz.results.agreement_report import AgreementReport, Verdict
from attnviz.results.attention_result import Provenance
from attnviz.results.axis import literal

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console, ConsoleOptions, RenderResult

_LISTED = 10  # heads
_NAMED = 2  # statistics of each head


class SeveralModels:
    """What results of several models have in common: a report of each."""

    agreements: tuple[AgreementReport, ...]

    @property
    def agreement(self) -> AgreementReport:
        """The worst of the reports."""
        order = get_args(Verdict)
        return min(self.agreements, key=lambda agreement: order.index(agreement.verdict))

    def _bind(self, report: AgreementReport) -> None:
        bound = tuple(replace(one, digest=report.digest) for one in self.agreements)
        object.__setattr__(self, "agreements", bound)


@dataclass(frozen=True, eq=False)
class CompareResult(SeveralModels, HeadTable):
    """Of K heads of two models, S statistics over the same texts, and how far the maps are apart.

    Attributes
    ----------
    heads, statistics : tuple
        The names of heads and statistics, as in `SurveyResult`.
    first, second : Tensor
        The means over texts in each model, (K, S).
    change, low, high : Tensor
        The difference, second - first, text by text, and its 95 % interval, by a bootstrap over
        texts, (K, S).
    p_value : Tensor
        Two-sided, by sign flips of the texts, as if the models were exchanged in some of them;
        corrected for all heads and statistics, (K, S).
    apart, apart_low, apart_high : Tensor
        The distance of the maps, from 0 to 1, with its interval, (K,): the square root of the
        Jensen–Shannon divergence, in bits, between the weights of a head in both models, mean over
        the rows of a text, then over texts.
    texts, tokens : int
        How many were processed.
    notes : tuple of str
        On texts that were left out or cut.
    agreements, provenances : tuple
        Of the first model and of the second.
    left_out : tuple of int
        The texts that were left out, counted from 1.
    checkpoints : tuple of str
        The labels of the models, if they were given any.

    Examples
    --------
    >>> import attnviz
    >>> texts = ["the train left the station", "the cat saw the dog", "a man read the book"]
    >>> models = {"float32": attnviz.load(), "bfloat16": attnviz.load(dtype="bfloat16")}
    >>> result = attnviz.compare(texts, models=models)
    >>> figure = result.plot()
    """

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
    left_out: tuple[int, ...] = ()
    checkpoints: tuple[str, ...] = ()

    main_array: ClassVar[str] = "change"

    @property
    def names(self) -> tuple[str, str]:
        """The names of the models, or their labels; the same name has the start of the SHA-256."""
        if self.checkpoints:
            first_label, second_label = self.checkpoints
            return first_label, second_label
        first, second = self.provenances
        if first.model != second.model:
            return first.model, second.model
        return (
            f"{first.model} ({first.weights_sha256[:6]})",
            f"{second.model} ({second.weights_sha256[:6]})",
        )

    def __repr__(self) -> str:
        """Summarize the result without the tensors."""
        models = " and ".join(provenance.model for provenance in self.provenances)
        return f"CompareResult({models}: {len(self.heads)} heads on {self.texts:,} texts)"

    def about(self) -> dict[str, Any]:
        """Return the size of the corpus, and the agreement of each model."""
        return {
            "texts": self.texts,
            "tokens": self.tokens,
            "notes": list(self.notes),
            "left_out": list(self.left_out),
            "provenances": [asdict(provenance) for provenance in self.provenances],
            "agreements": [agreement.about() for agreement in self.agreements],
        }

    def plot(self, **keywords: Any) -> Figure:
        """Draw which heads changed: see `attnviz.plot.compare`."""
        return attnviz.plot.compare(self, **keywords)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Print the heads that are farthest apart, and their most significant changes."""
        from rich.table import Table
        from rich.text import Text

        first, second = map(literal, self.names)
        title = f"{len(self.heads)} heads of {second} beside those of {first}"
        yield Text(f"{title}, {self.texts:,} texts", "bold")
        table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
        for name in ("head", "apart", "95 %"):
            table.add_column(name, justify="right")
        table.add_column("changed most, significantly")
        for n in self.apart.argsort(descending=True).tolist()[:_LISTED]:
            # Statistics have different units: compare each change with its uncertainty.
            interval = (self.high - self.low)[n].clamp(min=1e-12)
            sizes = {
                index: abs(float(self.change[n, index] / interval[index]))
                for index in range(len(self.statistics))
                if self.p_value[n, index] < SURE
            }
            most = sorted(sizes, key=sizes.__getitem__, reverse=True)[:_NAMED]
            changes = [f"{self.statistics[index]} {self.change[n, index]:+.2g}" for index in most]
            table.add_row(
                str(self.heads[n]),
                f"{self.apart[n]:.2g}",
                f"{self.apart_low[n]:.2g} to {self.apart_high[n]:.2g}",
                ", ".join(changes) or "–",
            )
        yield table
        for note in self.notes:
            yield Text(note, "dim")
