"""What every head of a model does on a corpus."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

import attnviz
from attnviz.analyses.explore.examples import DECILES, HeadExample
from attnviz.analyses.survey.result import SurveyResult
from attnviz.analyses.survey.statistics import TITLES
from attnviz.results.agreement_report import AgreementReport
from attnviz.results.attention_result import Provenance
from attnviz.results.axis import literal
from attnviz.results.base import Columns, Result, Rules, Savable, proof

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console, ConsoleOptions, RenderResult


_SIMILAR = 5  # heads
_LISTED = 10


@dataclass(frozen=True, eq=False)
class QueryKeyPlane(Savable):
    """Queries and keys of some tokens, placed so that their inner products are close to scores."""

    tokens: tuple[str, ...]
    queries: Tensor  # (n, 2)
    keys: Tensor  # (n, 2)
    explained: float  # the share of the scores, centered for each query, that the plane holds

    def _rules(self) -> Rules:
        """Yield what the fields should have."""
        shape = len(self.tokens), 2
        yield "a query and a key of each token", self.queries.shape == self.keys.shape == shape


@dataclass(frozen=True)
class WrittenTokens(Savable):
    """The tokens whose logits a head raises and lowers most, the largest change first.

    Each is a token, the mean change of its logit over some texts, and in how many of them the
    change had this sign.
    """

    raises: tuple[tuple[str, float, int], ...]
    lowers: tuple[tuple[str, float, int], ...]


@dataclass(frozen=True, eq=False)
class ExploreResult(Result):
    """Of K heads, a survey, examples, what each looks for, and what it writes.

    Attributes
    ----------
    survey : SurveyResult
        The statistics of all heads.
    tokens : mapping of str to tuple of str
        The tokens of the texts that examples use, by the number of the text in decimals.
    examples : tuple
        Of each head, its strongest examples, each of another text.
    deciles : tuple
        Of each head, examples at the 90, 80, …, 10 % quantiles of a random sample of queries.
    planes : tuple of QueryKeyPlane
        Of each head, queries and keys of tokens.
    written : tuple of WrittenTokens
        Of each head; empty if the model predicts no tokens.
    effects : Tensor or None
        The log-probability that a next token loses without each head, in nats, the mean over the
        tokens of a text, then over some texts, (K,).
    notes : tuple of str
        On what is left out.
    agreement : AgreementReport
        That of the survey.
    provenance : Provenance
        Of the model.
    """

    survey: SurveyResult
    tokens: Mapping[str, tuple[str, ...]]
    examples: tuple[tuple[HeadExample, ...], ...]
    deciles: tuple[tuple[HeadExample, ...], ...]
    planes: tuple[QueryKeyPlane, ...]
    written: tuple[WrittenTokens, ...]
    effects: Tensor | None
    notes: tuple[str, ...]
    agreement: AgreementReport
    provenance: Provenance

    main_array: ClassVar[str] = "mean"

    def _rules(self) -> Rules:
        """Yield what the fields should have."""
        K = len(self.survey.heads)
        of_heads = self.examples, self.deciles, self.planes
        yield "examples and a plane of each head", all(len(one) == K for one in of_heads)
        yield "written tokens of each head or of none", len(self.written) in (0, K)
        yield "an effect of each head", self.effects is None or self.effects.shape == (K,)
        shown = [one for several in (*self.examples, *self.deciles) for one in several]
        yield "tokens of each example", all(
            str(one.text) in self.tokens and 0 <= one.row < len(self.tokens[str(one.text)])
            and len(one.weights) <= len(self.tokens[str(one.text)])
            for one in shown
        )  # fmt: skip

    def __repr__(self) -> str:
        """Return a summary without the tensors."""
        return (
            f"ExploreResult({self.provenance.model}: {len(self.survey.heads)} heads on "
            f"{self.survey.texts:,} texts, {self.checked_agreement.verdict})"
        )

    def to_arrays(self) -> dict[str, Tensor]:
        """Return the arrays of the survey, and the effects."""
        arrays = self.survey.to_arrays()
        return arrays if self.effects is None else arrays | {"effects": self.effects}

    def labels(self) -> dict[str, list[str]]:
        """Return the names of the heads and of the statistics."""
        return self.survey.labels()

    def columns_of_table(self) -> Columns:
        """Return one row for each head and statistic, as the survey does."""
        columns = dict(self.survey.columns_of_table())
        if self.effects is not None:
            columns["effect"] = np.repeat(self.effects.numpy(), len(self.survey.statistics))
        return columns

    def about(self) -> dict[str, Any]:
        """Return the survey, the examples, what heads write, and the proof."""
        return {
            **self.survey.about(),
            "examples": [[asdict(one) for one in several] for several in self.examples],
            "written": [asdict(one) for one in self.written],
            **proof(self),
        }

    def page(self) -> Any:
        """Return the interactive page, as `attnviz.view` does: `.save("heads.html")` writes it."""
        return attnviz.view(self)

    def payload(self) -> dict[str, Any]:
        """Return the data of the page."""
        survey = self.survey
        statistics = [
            (column, name)
            for column, name in enumerate(survey.statistics)
            if survey.count[:, column].any()
        ]
        columns = [column for column, _ in statistics]
        report = self.checked_agreement

        def numbers(table: Tensor, head: int) -> list[float | None]:
            values = table[head, columns].double().tolist()
            return [None if value != value else round(value, 4) for value in values]

        heads = []
        for k, head in enumerate(survey.heads):
            role = survey.roles[k]
            heads.append(
                {
                    "name": str(head),
                    "layer": head.layer,
                    "head": head.head,
                    "role": role,
                    "looks": survey.name_of(role) if role else "",
                    "values": numbers(survey.mean, k),
                    "low": numbers(survey.low, k),
                    "high": numbers(survey.high, k),
                    "even": numbers(survey.even, k),
                    "similar": [n for n in survey.distances[k].argsort().tolist() if n != k][
                        :_SIMILAR
                    ],
                    "examples": [_example_data(one) for one in self.examples[k]],
                    "deciles": [
                        {"decile": decile, **_example_data(one)}
                        for decile, one in zip(DECILES, self.deciles[k], strict=False)
                    ],
                    "plane": _plane_data(self.planes[k]),
                    "writes": None if not self.written else _rounded(self.written[k]),
                    "effect": None if self.effects is None else round(float(self.effects[k]), 4),
                }
            )
        return {
            "model": self.provenance.model,
            "caption": [
                f"{survey.texts:,} texts, {survey.tokens:,} tokens",
                *survey.notes,
                *self.notes,
            ],
            "verdict": report.summary(),
            "verified": report.verdict == "verified",
            "statistics": [
                {"name": name, "title": TITLES.get(name, name)} for _, name in statistics
            ],
            "texts": {number: list(tokens) for number, tokens in self.tokens.items()},
            "heads": heads,
        }

    def plot(self, **keywords: Any) -> Figure:
        """Draw the survey: see `attnviz.plot.survey`."""
        return attnviz.plot.survey(self.survey, **keywords)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Print the heads with a role, their strongest example, and what they write."""
        from rich.table import Table
        from rich.text import Text

        survey = self.survey
        yield Text(
            f"{len(survey.heads)} heads of {literal(self.provenance.model)} on {survey.texts:,} "
            "texts",
            "bold",
        )
        table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
        for name in ("head", "role", "strongest example", "raises", "lost without it"):
            table.add_column(name)
        named = [k for k, role in enumerate(survey.roles) if role and "rests" not in role]
        for k in named[:_LISTED]:
            best = self.examples[k][0] if self.examples[k] else None
            tokens = () if best is None else self.tokens[str(best.text)]
            pair = "–" if best is None else f"{tokens[best.row]} → {tokens[best.key]}"
            raised = (
                ", ".join(one[0].strip() for one in self.written[k].raises[:3])
                if (self.written)
                else "–"
            )
            lost = "–" if self.effects is None else f"{self.effects[k]:.3f}"
            table.add_row(str(survey.heads[k]), survey.roles[k], *map(Text, (pair, raised, lost)))
        yield table
        for note in (*survey.notes, *self.notes):
            yield Text(note, "dim")


def _example_data(example: HeadExample) -> dict[str, Any]:
    """Return an example with rounded weights."""
    weights = [round(weight, 3) for weight in example.weights]
    return {**asdict(example), "weight": round(example.weight, 3), "weights": weights}


def _plane_data(plane: QueryKeyPlane) -> dict[str, Any]:
    """Return the places of queries and keys, rounded."""

    def places(points: Tensor) -> list[list[Any]]:
        rounded = torch.round(points, decimals=3).tolist()
        return [[token, *place] for token, place in zip(plane.tokens, rounded, strict=True)]

    return {
        "queries": places(plane.queries),
        "keys": places(plane.keys),
        "explained": round(plane.explained, 3),
    }


def _rounded(written: WrittenTokens) -> dict[str, Any]:
    """Return written tokens with rounded changes."""
    return {
        name: [[token, round(change, 3), count] for token, change, count in tokens]
        for name, tokens in asdict(written).items()
    }
