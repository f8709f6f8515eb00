"""Two checkpoints of one architecture, head by head over a corpus: what changed significantly."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import Any, ClassVar, get_args

import numpy as np
import torch
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text
from torch import Tensor
from torch.nn.functional import pad

from attnviz.analyses.survey.result import SURE, HeadTable
from attnviz.results import AgreementReport, Provenance
from attnviz.results.agreement_report import Verdict
from attnviz.results.base import Columns, Rules, column, described, doc, documented, one_each
from attnviz.results.text import dim, literal, plain_table

_LISTED = 10  # heads


@documented
class CompareResult(HeadTable):
    """Of K heads in each of two models, S statistics over the same texts.

    Heads and statistics are named as in `SurveyResult`.

    Examples
    --------
    >>> import attnviz
    >>> texts = ["the train left the station", "the cat saw the dog"]
    >>> one, two = attnviz.load(), attnviz.load(dtype="bfloat16")
    >>> result = attnviz.compare(texts, models={"before": one, "after": two})
    >>> result.checkpoints
    ('before', 'after')
    >>> figure = result.plot()
    """

    checkpoints: tuple[str, ...] = doc("The labels of the models, by default short names.")
    mean: Tensor = doc("The mean over texts, (2, K, S).")
    low: Tensor = doc("Where the 95 % interval of the mean over texts begins, (2, K, S).")
    high: Tensor = doc("Where it ends, (2, K, S).")
    change: Tensor = doc("The mean over texts of the second minus the first, (1, K, S).")
    change_low: Tensor = doc("Where its 95 % interval over texts begins, (1, K, S).")
    change_high: Tensor = doc("Where it ends, (1, K, S).")
    p_value: Tensor = doc(
        "Two-sided, of the changes, by sign flips of the texts, as if the models were exchanged in "
        "some of them; corrected for all heads and statistics, (1, K, S)."
    )
    texts: int = doc("How many texts were processed.")
    tokens: int = doc("How many tokens they have.")
    notes: tuple[str, ...] = doc("On texts that were left out or cut.")
    agreements: tuple[AgreementReport, ...] = doc("Of each model.")
    provenances: tuple[Provenance, ...] = doc("Of each model.")
    left_out: tuple[int, ...] = doc("The texts that were left out, counted from 1.", default=())
    apart: Tensor = doc(
        "The distance of the maps of a head, from 0 to 1, (K,): the square root of the "
        "Jensen–Shannon divergence, in bits, between its weights in both models, mean over the "
        "rows of a text, then over texts.",
        kw_only=True,
    )
    apart_low: Tensor = doc("Where its 95 % interval over texts begins, (K,).", kw_only=True)
    apart_high: Tensor = doc("Where it ends, (K,).", kw_only=True)

    main_array: ClassVar[str] = "change"

    def _rules(self) -> Rules:
        per_model = self.checkpoints, self.agreements, self.provenances
        yield "two models, with a report and a provenance of each", one_each(2, per_model)
        shape = len(self.heads), len(self.statistics)
        for name, value in self.to_arrays().items():
            of_models = (2 if name in ("mean", "low", "high") else 1, *shape)
            expected = shape[:1] if name.startswith("apart") else of_models
            yield f"{name} of shape {expected}", tuple(value.shape) == expected

    @property
    def agreement(self) -> AgreementReport:
        """The worst of the reports."""
        order = get_args(Verdict)
        return min(self.agreements, key=lambda agreement: order.index(agreement.verdict))

    def _bind(self, report: AgreementReport) -> None:
        bound = tuple(replace(one, digest=report.digest) for one in self.agreements)
        object.__setattr__(self, "agreements", bound)

    def __repr__(self) -> str:
        names, count = " to ".join(self.checkpoints), len(self.heads)
        return f"CompareResult(2 models, {names}: {count} heads on {self.texts:,} texts)"

    @property
    def shown_labels(self) -> list[str]:
        """The labels, as figures and the terminal show them."""
        return [literal(label, 40) for label in self.checkpoints]

    def about(self) -> dict[str, Any]:
        """Return the size of the corpus, and the agreement of each model."""
        return {
            **described(self, "checkpoints texts tokens notes left_out"),
            "provenances": [asdict(provenance) for provenance in self.provenances],
            "agreements": [agreement.about() for agreement in self.agreements],
        }

    def columns_of_table(self) -> Columns:
        """Return one row for each model, head and statistic.

        Changes and distances are those of the second model; the first has none.
        """
        shape = len(self.heads), len(self.statistics)
        columns: Columns = {"checkpoint": np.repeat(self.checkpoints, math.prod(shape)).tolist()}
        for name, values in self._columns_of_heads().items():
            columns[name] = np.tile(np.repeat(values, shape[1]), 2).tolist()
        columns["statistic"] = list(self.statistics) * (2 * shape[0])
        for name, array in self.to_arrays().items():
            array = array[None, :, None].expand(1, *shape) if array.dim() == 1 else array
            missing = (0, 0, 0, 0, 2 - len(array), 0)  # the first model has no changes
            columns[name] = column(pad(array, missing, value=torch.nan))
        return columns

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        first, second = self.shown_labels
        title = f"{len(self.heads)} heads of {second} beside those of {first}"
        yield Text(f"{title}, {self.texts:,} texts", "bold")
        table = plain_table((), ("head", "apart", "95 %"))
        table.add_column("changed most, significantly")
        change, p_value = self.change[0], self.p_value[0]
        # Statistics have different units: compare each change with its uncertainty.
        sizes = (change / (self.change_high - self.change_low)[0].clamp(min=1e-12)).abs()
        for n in self.apart.argsort(descending=True).tolist()[:_LISTED]:
            sure = [index for index in range(len(self.statistics)) if p_value[n, index] < SURE]
            most = sorted(sure, key=sizes[n].tolist().__getitem__, reverse=True)[:2]
            changes = [f"{self.statistics[index]} {change[n, index]:+.2g}" for index in most]
            table.add_row(str(self.heads[n]), *self.distance(n), ", ".join(changes) or "–")
        yield table
        yield from dim(self.notes)

    def distance(self, head: int) -> tuple[str, str]:
        """Return in words how far apart the maps of a head are in two models, with the interval."""
        intervals = self.apart, self.apart_low, self.apart_high
        mean, low, high = (f"{of[head]:.2g}" for of in intervals)
        return mean, f"{low} to {high}"
