"""Checkpoints of one architecture, head by head over a corpus: what changed significantly."""

from __future__ import annotations

import math
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
from attnviz.results import AgreementReport, Axis, Provenance
from attnviz.results.agreement_report import Verdict
from attnviz.results.base import Columns, Rules, column, described, doc, documented, one_each
from attnviz.results.text import dim, literal, plain_table

_LISTED = 10  # heads
_TARGETS = {"self": "the token itself", "induction": "what followed the same token before"}


class Turn(NamedTuple):
    """Where a head changes most: the indices of the head, the statistic, and the step."""

    head: int
    statistic: int
    step: int


@documented
class CompareResult(HeadTable):
    """Of K heads in each of C models, S statistics over the same texts.

    A step is from one model to the next, in the order in which they were given. Heads and
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

    checkpoints: tuple[str, ...] = doc("The labels of the models, by default short names.")
    mean: Tensor = doc("The mean over texts, (C, K, S).")
    low: Tensor = doc("Where the 95 % interval of the mean over texts begins, (C, K, S).")
    high: Tensor = doc("Where it ends, (C, K, S).")
    change: Tensor = doc("The mean over texts of the change from the one before, (C - 1, K, S).")
    change_low: Tensor = doc("Where its 95 % interval over texts begins, (C - 1, K, S).")
    change_high: Tensor = doc("Where it ends, (C - 1, K, S).")
    p_value: Tensor = doc(
        "Two-sided, of the changes, by sign flips of the texts, as if the models were exchanged in "
        "some of them; corrected for all heads, statistics and steps, (C - 1, K, S)."
    )
    texts: int = doc("How many texts were processed.")
    tokens: int = doc("How many tokens they have.")
    notes: tuple[str, ...] = doc("On texts that were left out or cut.")
    agreements: tuple[AgreementReport, ...] = doc("Of each model.")
    provenances: tuple[Provenance, ...] = doc("Of each model.")
    left_out: tuple[int, ...] = doc("The texts that were left out, counted from 1.", default=())
    apart: Tensor | None = doc(
        "The distance of the maps of two models, from 0 to 1, (K,): the square root of the "
        "Jensen–Shannon divergence, in bits, between the weights of a head in both models, mean "
        "over the rows of a text, then over texts. None for three or more.",
        default=None,
    )
    apart_low: Tensor | None = doc("Where its 95 % interval over texts begins.", default=None)
    apart_high: Tensor | None = doc("Where it ends.", default=None)
    roles: tuple[tuple[str, ...], ...] = doc(
        'For each of three or more models the role of each head, or "", as in `SurveyResult`.',
        default=(),
    )

    main_array: ClassVar[str] = "change"

    def _rules(self) -> Rules:
        count, shape = len(self.checkpoints), (len(self.heads), len(self.statistics))
        yield "two models or more", count > 1
        for name, value in self.to_arrays().items():
            of_all = name in ("mean", "low", "high")
            of_models = (count if of_all else count - 1, *shape)
            expected = shape[:1] if name.startswith("apart") else of_models
            yield f"{name} of shape {expected}", tuple(value.shape) == expected
        per_model = self.roles or None, self.agreements, self.provenances
        yield "roles, a report and a provenance of each model", one_each(count, per_model)
        yield "a role of each head", one_each(shape[0], self.roles)

    @property
    def agreement(self) -> AgreementReport:
        """The worst of the reports."""
        order = get_args(Verdict)
        return min(self.agreements, key=lambda agreement: order.index(agreement.verdict))

    def _bind(self, report: AgreementReport) -> None:
        bound = tuple(replace(one, digest=report.digest) for one in self.agreements)
        object.__setattr__(self, "agreements", bound)

    def __repr__(self) -> str:
        names, read = self.checkpoints, f"{len(self.heads)} heads on {self.texts:,} texts"
        return f"CompareResult({len(names)} models, {names[0]} to {names[-1]}: {read})"

    @property
    def shown_labels(self) -> list[str]:
        """The labels, as figures and the terminal show them."""
        return [literal(label, 40) for label in self.checkpoints]

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

    def about(self) -> dict[str, Any]:
        """Return the size of the corpus, the roles, and the agreement of each model."""
        return {
            **described(self, "checkpoints texts tokens notes left_out"),
            "roles": [list(roles) for roles in self.roles],
            "provenances": [asdict(provenance) for provenance in self.provenances],
            "agreements": [agreement.about() for agreement in self.agreements],
        }

    def columns_of_table(self) -> Columns:
        """Return one row for each model, head and statistic.

        Changes and distances are those from the model before; the first has none.
        """
        count, width = len(self.checkpoints), len(self.statistics)
        shape = len(self.heads), width
        columns: Columns = {"checkpoint": np.repeat(self.checkpoints, math.prod(shape)).tolist()}
        for name, values in self._columns_of_heads().items():
            columns[name] = np.tile(np.repeat(values, width), count).tolist()
        if self.roles:
            columns["role"] = np.repeat(self.roles, width).tolist()
        columns["statistic"] = list(self.statistics) * (len(self.heads) * count)
        for name, array in self.to_arrays().items():
            array = array[None, :, None].expand(1, *shape) if array.dim() == 1 else array
            steps = (0, 0, 0, 0, count - len(array), 0)  # the first model has no changes
            columns[name] = column(pad(array, steps, value=torch.nan))
        return columns

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from self._told_paths() if self.apart is None else self._told_pair(self.apart)
        yield from dim(self.notes)

    def _told_pair(self, apart: Tensor) -> RenderResult:
        first, second = self.shown_labels
        title = f"{len(self.heads)} heads of {second} beside those of {first}"
        yield Text(f"{title}, {self.texts:,} texts", "bold")
        table = plain_table((), ("head", "apart", "95 %"))
        table.add_column("changed most, significantly")
        change, p_value = self.change[0], self.p_value[0]
        # Statistics have different units: compare each change with its uncertainty.
        sizes = (change / (self.change_high - self.change_low)[0].clamp(min=1e-12)).abs()
        for n in apart.argsort(descending=True).tolist()[:_LISTED]:
            sure = [index for index in range(len(self.statistics)) if p_value[n, index] < SURE]
            most = sorted(sure, key=sizes[n].tolist().__getitem__, reverse=True)[:2]
            changes = [f"{self.statistics[index]} {change[n, index]:+.2g}" for index in most]
            table.add_row(str(self.heads[n]), *self.distance(n), ", ".join(changes) or "–")
        yield table

    def distance(self, head: int) -> tuple[str, str]:
        """Return in words how far apart the maps of a head are in two models, with the interval."""
        numbers = [of for of in (self.apart, self.apart_low, self.apart_high) if of is not None]
        mean, low, high = (f"{of[head]:.2g}" for of in numbers)
        return mean, f"{low} to {high}"

    def _told_paths(self) -> RenderResult:
        """Yield the longest paths of heads over three models or more, and how roles change."""
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
        changes: dict[tuple[int, str], list[str]] = {}
        for step, (before, after) in enumerate(zip(self.roles, self.roles[1:], strict=False)):
            for name, old, new in zip(self.heads, before, after, strict=True):
                for role, verb in ((old, "vanishes from"), (new, "appears in")):
                    if role and old != new:
                        changes.setdefault((step, f"“{role}” {verb}"), []).append(str(name))
        for (step, what), heads in changes.items():
            change = f"{what} {', '.join(heads)}"
            yield Text(f"{labels[step + 1]}: ", "bold").append(change, "not bold")
