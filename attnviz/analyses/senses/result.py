"""How far the senses of a word lie apart, layer by layer."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

import attnviz
from attnviz.results.attention_result import Provenance
from attnviz.results.base import Columns, Result, Savable, proof, stacked
from attnviz.results.report import AgreementReport
from attnviz.results.words import literal

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table

_NAMED = 6  # words that each sense attends to


@dataclass(frozen=True)
class Occurrence(Savable):
    """The word, once, in one of the sentences.

    Attributes
    ----------
    sentence, sense : what was read, and the sense in which it uses the word.
    start, end : where the word stands in the sentence, in characters.
    pieces : the tokens that it is made of.
    attended : the words of the sentence with their share of its attention, largest first; the
        shares sum to 1.
    strongest : the word with the largest share that carries content; "" where there is none.
    """

    sentence: str
    sense: str
    start: int
    end: int
    pieces: tuple[str, ...]
    attended: tuple[tuple[str, float], ...]
    strongest: str

    @property
    def word(self) -> str:
        """The word as it is written."""
        return self.sentence[self.start : self.end]


@dataclass(frozen=True)
class SenseScore(Savable):
    """How well one kind of vector separates the senses.

    Attributes
    ----------
    accuracy : the share of occurrences that are nearest to the centroid of their own sense, made
        without their sentence; a tie counts as much as a guess among those that tie.
    low, high : the 95 % interval of the accuracy, from a bootstrap over sentences.
    p_value : how often shuffled senses are separated as well.
    shuffled : the accuracy below which 95 % of the shuffled lie.
    recalls : the same as `accuracy` within each sense.
    silhouette : mean of (b - a) / max(a, b), where a is the mean distance to the own sense, b to
        the nearest other one; from -1 to 1.
    """

    accuracy: float
    low: float
    high: float
    p_value: float
    shuffled: float
    recalls: tuple[float, ...]
    silhouette: float

    @property
    def macro_recall(self) -> float:
        """The mean of the recalls: every sense counts as much, however few sentences it has."""
        return sum(self.recalls) / len(self.recalls)

    def __str__(self) -> str:
        """Return the accuracy with its interval and its p-value."""
        interval = f"{self.low:.2f} to {self.high:.2f}"
        return f"{self.accuracy:.2f} ({interval}), p = {self.p_value:.4f}"


@dataclass(frozen=True, eq=False)
class SensesResult(Result):
    """The occurrences of a word in its senses, and how each layer tells them apart.

    There are L layers and L + 1 states: state i is what enters layer i, the last is the output of
    the model.

    Attributes
    ----------
    word, senses : the word, and the names of its k senses.
    occurrences : the N occurrences, sense by sense.
    vectors : (L + 1, N, d_model), CPU, float64, of each state; centered unless `raw`.
    scores : one for each state.
    context : the score of the mean static embedding of the *other* words of each sentence: what
        can be told without any attention.
    right : (L + 1, N), 1 where an occurrence is nearest to its own sense, 0 where not, between
        where senses tie.
    plane : (L + 1, N, 2), the occurrences in the plane of the two main directions of each state.
    explained : for each state, the share of the variance along the two main directions.
    plane_accuracy : (L + 1,), the accuracy within that plane.
    best : the state with the highest accuracy, of equals the one with the highest silhouette.
    p_best : how often shuffled senses are separated as well in any state, out of `shuffles`.
    attention_layer : the layer whose attention `Occurrence.attended` holds.
    raw : whether vectors were left as they are, and not centered.
    notes : what was found, pooled and left out.
    agreement, provenance : of all sentences.
    """

    word: str
    senses: tuple[str, ...]
    occurrences: tuple[Occurrence, ...]
    vectors: Tensor
    scores: tuple[SenseScore, ...]
    context: SenseScore
    right: Tensor
    plane: Tensor
    explained: tuple[tuple[float, float], ...]
    plane_accuracy: tuple[float, ...]
    best: int
    p_best: float
    shuffles: int
    attention_layer: int
    raw: bool
    notes: tuple[str, ...]
    agreement: AgreementReport
    provenance: Provenance

    def __repr__(self) -> str:
        """Say what it holds, without the tensors."""
        best = self.scores[self.best]
        return (
            f"SensesResult({self.word!r}, {len(self.occurrences)} occurrences of "
            f"{', '.join(self.senses)}, best {self.state_name(self.best)}: {best.accuracy:.2f})"
        )

    @property
    def sentences(self) -> int:
        """The number of sentences."""
        return len(dict.fromkeys(one.sentence for one in self.occurrences))

    @property
    def chance(self) -> float:
        """The accuracy of guessing: 1 / k."""
        return 1 / len(self.senses)

    @property
    def minority(self) -> str:
        """The sense with the fewest occurrences; of equals, the one with the lowest recall."""
        recalls = dict(zip(self.senses, self.scores[self.best].recalls, strict=True))
        counts = {s: sum(one.sense == s for one in self.occurrences) for s in self.senses}
        return min(self.senses, key=lambda sense: (counts[sense], recalls[sense]))

    def state_name(self, state: int) -> str:
        """Return "entering layer 3", or "output" for the last state."""
        return "output" if state == len(self.scores) - 1 else f"entering layer {state}"

    def strongest(self, sense: str) -> list[tuple[str, float]]:
        """Return the content words that the occurrences of a sense attend to most, with the share.

        One of each occurrence, the largest share first; a word of several is named once.
        """
        found: dict[str, float] = {}
        for one in self.occurrences:
            if one.sense == sense and one.strongest:
                share = next(share for word, share in one.attended if word == one.strongest)
                name = one.strongest.casefold()
                found[name] = max(share, found.get(name, 0.0))
        return sorted(found.items(), key=lambda item: -item[1])

    def to_arrays(self) -> dict[str, Tensor]:
        """Return the vectors, the plane, and which occurrences are classified correctly."""
        return {"vectors": self.vectors, "plane": self.plane, "right": self.right}

    def labels(self) -> dict[str, list[str]]:
        """Return the sense of each occurrence."""
        return {"sense_of_each": [occurrence.sense for occurrence in self.occurrences]}

    def about(self) -> dict[str, Any]:
        """Return the scores of every state, the occurrences, and the proof."""

        def described(score: SenseScore) -> dict[str, Any]:
            recalls = dict(zip(self.senses, score.recalls, strict=True))
            return {**asdict(score), "recalls": recalls, "macro_recall": score.macro_recall}

        return {
            "word": self.word,
            "senses": list(self.senses),
            "chance": self.chance,
            "best": self.best,
            "p_best": self.p_best,
            "shuffles": self.shuffles,
            "raw": self.raw,
            "states": [
                {
                    "state": self.state_name(state),
                    **described(score),
                    "explained": list(self.explained[state]),
                    "plane_accuracy": self.plane_accuracy[state],
                }
                for state, score in enumerate(self.scores)
            ],
            "context_words": described(self.context),
            "attention_layer": self.attention_layer,
            "occurrences": [
                {"word": occurrence.word, **asdict(occurrence)} for occurrence in self.occurrences
            ],
            **proof(self),
        }

    def columns_of_table(self) -> Columns:
        """Return one row for each state and occurrence."""
        states, count = self.right.shape
        x, y = self.plane.unbind(-1)
        table = stacked(
            {"state": range(states), "occurrence": range(count)},
            {"right": self.right, "x": x, "y": y},
        )
        occurrences = [self.occurrences[index] for index in table["occurrence"]]
        return {
            **table,
            "sense": [occurrence.sense for occurrence in occurrences],
            "sentence": [occurrence.sentence for occurrence in occurrences],
            "start": [occurrence.start for occurrence in occurrences],
            "end": [occurrence.end for occurrence in occurrences],
        }

    def plot(self, **keywords: Any) -> Figure:
        """Draw how each layer tells the senses apart: see `attnviz.plot.senses`."""
        return attnviz.plot.senses(self, **keywords)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Print a row for each layer, the baselines, and what each sense attends to."""
        from rich.text import Text

        names = ", ".join(map(literal, self.senses))
        yield Text(f"“{literal(self.word)}”: {names}; {self.provenance.model}", "bold")
        yield self._table_of_states()
        yield Text(
            "accuracy as the word enters a layer, with its 95% interval; shuffled: what 95% of "
            "the shuffled senses stay within; macro: mean recall of all senses; last: that of "
            f"{literal(self.minority)}",
            "dim",
        )
        best = self.scores[self.best]
        yield Text(f"best {self.state_name(self.best)}: {best.accuracy:.2f}", "bold").append(
            f", p = {self.p_best:.4f} over all layers", "not bold"
        )
        yield Text(f"guessing: {self.chance:.2f}")
        yield Text(f"the word without context, entering layer 0: {self.scores[0]}")
        yield Text(f"the other words without attention: {self.context}")
        yield Text(f"content words that get most of its attention in layer {self.attention_layer}")
        for sense in self.senses:
            strongest = self.strongest(sense)[:_NAMED]
            words = ", ".join(f"{literal(word)} {share:.0%}" for word, share in strongest)
            yield Text(f"  {literal(sense)}: ", "bold").append(words, "not bold")
        for note in self.notes:
            yield Text(note, "dim")

    def _table_of_states(self) -> Table:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
        last = literal(self.minority, 12)
        names = ("accuracy", "interval", "p", "shuffled", "silhouette", "macro", last)
        for name in ("layer", *names):
            table.add_column(name, justify="right", no_wrap=True)
        for state, score in enumerate(self.scores):
            cells = (
                "output" if state == len(self.scores) - 1 else str(state),
                f"{score.accuracy:.2f}",
                f"{score.low:.2f}–{score.high:.2f}",
                f"{score.p_value:.4f}",
                f"{score.shuffled:.2f}",
                f"{score.silhouette:.2f}".replace("-", "\N{MINUS SIGN}"),
                f"{score.macro_recall:.2f}",
                f"{score.recalls[self.senses.index(self.minority)]:.2f}",
            )
            style = "bold" if state == self.best else ""
            table.add_row(*(Text(cell, style) for cell in cells))
        return table
