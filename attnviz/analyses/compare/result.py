"""Checkpoints of one architecture, head by head over a corpus: what changed significantly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any, ClassVar, NamedTuple, get_args

import numpy as np
import torch
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text
from torch import Tensor
from torch.nn.functional import pad

from attnviz.analyses.survey.result import SURE, HeadTable
from attnviz.heads import NAMES, TITLES, Positions, largest
from attnviz.results import Axis
from attnviz.results.agreement_report import AgreementReport, Verdict
from attnviz.results.attention_result import Provenance
from attnviz.results.base import Columns, Rules, column, described, doc, documented, one_each
from attnviz.results.text import dim, literal, plain_table

_LISTED = 10  # heads
_TARGETS = {"self": "the token itself", "induction": "what followed the same token before"}


class SeveralModels:
    """What results of several models over one corpus have in common: a report of each."""

    agreements: tuple[AgreementReport, ...]
    provenances: tuple[Provenance, ...]

    @property
    def agreement(self) -> AgreementReport:
        """The worst of the reports."""
        order = get_args(Verdict)
        return min(self.agreements, key=lambda agreement: order.index(agreement.verdict))

    def _bind(self, report: AgreementReport) -> None:
        bound = tuple(replace(one, digest=report.digest) for one in self.agreements)
        object.__setattr__(self, "agreements", bound)

    def about(self) -> dict[str, Any]:
        """Return the size of the corpus, and the agreement of each model."""
        return {
            **described(self, "texts tokens notes left_out"),
            "provenances": [asdict(provenance) for provenance in self.provenances],
            "agreements": [agreement.about() for agreement in self.agreements],
        }


@documented
class CompareResult(SeveralModels, HeadTable):
    """Of K heads of two models, S statistics over the same texts, and how far the maps are apart.

    Heads and statistics are named as in `SurveyResult`.

    Examples
    --------
    >>> import attnviz
    >>> texts = ["the train left the station", "the cat saw the dog"]
    >>> models = {"float32": attnviz.load(), "bfloat16": attnviz.load(dtype="bfloat16")}
    >>> result = attnviz.compare(texts, models=models)
    >>> figure = result.plot()
    """

    first: Tensor = doc("The means over texts in the first model, (K, S).")
    second: Tensor = doc("The means over texts in the second model, (K, S).")
    change: Tensor = doc("The mean over texts of the difference, second - first, (K, S).")
    low: Tensor = doc("Where the 95 % interval of the change over texts begins, (K, S).")
    high: Tensor = doc("Where it ends, (K, S).")
    p_value: Tensor = doc(
        "Two-sided, by sign flips of the texts, as if the models were exchanged in some of them; "
        "corrected for all heads and statistics, (K, S)."
    )
    apart: Tensor = doc(
        "The distance of the maps, from 0 to 1, (K,): the square root of the "
        "Jensen–Shannon divergence, in bits, between the weights of a head in both models, mean "
        "over the rows of a text, then over texts."
    )
    apart_low: Tensor = doc("Where the 95 % interval of the distance over texts begins, (K,).")
    apart_high: Tensor = doc("Where it ends, (K,).")
    texts: int = doc("How many texts were processed.")
    tokens: int = doc("How many tokens they have.")
    notes: tuple[str, ...] = doc("On texts that were left out or cut.")
    agreements: tuple[AgreementReport, AgreementReport] = doc("Of the first and the second model.")
    provenances: tuple[Provenance, Provenance] = doc("Of the two models, in order.")
    left_out: tuple[int, ...] = doc("The texts that were left out, counted from 1.", default=())
    checkpoints: tuple[str, ...] = doc("The labels of the models, if any were given.", default=())

    main_array: ClassVar[str] = "change"

    @property
    def names(self) -> tuple[str, str]:
        """The names of the models, or their labels; the same name has the start of the SHA-256."""
        first, second = self.checkpoints or (one.model for one in self.provenances)
        if self.checkpoints or first != second:
            return first, second
        one, other = (f"{first} ({one.weights_sha256[:6]})" for one in self.provenances)
        return one, other

    def __repr__(self) -> str:
        models = " and ".join(provenance.model for provenance in self.provenances)
        return f"CompareResult({models}: {len(self.heads)} heads on {self.texts:,} texts)"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        first, second = map(literal, self.names)
        title = f"{len(self.heads)} heads of {second} beside those of {first}"
        yield Text(f"{title}, {self.texts:,} texts", "bold")
        table = plain_table((), ("head", "apart", "95 %"))
        table.add_column("changed most, significantly")
        for n in self.apart.argsort(descending=True).tolist()[:_LISTED]:
            # Statistics have different units: compare each change with its uncertainty.
            interval = (self.high - self.low)[n].clamp(min=1e-12)
            sizes = {
                index: abs(float(self.change[n, index] / interval[index]))
                for index in range(len(self.statistics))
                if self.p_value[n, index] < SURE
            }
            most = sorted(sizes, key=sizes.__getitem__, reverse=True)[:2]
            changes = [f"{self.statistics[index]} {self.change[n, index]:+.2g}" for index in most]
            table.add_row(
                str(self.heads[n]),
                f"{self.apart[n]:.2g}",
                f"{self.apart_low[n]:.2g} to {self.apart_high[n]:.2g}",
                ", ".join(changes) or "–",
            )
        yield table
        yield from dim(self.notes)


class Turn(NamedTuple):
    """Where a head changes most: the indices of the head, the statistic, and the step."""

    head: int
    statistic: int
    step: int


@documented
class CheckpointsResult(SeveralModels, HeadTable):
    """Of K heads in each of C checkpoints, S statistics over the same texts.

    A step is from one checkpoint to the next, in the order in which they were given. Heads and
    statistics are named as in `SurveyResult`.

    Examples
    --------
    >>> import attnviz
    >>> texts = ["the train left the station", "the cat saw the dog"]
    >>> one, two = attnviz.load(), attnviz.load(dtype="bfloat16")
    >>> result = attnviz.compare(texts, models={"step 0": one, "step 1": two, "step 2": one})
    >>> result.checkpoints
    ('step 0', 'step 1', 'step 2')
    >>> figure = result.plot()
    """

    checkpoints: tuple[str, ...] = doc("The labels of the checkpoints.")
    mean: Tensor = doc("The mean over texts, (C, K, S).")
    low: Tensor = doc("Where the 95 % interval of the mean over texts begins, (C, K, S).")
    high: Tensor = doc("Where it ends, (C, K, S).")
    change: Tensor = doc("The mean over texts of the change from the one before, (C - 1, K, S).")
    change_low: Tensor = doc("Where its 95 % interval over texts begins, (C - 1, K, S).")
    change_high: Tensor = doc("Where it ends, (C - 1, K, S).")
    p_value: Tensor = doc(
        "Two-sided, of the changes, by sign flips of the texts, corrected for all heads, "
        "statistics and steps, (C - 1, K, S)."
    )
    roles: tuple[tuple[str, ...], ...] = doc(
        'For each checkpoint the role of each head, or "", as in `SurveyResult`.'
    )
    texts: int = doc("How many texts were processed.")
    tokens: int = doc("How many tokens they have.")
    notes: tuple[str, ...] = doc("On texts that were left out or cut.")
    agreements: tuple[AgreementReport, ...] = doc("Of each checkpoint.")
    provenances: tuple[Provenance, ...] = doc("Of each checkpoint.")
    left_out: tuple[int, ...] = doc("The texts that were left out, counted from 1.", default=())

    main_array: ClassVar[str] = "mean"

    def _rules(self) -> Rules:
        count, shape = len(self.checkpoints), (len(self.heads), len(self.statistics))
        of_all, of_steps = (count, *shape), (count - 1, *shape)
        yield "two checkpoints or more", count > 1
        for name, value in self.to_arrays().items():
            expected = of_all if name in ("mean", "low", "high") else of_steps
            yield f"{name} of shape {expected}", tuple(value.shape) == expected
        per_model = self.roles, self.agreements, self.provenances
        yield "roles, a report and a provenance of each checkpoint", one_each(count, per_model)
        yield "a role of each head", one_each(shape[0], self.roles)

    def __repr__(self) -> str:
        names, read = self.checkpoints, f"{len(self.heads)} heads on {self.texts:,} texts"
        return f"CheckpointsResult({len(names)} checkpoints, {names[0]} to {names[-1]}: {read})"

    @property
    def names(self) -> tuple[str, ...]:
        """The labels of the checkpoints."""
        return self.checkpoints

    @property
    def shown_labels(self) -> list[str]:
        """The labels, as figures and the terminal show them."""
        return [literal(label, 24) for label in self.checkpoints]

    def turns(self, statistic: int | None = None) -> list[Turn]:
        """Return the heads with a significant step, the longest path (as a share) first.

        statistic : the index of the statistic that counts; by default, of each head, the one that
        changes most.
        """
        typical = Positions.of(Axis.numbered(max(2, self.tokens // max(1, self.texts))))
        limits = dict(zip(NAMES, largest(typical), strict=True))
        units = torch.tensor([float(limits.get(name, 1.0)) for name in self.statistics])
        # A path that is NaN somewhere has no significant step there.
        highest = self.mean.nan_to_num(-torch.inf).amax(0)
        lowest = self.mean.nan_to_num(torch.inf).amin(0)
        ranges = ((highest - lowest) / units).nan_to_num(0.0)
        ranges = torch.where((self.p_value < SURE).any(0), ranges, 0.0)
        sizes, statistics = (ranges if statistic is None else ranges[:, [statistic]]).max(1)
        order = sizes.argsort(descending=True, stable=True)
        turns = []
        for head in order[sizes[order] > 0].tolist():
            column = int(statistics[head]) if statistic is None else statistic
            steps = self.change[:, head, column].abs().nan_to_num(0.0)
            sure = self.p_value[:, head, column] < SURE
            turns.append(Turn(head, column, int(torch.where(sure, steps, -1.0).argmax())))
        return turns

    def describe(self, turn: Turn) -> str:
        """Return in words what a head does at its largest step."""
        rises = float(self.change[turn.step, turn.head, turn.statistic]) > 0
        before, after = self.shown_labels[turn.step : turn.step + 2]
        head, title = self.heads[turn.head], self.title_of(turn.statistic)
        if "for " in title:
            name = self.statistics[turn.statistic]
            target = _TARGETS.get(name) or title.partition("for ")[2]
            what = f"head {head} turns {'to' if rises else 'away from'} {target}"
        else:
            number = title.partition(",")[0]
            what = f"the {number} of head {head} {'rises' if rises else 'falls'}"
        return f"Between {before} and {after}, {what}"

    def title_of(self, statistic: int) -> str:
        """Return what a statistic is, as figures say it."""
        name = self.statistics[statistic]
        return TITLES.get(name, name)

    def role_changes(self) -> Iterator[tuple[int, int, str, str]]:
        """Yield the step, the head, its role before and its role after, where roles change."""
        for step, (before, after) in enumerate(zip(self.roles, self.roles[1:], strict=False)):
            for head, (old, new) in enumerate(zip(before, after, strict=True)):
                if old != new:
                    yield step, head, old, new

    def about(self) -> dict[str, Any]:
        """Return the size of the corpus, the roles, and the agreement of each model."""
        about = {"checkpoints": list(self.checkpoints), **super().about()}
        models = {name: about.pop(name) for name in ("provenances", "agreements")}
        return {**about, "roles": [list(roles) for roles in self.roles], **models}

    def columns_of_table(self) -> Columns:
        """Return one row for each checkpoint, head and statistic.

        Changes are those from the checkpoint before; the first has none.
        """
        count, width = len(self.checkpoints), len(self.statistics)
        rows = len(self.heads) * width
        columns: Columns = {"checkpoint": np.repeat(self.checkpoints, rows).tolist()}
        for name, values in self._columns_of_heads().items():
            columns[name] = np.tile(np.repeat(values, width), count).tolist()
        columns["role"] = np.repeat(self.roles, width).tolist()
        columns["statistic"] = list(self.statistics) * (len(self.heads) * count)
        for name, array in self.to_arrays().items():
            steps = (0, 0, 0, 0, count - len(array), 0)  # the first checkpoint has no changes
            columns[name] = column(pad(array, steps, value=torch.nan))
        return columns

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        labels = self.shown_labels
        title = f"{len(self.heads)} heads in {len(labels)} checkpoints, {self.texts:,} texts"
        yield Text(title, "bold")
        yield Text(" → ".join(labels), "dim")
        table = plain_table(("head", "statistic", "path", "largest step", "change", "95 %"))
        for head, statistic, step in self.turns()[:_LISTED]:
            at = step, head, statistic
            table.add_row(
                str(self.heads[head]),
                self.statistics[statistic],
                " → ".join(f"{value:.2g}" for value in self.mean[:, head, statistic].tolist()),
                f"{labels[step]} to {labels[step + 1]}",
                f"{self.change[at]:+.2g}",
                f"{self.change_low[at]:.2g} to {self.change_high[at]:.2g}",
            )
        yield table if table.row_count else Text("No head changed significantly.")
        changes: dict[tuple[int, str, bool], list[str]] = {}
        for step, head, old, new in self.role_changes():
            for role, appears in ((old, False), (new, True)):
                if role:
                    changes.setdefault((step, role, appears), []).append(str(self.heads[head]))
        for (step, role, appears), heads in changes.items():
            verb = "appears in" if appears else "vanishes from"
            yield Text(f"{labels[step + 1]}: ", "bold").append(
                f"“{role}” {verb} {', '.join(heads)}", "not bold"
            )
        yield from dim(self.notes)
