"""How far the senses of a word lie apart, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from attnviz.results.attention_result import Provenance
from attnviz.results.report import AgreementReport


@dataclass(frozen=True)
class Occurrence:
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
class SenseScore:
    """How well the senses are told apart by one kind of vector.

    Attributes
    ----------
    accuracy : the share of occurrences that are nearest to the centroid of their own sense, made
        without their sentence; a tie counts as much as a guess among those that tie.
    low, high : the 95 % interval of the accuracy, from a bootstrap over sentences.
    p_value : how often shuffled senses are told apart as well.
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


@dataclass(frozen=True, eq=False)
class SensesResult:
    """The occurrences of a word in its senses, and how each layer tells them apart.

    There are L layers and L + 1 states: state i is what enters layer i, the last is the output of
    the model.

    Attributes
    ----------
    word, senses : the word, and the names of its k senses.
    occurrences : the N occurrences, sense by sense.
    vectors : (L + 1, N, d_model), CPU, float64, of each state; centred unless `raw`.
    scores : one for each state.
    context : the score of the mean static embedding of the *other* words of each sentence: what
        can be told without any attention.
    right : (L + 1, N), 1 where an occurrence is nearest to its own sense, 0 where not, between
        where senses tie.
    plane : (L + 1, N, 2), the occurrences in the plane of the two main directions of each state.
    explained : for each state, the share of the variance along the two main directions.
    plane_accuracy : (L + 1,), the accuracy within that plane.
    best : the state with the highest accuracy, of equals the one with the highest silhouette.
    p_best : how often shuffled senses are told apart as well in any state, of so many `shuffles`.
    attention_layer : the layer whose attention `Occurrence.attended` holds.
    raw : whether vectors were left as they are, and not centred.
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
        """The sense with the fewest occurrences; of equals the one that is told apart worst."""
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
