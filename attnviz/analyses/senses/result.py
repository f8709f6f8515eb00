"""How far the senses of a word lie apart, layer by layer."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from operator import itemgetter
from typing import Any

import regex
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text
from torch import Tensor
from torch.nn.functional import cosine_similarity

from attnviz.errors import joined
from attnviz.figures.claims import quoted
from attnviz.results import AgreementReport, Provenance, Result, Savable
from attnviz.results.base import Columns, described, doc, documented, proof, stacked
from attnviz.results.text import dim, literal, plain_table, signed

LEFT_TO_RIGHT = "the model reads from left to right"  # begins a note on a causal model
_UNDECIDED = 0.12  # a smaller margin
_TIE = 1e-9  # accuracies that differ by less are equal


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

    @property
    def attends_to(self) -> tuple[int, int]:
        """The span of `strongest` in the sentence, outside the word; (0, 0) without one."""
        pattern = rf"(?<!\w){regex.escape(self.strongest)}(?!\w)"
        found = regex.finditer(pattern, self.sentence, regex.IGNORECASE) if self.strongest else ()
        outside = (m.span() for m in found if m.end() <= self.start or m.start() >= self.end)
        return next(outside, (0, 0))

    def parts(self, fits: Callable[[str], bool]) -> list[tuple[str, str]]:
        """Return (text, kind) of what fits of the sentence around the word.

        A kind is "word", "attended" (`strongest`), "before" or "after" the word. The sentence is
        cut between words, at the end that is farther away.
        """
        text, word, attended = self.sentence, (self.start, self.end), self.attends_to
        both = min(word[0], attended[0]), max(word[1], attended[1])
        blanks = [m.span() for m in regex.finditer(r"\s+|(?<=\p{Han})", text)]
        starts, ends = [0, *(n for _, n in blanks)], [*(n for n, _ in blanks), len(text)]
        start, end = 0, len(text)
        for span in (both if any(attended) else word, word):
            low, high = max(n for n in starts if n <= span[0]), min(n for n in ends if n >= span[1])
            while (start, end) != (low, high):
                if fits("…" * (start > 0) + text[start:end] + "…" * (end < len(text))):
                    break
                if low - start > end - high:
                    start = min(n for n in starts if n > start)
                else:
                    end = max(n for n in ends if n < end)
        kinds = {word: "word", attended: "attended"}
        marks = sorted({start, end, *(n for of in kinds for n in of if start <= n <= end)})
        parts = [("…" * (start > 0), "before")]
        for span in itertools.pairwise(marks):
            kind = kinds.get(span, "before" if span[1] <= self.start else "after")
            parts.append((literal(text[slice(*span)], len(text)), kind))
        parts.append(("…" * (end < len(text)), "after"))
        groups = itertools.groupby(filter(itemgetter(0), parts), itemgetter(1))
        return [("".join(text for text, _ in group), kind) for kind, group in groups]


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
    def is_causal(self) -> bool:
        """Whether the model read no further than the word."""
        return any(note.startswith(LEFT_TO_RIGHT) for note in self.notes)

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
    def separated(self) -> tuple[bool, ...]:
        """Whether each state separates the senses: p ≤ 0.01, and its interval is above guessing."""
        return tuple(s.p_value <= 0.01 and s.low > self.chance for s in self.scores)

    @cached_property
    def cosines(self) -> Tensor:
        """The cosine to the centroid of each sense, (L + 1, N, k); nan for those in `alike`.

        Without the sentence of the occurrence, and centered on all others, unless `raw`.
        """
        counted = [n for strip in self.strips for n in strip]
        vectors, listed = self.vectors[:, counted], [self.occurrences[n] for n in counted]
        others = vectors.new_tensor([[a.sentence != b.sentence for b in listed] for a in listed])
        middle = 0.0 if self.raw else others @ vectors / others.sum(1, keepdim=True)
        cosines = vectors.new_full((*self.right.shape, len(self.senses)), math.nan)
        for number, sense in enumerate(self.senses):
            members = others * others.new_tensor([one.sense == sense for one in listed])
            centroid = members @ vectors / members.sum(1, keepdim=True)
            cosines[:, counted, number] = cosine_similarity(
                vectors - middle, centroid - middle, dim=-1
            )
        return cosines

    @cached_property
    def margins(self) -> Tensor:
        """How much nearer each occurrence is to its own sense than to any other, (L + 1, N).

        A difference of `cosines`: above 0 where `right` is 1, below 0 where it is 0, 0 for ties.
        """
        of_each = [[one.sense == sense for sense in self.senses] for one in self.occurrences]
        is_own = self.cosines.new_tensor(of_each).bool()
        own, other = (self.cosines.masked_fill(m, -math.inf).amax(-1) for m in (~is_own, is_own))
        return (own - other).masked_fill((self.right > 0) & (self.right < 1), 0.0)

    @property
    def strips(self) -> list[list[int]]:
        """The occurrences that count: of two senses together, of more those of each sense."""
        counted = [n for n in range(len(self.occurrences)) if n not in self.alike]
        if len(self.senses) == 2:
            return [counted]
        return [[n for n in counted if self.occurrences[n].sense == s] for s in self.senses]

    @cached_property
    def heights(self) -> Tensor:
        """The margins, those of the second of two senses mirrored: from one sense to the other."""
        down = [len(self.senses) == 2 and o.sense == self.senses[1] for o in self.occurrences]
        return self.margins * (1 - 2 * self.margins.new_tensor(down))

    @property
    def hesitating(self) -> list[int]:
        """At most two occurrences that are undecided longest from the claimed state on.

        Their margin stays small, or they lie nearer to another sense before they are right.
        """
        margins = self.margins[len(self.scores) if self.claimed is None else self.claimed :]
        if not len(margins):
            return []
        turned = (margins.amin(0) < 0) & (margins[-1] > 0)
        found = (turned | (margins.abs().amax(0) < _UNDECIDED)).nonzero()[:, 0].tolist()
        wrong = (margins.sign() != margins[-1].sign()).sum(0) - margins.abs().mean(0)
        return sorted(found, key=lambda n: -float(wrong[n]))[:2]

    def sample(self, most: int) -> set[int]:
        """Return at most some of the occurrences that count, from one sense to the other.

        Among them are those that hesitate and those that are wrong, as at most half.
        """
        counted = sorted(itertools.chain(*self.strips), key=lambda n: float(self.heights[-1, n]))
        wrong = [n for n in counted if self.right[-1, n] <= 0.5]
        first = set([*self.hesitating, *wrong][: most // 2]) if len(counted) > most else set()
        others = [n for n in counted if n not in first]
        count = min(most, len(counted)) - len(first)
        return {*first, *(others[n * len(others) // count] for n in range(count))}

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
        return _first_of_last([separated and p <= 0.05 for separated, p in both])

    @property
    def claimed(self) -> int | None:
        """The state from which on the headline claims something; None without a claim."""
        return self.since if self.splits_since is None else self.splits_since

    @property
    def headline(self) -> str:
        """What was found, in one sentence: the title of the figure.

        It holds for the output, because the best layer is chosen on the same sentences, or for the
        word itself, if that differs before any context. Attention splits a word only where the word
        does better than the other words alone, without it.
        """
        word, count = quoted(self.word), self.counts.total()
        names = [literal(sense) for sense in self.senses]
        senses = joined(names) if len(names) < 3 else f"its {len(names)} senses"
        accuracy, others = self.scores[-1].accuracy, self.context.accuracy
        if self.since is None and count < 12 and accuracy >= 0.8:  # one error decides p
            return f"{count} {self.unit} are too few to show that {word} splits into {senses}"
        if self.since is None:
            return f"No split of {word} into {senses} can be shown at the output"
        if self.since == 0:
            return f"{word} differs between {senses} before any context"
        found = f"splits into {senses}"
        if self.splits_since is None:
            better = "not clearly" if accuracy > others + _TIE else "no"
            found = f"tells {senses} apart, but {better} better than the other words"
        at_end = self.claimed == len(self.scores) - 1
        return f"{'At the output' if at_end else f'From layer {self.claimed} on'}, {word} {found}"

    @property
    def unit(self) -> str:
        """What is counted: sentences, or occurrences where a sentence has several."""
        return "sentences" if self.sentences == len(self.occurrences) else "occurrences"

    @property
    def details(self) -> list[str]:
        """The sentences that follow the headline: the baselines, and how the best was chosen."""
        total, p = self.counts.total(), self.p_beyond[-1]
        shares = (self.scores[n].accuracy for n in (-1, self.best))
        output, best, guessed, others = (
            f"{round(share * total, 2):g}"
            for share in (*shares, self.chance, self.context.accuracy)
        )
        found = "" if math.isnan(p) else f", p = {p:.2g}"
        sentences = [
            f"At the output {output} of {total} {self.unit} lie nearer to their own sense "
            f"(guessing {guessed}; the other words alone, without attention, {others}{found})."
        ]
        if self.since is None:
            sentences.append(
                f"The best of {len(self.scores)} states, {self.state_name(self.best)}, has {best} "
                f"(p = {self.p_best:.2g} over all)."
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
        """Return the vectors, and which occurrences are classified correctly."""
        return {"vectors": self.vectors, "right": self.right, "margins": self.margins}

    def labels(self) -> dict[str, list[str]]:
        """Return the sense of each occurrence."""
        return {"sense_of_each": [occurrence.sense for occurrence in self.occurrences]}

    def about(self) -> dict[str, Any]:
        """Return the scores of every state, the occurrences, and the proof."""

        def of_score(score: SenseScore) -> dict[str, Any]:
            recalls = dict(zip(self.senses, score.recalls, strict=True))
            return {**asdict(score), "recalls": recalls, "macro_recall": score.macro_recall}

        return {
            **described(self, "word senses chance headline best since splits_since"),
            **described(self, "alike p_best shuffles raw attention_layer"),
            "states": [
                {
                    "state": self.state_name(state),
                    **of_score(score),
                    "p_beyond": self.p_beyond[state],
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
        dimensions = {"state": range(states), "occurrence": range(count)}
        table = stacked(dimensions, {"right": self.right, "margin": self.margins})
        occurrences = [self.occurrences[index] for index in table["occurrence"]]
        names = ("sense", "sentence", "start", "end")
        return {**table, **{name: [getattr(one, name) for one in occurrences] for name in names}}

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(self.headline, "bold")
        yield Text(" ".join(self.details))
        yield from self._threads(options.max_width)
        columns = ("layer", "accuracy", "interval", "p", "shuffled", "silhouette", "macro")
        states = ["static", *map(str, range(1, len(self.scores) - 1)), "output", "others"]
        rows: list[list[Text]] = []
        for state, score in zip(states, (*self.scores, self.context), strict=True):
            numbers = (score.shuffled, score.silhouette, score.macro_recall)
            interval, p = f"{score.low:.2f}–{score.high:.2f}", f"{score.p_value:.4f}"
            cells = (state, f"{score.accuracy:.2f}", interval, p, *map(signed, numbers))
            rows.append([Text(cell, "bold" * (len(rows) == self.best)) for cell in cells])
        yield plain_table((), columns, rows, no_wrap=len(columns))
        yield Text(
            "accuracy as the word enters a layer, with its 95% interval; shuffled: the 95th "
            "percentile with shuffled senses; macro: mean recall of all senses; others: the other "
            f"words alone; bold: the best layer, p = {self.p_best:.4f} over all",
            "dim",
        )
        yield Text(f"content words that get most of its attention in layer {self.attention_layer}")
        for sense in self.senses:
            strongest = self.strongest(sense)[:6]
            words = ", ".join(f"{literal(word)} {share:.0%}" for word, share in strongest)
            yield Text(f"  {literal(sense)}: ", "bold").append(words, "not bold")
        yield from dim([f"read by {self.provenance.model}", *self.notes])

    def _threads(self, width: int) -> Iterator[Text]:
        """Yield a row for each occurrence that counts: a mark for each state, and its sentence."""
        up, down = map(literal, self.senses) if len(self.strips) == 1 else ("its sense", "another")
        yield Text(f"static to output  ▲ nearer to {up}  ▽ nearer to {down}  · undecided", "dim")
        shown = sorted(self.sample(60), key=lambda n: -float(self.heights[-1, n]))
        for members in self.strips:
            if len(self.strips) > 1:
                yield Text(literal(self.occurrences[members[0]].sense), "bold")
            yield from (self._thread(n, width) for n in shown if n in members)

    def _thread(self, n: int, width: int) -> Text:
        heights = self.heights[:, n].tolist()
        marked = heights[:: -math.ceil(len(heights) / 16)][::-1]
        marks = ("·" if abs(x) < _UNDECIDED else "▽▲"[x > 0] for x in marked)
        wrong = "✗" if self.right[-1, n] <= 0.5 else " "
        row = f"{''.join(marks)} {wrong} {signed(heights[-1]):>5}  "
        parts = self.occurrences[n].parts(lambda text: cell_len(row + text) <= width)
        words = (text.upper() if kind == "word" else text for text, kind in parts)
        return Text(f"{row}{''.join(words)}", no_wrap=True, overflow="ellipsis")


def _first_of_last(states: Sequence[bool]) -> int | None:
    """Return the first of the last states that all hold; None if the last does not."""
    together = list(itertools.takewhile(bool, reversed(states)))
    return len(states) - len(together) if together else None
