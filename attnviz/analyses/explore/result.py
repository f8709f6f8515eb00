"""What every head of a model does on a corpus."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text
from torch import Tensor

import attnviz
from attnviz.analyses.survey.result import POSITIONS, SurveyResult
from attnviz.heads import RESTING_ROLES, TITLES
from attnviz.results import AgreementReport, Provenance
from attnviz.results.base import Columns, Result, Rules, Savable, doc, documented, finite, proof
from attnviz.results.text import dim, plain_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DECILES = range(90, 0, -10)


@dataclass(frozen=True)
class HeadExample(Savable):
    """One query of a text, and how a head attends from it.

    The key is an ordinary token other than the query, but itself too in a head with the role "own
    token", and special tokens in a head that rests on them.
    """

    text: int  # its number in the corpus
    row: int  # the query
    key: int  # the token that it attends to most
    weight: float
    weights: tuple[float, ...]  # of all tokens of the text


@dataclass(frozen=True)
class WrittenTokens(Savable):
    """The tokens whose logits a head raises and lowers most, the largest change first."""

    # A token, the mean change of its logit over some texts, and in how many it had this sign.
    raises: tuple[tuple[str, float, int], ...]
    lowers: tuple[tuple[str, float, int], ...]


@dataclass(frozen=True)
class ShownMedium(Savable):
    """An image or a sound of a page."""

    name: str
    image: str = ""  # a JPEG as a data URI, of the picture that the model was given
    seconds: float = 0.0  # how long the sound is
    outline: tuple[tuple[float, float], ...] = ()  # the least and largest sample of each part


@dataclass(frozen=True)
class HeadAxis(Savable):
    """The positions that heads attend from or to."""

    kind: str  # "patches", "frames" or "tokens"
    patches: tuple[tuple[int, int] | None, ...] = ()  # the row and column of each
    specials: tuple[str, ...] = ()  # the names of special tokens, which are no patches
    step: float = 0.0  # the seconds from one frame to the next

    def name_of(self, position: int, tokens: Sequence[str]) -> str:
        """Return what a position is called; `tokens` are those of the text."""
        if self.kind == "tokens":
            return tokens[position]
        if self.kind == "frames":
            return f"{position * self.step:.2f} s"
        patch = self.patches[position]
        return self.specials[position] if patch is None else f"r{patch[0]} c{patch[1]}"


@documented
class ExploreResult(Result):
    """Of K heads, a survey, examples, and what each writes.

    Examples
    --------
    >>> import attnviz
    >>> texts = ["the train left the station", "the cat saw the dog", "a man read the book"]
    >>> result = attnviz.explore(texts)
    >>> result
    ExploreResult(all-MiniLM-L6-v2: 72 heads on 3 texts, verified)
    """

    survey: SurveyResult = doc("The statistics of all heads.")
    tokens: Mapping[str, tuple[str, ...]] = doc(
        "The tokens of the texts that examples use, by the number of the text in decimals."
    )
    examples: tuple[tuple[HeadExample, ...], ...] = doc(
        "Of each head, its strongest examples, each of another text and with other tokens."
    )
    deciles: tuple[tuple[HeadExample, ...], ...] = doc(
        "Of each head, examples at the 90, 80, …, 10 % quantiles of a random sample of queries."
    )
    written: tuple[WrittenTokens, ...] = doc("Of each head; empty if the model predicts no tokens.")
    effects: Tensor | None = doc(
        "The log-probability that a next token loses without each head, in nats, the mean over the "
        "tokens of a text, then over some texts, (K,)."
    )
    notes: tuple[str, ...] = doc("On what is left out.")
    agreement: AgreementReport = doc("That of the survey.")
    provenance: Provenance = doc("Of the model.")
    media: Mapping[str, ShownMedium] = doc(
        "The images or sounds of examples, by their number in decimals; empty for texts.",
        default_factory=dict,
    )
    axes: tuple[HeadAxis, ...] = doc(
        "What queries and keys are; empty for texts, where all are tokens.", default=()
    )
    reads: tuple[tuple[int, int], ...] = doc(
        "Of each head, the indices in `axes` of its queries and of its keys.", default=()
    )

    main_array: ClassVar[str] = "mean"

    def _rules(self) -> Rules:
        K = len(self.survey.heads)
        yield "examples of each head", len(self.examples) == len(self.deciles) == K
        yield "written tokens of each head or of none", len(self.written) in (0, K)
        yield "an effect of each head", self.effects is None or self.effects.shape == (K,)
        shown = [one for several in (*self.examples, *self.deciles) for one in several]
        if self.axes:
            yield "axes of each head", len(self.reads) == K
            yield "a medium of each example", all(str(one.text) in self.media for one in shown)
            return
        yield "tokens of each example", all(
            str(one.text) in self.tokens and 0 <= one.row < len(self.tokens[str(one.text)])
            and len(one.weights) <= len(self.tokens[str(one.text)])
            for one in shown
        )  # fmt: skip

    def __repr__(self) -> str:
        return (
            f"ExploreResult({self.provenance.model}: {len(self.survey.heads)} heads on "
            f"{self.survey.read}, {self.checked_agreement.verdict})"
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

    @property
    def head_names(self) -> list[str]:
        """The names of the heads, with the stack where there are several."""
        heads = self.survey.heads
        several = len({head.stack for head in heads}) > 1
        return [f"{one.stack} {one.layer}.{one.head}" if several else str(one) for one in heads]

    def position_names(self, head: int, example: HeadExample) -> tuple[str, str]:
        """Return what the query and the key of an example are called."""
        tokens = self.tokens.get(str(example.text), ())
        if not self.axes:
            return tokens[example.row], tokens[example.key]
        queries, keys = (self.axes[axis] for axis in self.reads[head])
        return queries.name_of(example.row, tokens), keys.name_of(example.key, tokens)

    def page(self) -> Any:
        """Return the interactive page, as `attnviz.view` does: `.save("heads.html")` writes it."""
        return attnviz.view(self)

    def payload(self) -> dict[str, Any]:
        """Return the data of the page."""
        survey, report = self.survey, self.checked_agreement
        columns = survey.count.any(0).nonzero()[:, 0].tolist()
        shown = [survey.statistics[column] for column in columns]
        read = f"{survey.read}, {survey.tokens:,} {POSITIONS[survey.kind]}"
        tables = {"values": survey.mean, "low": survey.low, "high": survey.high}
        tables["even"] = survey.even
        scaled = survey.mean[:, columns].nan_to_num()  # by how much heads differ in each statistic
        scaled /= scaled.std(0, correction=0).clamp(min=1e-9)
        near = torch.cdist(scaled, scaled).argsort(dim=1).tolist()
        names, stacks = self.head_names, {head.stack for head in survey.heads}
        heads = []
        for k, head in enumerate(survey.heads):
            role, deciles = survey.roles[k], self.deciles[k]
            numbers = {name: of[k, columns].tolist() for name, of in tables.items()}
            heads.append(
                {
                    "name": names[k],
                    "stack": head.stack if len(stacks) > 1 else "",
                    "layer": head.layer,
                    "head": head.head,
                    "role": role,
                    "looks": survey.name_of(role) if role else "",
                    **finite(numbers, 4),
                    "similar": [n for n in near[k] if n != k][:5],
                    "axes": list(self.reads[k]) if self.axes else None,
                    "examples": [self._example_data(k, one) for one in self.examples[k]],
                    "deciles": [  # each example once: a small corpus has one at several
                        {"decile": decile, **self._example_data(k, one)}
                        for decile, one, last in zip(
                            DECILES, deciles, (None, *deciles), strict=False
                        )
                        if one != last
                    ],
                    "writes": finite(asdict(self.written[k]), 3) if self.written else None,
                    "effect": None if self.effects is None else round(float(self.effects[k]), 4),
                }
            )
        return {
            "model": self.provenance.model,
            "caption": [read, *survey.notes, *self.notes],
            "verdict": report.summary(),
            "verified": report.verdict == "verified",
            "statistics": [{"name": name, "title": TITLES.get(name, name)} for name in shown],
            "texts": {number: list(tokens) for number, tokens in self.tokens.items()},
            "media": {number: asdict(one) for number, one in self.media.items()},
            "axes": [asdict(axis) for axis in self.axes],
            "heads": heads,
        }

    def _example_data(self, head: int, example: HeadExample) -> dict[str, Any]:
        """Return an example, rounded; of frames after the sound only the sum of weights, `rest`."""
        data: dict[str, Any] = finite(asdict(example), 3)
        if not self.axes:
            return data
        axis, weights = self.axes[self.reads[head][1]], example.weights
        if axis.kind == "frames":
            end = math.ceil(self.media[str(example.text)].seconds / axis.step - 1e-6)
            data["rest"] = round(math.fsum(weights[end:]), 3)
            weights = weights[:end]
        return {**data, "weights": [round(1000 * weight) for weight in weights]}

    def plot(self, **keywords: Any) -> Figure:
        """Draw the survey: see `attnviz.plot.survey`."""
        return attnviz.plot.survey(self.survey, **keywords)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        survey = self.survey
        title = f"{len(survey.heads)} heads of {self.provenance.model_name} on {survey.read}"
        yield Text(title, "bold")
        table = plain_table(("head", "role", "strongest example", "raises", "lost without it"))
        named = [k for k, role in enumerate(survey.roles) if role and role not in RESTING_ROLES]
        for k in named[:10]:
            best = self.examples[k][0] if self.examples[k] else None
            pair = "–" if best is None else " → ".join(self.position_names(k, best))
            raises = self.written[k].raises[:3] if self.written else ()
            raised = ", ".join(one[0].strip() for one in raises) if self.written else "–"
            lost = "–" if self.effects is None else f"{self.effects[k]:.3f}"
            table.add_row(self.head_names[k], survey.roles[k], *map(Text, (pair, raised, lost)))
        yield table
        yield from dim((*survey.notes, *self.notes))
