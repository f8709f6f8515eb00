"""How far the senses of a word lie apart, layer by layer."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text
from torch import Tensor

from attnviz.errors import joined
from attnviz.figures.claims import quoted
from attnviz.results import AgreementReport, Provenance, Result, Savable
from attnviz.results.base import Columns, described, doc, documented, proof, stacked
from attnviz.results.text import dim, literal, plain_table, with_minus

_NAMED = 6  # words that each sense attends to
_TIE = 1e-9  # accuracies that differ by less are equal
_LEVEL = 0.01  # of significance of the shuffles
_BEYOND = 0.05  # and of the difference from the other words


@dataclass(frozen=True)
class Occurrence(Savable):
    """One occurrence of the word in one of the sentences."""

    sentence: str
    sense: str
    start: int  # the span of the word in the sentence, in characters
    end: int
    pieces: tuple[str, ...]  # the tokens of the word
    attended: tuple[tuple[str, float], ...]  # other words, shares of its attention; they sum to 1
    strongest: str  # the content word with the largest share, or ""

    @property
    def word(self) -> str:
        """The word as it is written."""
        return self.sentence[self.start : self.end]


@dataclass(frozen=True)
class SenseScore(Savable):
    """How well one kind of vector separates the senses.

    An occurrence is right if it is nearest to the centroid of its own sense, which is computed
    without its sentence. A tie counts as much as guessing among the tied senses.
    """

    accuracy: float
    low: float  # the 95% interval of the accuracy, from refits with weighted sentences
    high: float
    p_value: float  # of a permutation test
    shuffled: float  # the 95th percentile of the accuracy of shuffled senses
    recalls: tuple[float, ...]  # the accuracy within each sense
    silhouette: float  # from -1 to 1 (Rousseeuw 1987)

    @property
    def macro_recall(self) -> float:
        """The mean of the recalls, in which each sense has the same weight."""
        return sum(self.recalls) / len(self.recalls)

    @property
    def interval(self) -> str:
        """The accuracy with its interval."""
        return f"{self.accuracy:.2f} ({self.low:.2f} to {self.high:.2f})"

    def __str__(self) -> str:
        return f"{self.interval}, p = {self.p_value:.4f}"


@documented
class SensesResult(Result):
    """The occurrences of a word in its senses, and how well each layer separates them.

    There are L layers and L + 1 states: state i is the input of layer i, the last is the output of
    the model. There are N occurrences and k senses.

    Examples
    --------
    >>> import attnviz
    >>> result = attnviz.senses("spring")
    >>> result.senses
    ('season', 'coil')
    >>> [word for word, _ in result.strongest("coil")][:3]  # what the word attends to most
    ['metal', 'tiny', 'stiff']
    >>> figure = result.plot()
    """

    word: str = doc("The word.")
    senses: tuple[str, ...] = doc("The names of its senses.")
    occurrences: tuple[Occurrence, ...] = doc("The occurrences, sense by sense.")
    vectors: Tensor = doc("By state, (L + 1, N, d_model), float64; centered unless `raw`.")
    scores: tuple[SenseScore, ...] = doc("The score of each state.")
    context: SenseScore = doc(
        "The score of the mean static embedding of the *other* words of each sentence, a baseline "
        "without attention."
    )
    right: Tensor = doc(
        "1 for an occurrence nearest to its own sense, else 0; a fraction for ties, (L + 1, N). "
        "nan for those in `alike`."
    )
    plane: Tensor = doc("The occurrences on the first two principal components, (L + 1, N, 2).")
    explained: tuple[tuple[float, float], ...] = doc("The share of variance of both, by state.")
    plane_accuracy: tuple[float, ...] = doc("The accuracy within that plane, by state.")
    best: int = doc(
        "The state with the highest accuracy, the earliest of equals. It is chosen on the same "
        "sentences, so its interval is too high; that of the output, the last state, is not."
    )
    p_best: float = doc("The probability of such an accuracy in any state with shuffled senses.")
    shuffles: int = doc("The number of permutations of the senses.")
    attention_layer: int = doc("The layer of `Occurrence.attended`.")
    raw: bool = doc("Whether vectors were left as they are, and not centered.")
    notes: tuple[str, ...] = doc("Further lines of the caption.")
    agreement: AgreementReport = doc("That of all sentences.")
    provenance: Provenance = doc("That of all sentences.")
    context_right: Tensor | None = doc(
        "As a row of `right`, for the other words alone, (N,). None in a file of an older version.",
        default=None,
        later="0.2",
    )
    alike: tuple[int, ...] = doc(
        "The occurrences in no score, because a model that reads no further gives one vector to "
        "several that are alike up to the word. Of those in one sense the first counts.",
        default=(),
        later="0.2",
    )

    def __repr__(self) -> str:
        return (
            f"SensesResult({self.word!r}, {len(self.occurrences)} occurrences of "
            f"{', '.join(self.senses)}, best {self.state_name(self.best)}: "
            f"{self.scores[self.best].accuracy:.2f})"
        )

    @property
    def sentences(self) -> int:
        """The number of sentences."""
        return len({occurrence.sentence for occurrence in self.occurrences})

    @property
    def counts(self) -> Counter[str]:
        """How many occurrences of each sense count in the scores."""
        return Counter(o.sense for n, o in enumerate(self.occurrences) if n not in self.alike)

    @property
    def chance(self) -> float:
        """The accuracy of always naming the most frequent sense."""
        return max(self.counts.values()) / self.counts.total()

    @property
    def minority(self) -> str:
        """The sense with the fewest occurrences; ties go to the lowest recall."""
        recalls = dict(zip(self.senses, self.scores[self.best].recalls, strict=True))
        return min(self.senses, key=lambda sense: (self.counts[sense], recalls[sense]))

    @property
    def as_good(self) -> tuple[int, ...]:
        """The later states with the same accuracy as the best."""
        best = self.scores[self.best].accuracy
        later = range(self.best + 1, len(self.scores))
        return tuple(state for state in later if self.scores[state].accuracy >= best - _TIE)

    @property
    def separated(self) -> tuple[bool, ...]:
        """Whether each state separates the senses: p ≤ 0.01, and its interval is above guessing."""
        return tuple(s.p_value <= _LEVEL and s.low > self.chance for s in self.scores)

    @cached_property
    def p_beyond(self) -> tuple[float, ...]:
        """The p-value of each state against the other words alone; 1 if it is no better.

        Exact sign test, two-sided, over the sentences in which one of both is right more often
        than the other (McNemar 1947). nan without `context_right`.
        """
        from scipy.stats import binomtest

        if self.context_right is None:
            return (math.nan,) * len(self.scores)
        sentences = [*dict.fromkeys(one.sentence for one in self.occurrences)]
        differences = (self.right - self.context_right).nan_to_num(0)
        of_sentence = differences.new_zeros(len(self.scores), len(sentences))
        for one, difference in zip(self.occurrences, differences.T, strict=True):
            of_sentence[:, sentences.index(one.sentence)] += difference
        found = ((int((d > _TIE).sum()), int((d < -_TIE).sum())) for d in of_sentence)
        return tuple(float(binomtest(a, a + b).pvalue) if a > b else 1.0 for a, b in found)

    @property
    def since(self) -> int | None:
        """The first state from which on all separate the senses; None if the output does not."""
        return _first_of_last(self.separated)

    @property
    def splits_since(self) -> int | None:
        """`since`, of states that are also better than the other words alone (p ≤ 0.05)."""
        both = zip(self.separated, self.p_beyond, strict=True)
        return _first_of_last([separated and p <= _BEYOND for separated, p in both])

    @property
    def headline(self) -> str:
        """What was found, in one sentence: the title of the figure.

        It holds for the output, because the best layer is chosen on the same sentences, or for the
        word itself, if that differs before any context. Attention
        splits a word only where the word does better than the other words alone, without it.
        """
        word, since = quoted(self.word), self.since
        senses = joined([literal(sense) for sense in self.senses])
        accuracy, others = self.scores[-1].accuracy, self.context.accuracy
        output = f"{accuracy:.0%} right, chance {self.chance:.0%}"
        if since is None:
            return f"No split of {word} into {senses} can be shown at the output: {output}"
        if since == 0:
            static = f"{self.scores[0].accuracy:.0%} right, chance {self.chance:.0%}"
            return f"{word} differs between {senses} before any context: {static}"
        found, state = f"splits into {senses}", self.splits_since
        if state is None:
            better = "not clearly" if accuracy > others + _TIE else "no"
            found = f"tells {senses} apart, but {better} better than the other words alone"
            output, state = f"{output}, other words {others:.0%}", since
        if state == len(self.scores) - 1:
            return f"At the output, {word} {found}: {output}"
        return f"From layer {state} on, {word} {found}: output {output}"

    @property
    def details(self) -> list[str]:
        """The sentences that follow the headline: the baselines, and how the best was chosen."""
        output, static, context = self.scores[-1].accuracy, self.scores[0], self.context.accuracy
        count, p = self.counts.total(), self.p_beyond[-1]
        right = f"{round(output * count, 2):g} of {count}"
        sentences = [
            f"At the output {right} are nearest to their own sense, {static.accuracy:.0%} without "
            f"context, {context:.0%} by the other words alone without attention"
            f"{'' if math.isnan(p) else f' (p = {p:.2g})'}."
        ]
        if self.since is None:
            sentences.append(
                f"The best of {len(self.scores)} states, {self.state_name(self.best)}, has "
                f"{self.scores[self.best].accuracy:.0%} (p = {self.p_best:.2g} over all)."
            )
        return sentences

    def state_name(self, state: int) -> str:
        """Return "entering layer 3", or "output" for the last state."""
        return "output" if state == len(self.scores) - 1 else f"entering layer {state}"

    def strongest(self, sense: str) -> list[tuple[str, float]]:
        """Return the strongest content words of a sense, each once, the largest share first."""
        largest: dict[str, float] = {}
        for occurrence in self.occurrences:
            if occurrence.sense == sense and occurrence.strongest:
                share = dict(reversed(occurrence.attended))[occurrence.strongest]
                name = occurrence.strongest.casefold()
                largest[name] = max(share, largest.get(name, 0.0))
        return sorted(largest.items(), key=lambda item: -item[1])

    def to_arrays(self) -> dict[str, Tensor]:
        """Return the vectors, the plane, and which occurrences are classified correctly."""
        return {"vectors": self.vectors, "plane": self.plane, "right": self.right}

    def labels(self) -> dict[str, list[str]]:
        """Return the sense of each occurrence."""
        return {"sense_of_each": [occurrence.sense for occurrence in self.occurrences]}

    def about(self) -> dict[str, Any]:
        """Return the scores of every state, the occurrences, and the proof."""

        def of_score(score: SenseScore) -> dict[str, Any]:
            recalls = dict(zip(self.senses, score.recalls, strict=True))
            return {**asdict(score), "recalls": recalls, "macro_recall": score.macro_recall}

        return {
            **described(self, "word senses chance headline best as_good since splits_since"),
            **described(self, "alike p_best shuffles raw attention_layer"),
            "states": [
                {
                    "state": self.state_name(state),
                    **of_score(score),
                    "p_beyond": self.p_beyond[state],
                    "explained": list(self.explained[state]),
                    "plane_accuracy": self.plane_accuracy[state],
                }
                for state, score in enumerate(self.scores)
            ],
            "context_words": of_score(self.context),
            "occurrences": [
                {"word": occurrence.word, **asdict(occurrence)} for occurrence in self.occurrences
            ],
            **proof(self),
        }

    def columns_of_table(self) -> Columns:
        """Return one row for each state and occurrence."""
        states, count = self.right.shape
        x, y = self.plane.unbind(-1)
        dimensions = {"state": range(states), "occurrence": range(count)}
        table = stacked(dimensions, {"right": self.right, "x": x, "y": y})
        occurrences = [self.occurrences[index] for index in table["occurrence"]]
        names = ("sense", "sentence", "start", "end")
        return {**table, **{name: [getattr(one, name) for one in occurrences] for name in names}}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        senses = ", ".join(map(literal, self.senses))
        yield Text(f"{quoted(self.word)}: {senses}; {self.provenance.model}", "bold")
        yield Text(" ".join([f"{self.headline}.", *self.details]))
        columns = ("layer", "accuracy", "interval", "p", "shuffled", "silhouette", "macro")
        names = (*columns, literal(self.minority, 12))
        rows = []
        for state, score in enumerate(self.scores):
            cells = (
                "output" if state == len(self.scores) - 1 else str(state),
                f"{score.accuracy:.2f}",
                f"{score.low:.2f}–{score.high:.2f}",
                f"{score.p_value:.4f}",
                f"{score.shuffled:.2f}",
                with_minus(f"{score.silhouette:.2f}"),
                f"{score.macro_recall:.2f}",
                f"{score.recalls[self.senses.index(self.minority)]:.2f}",
            )
            rows.append([Text(cell, "bold" if state == self.best else "") for cell in cells])
        yield plain_table((), names, rows, no_wrap=len(names))
        yield Text(
            "accuracy as the word enters a layer, with its 95% interval; shuffled: the 95th "
            "percentile with shuffled senses; macro: mean recall of all senses; last: recall of "
            f"{literal(self.minority)}",
            "dim",
        )
        best = self.scores[self.best]
        as_good = joined([self.state_name(state) for state in self.as_good])
        also = f", and as good {as_good}" if as_good else ""
        yield Text(f"best {self.state_name(self.best)}: {best.accuracy:.2f}", "bold").append(
            f"{also}, p = {self.p_best:.4f} over all layers", "not bold"
        )
        yield Text(f"output: {self.scores[-1]}")
        yield Text(f"guessing: {self.chance:.2f}")
        yield Text(f"the word without context, entering layer 0: {self.scores[0]}")
        yield Text(f"the other words without attention: {self.context}")
        yield Text(f"content words that get most of its attention in layer {self.attention_layer}")
        for sense in self.senses:
            strongest = self.strongest(sense)[:_NAMED]
            words = ", ".join(f"{literal(word)} {share:.0%}" for word, share in strongest)
            yield Text(f"  {literal(sense)}: ", "bold").append(words, "not bold")
        yield from dim(self.notes)


def _first_of_last(states: Sequence[bool]) -> int | None:
    """Return the first of the last states that all hold; None if the last does not."""
    together = list(itertools.takewhile(bool, reversed(states)))
    return len(states) - len(together) if together else None
