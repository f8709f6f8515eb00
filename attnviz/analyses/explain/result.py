"""Why a model predicted something: the contribution of each word, and the effect of changing it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text
from torch import Tensor

from attnviz.attribution import ranking
from attnviz.attribution.decomposition import Decomposition
from attnviz.attribution.ranking import Shown, WordResult
from attnviz.errors import InputError
from attnviz.results import AgreementReport, Provenance, Waveform
from attnviz.results.base import Columns, Rules, described, doc, documented, is_image, proof
from attnviz.results.text import dim, literal, numbered, percent, plain_table, signed

SPLIT = "split"  # the name of the contributions among the methods
_RESAMPLES = 1000
_LONGEST = 24  # letters of a word in a sentence
_ALIKE = 2 / 3  # of the largest effect
_COUNTS = {2: "two", 3: "three", 4: "four"}  # tiles that a sentence may claim together
_STRONGEST = 8  # tiles or windows that the terminal lists
_FAR = 0.1  # less of a difference from the reference is none to speak of
# What is done to a part, and what is then the case.
CHANGES = {
    "knock-out": ("Hiding", "hidden from all others in every softmax attention (knock-out)"),
    "mask": ("Masking", "masked"),
    "delete": ("Deleting", "deleted"),
    "silence": ("Silencing", "replaced by silence"),
    "cover": ("Covering", "covered with the mean color of the picture"),
}
UNITS = {
    "difference": "logits", "log-probability": "nats", "logit": "logits",
    "similarity": "points of cosine",
}  # fmt: skip


@documented
class ExplainResult(WordResult):
    """Why a model predicted a token or a class, with the measured effect of changing each word.

    The text has T tokens and W words, special tokens among them. What is explained is one number:
    the logit of the target minus that of another choice, the log-probability of the target, or its
    logit.

    Examples
    --------
    >>> import attnviz
    >>> reaction = "CC(=O)O.OCC>>CC(=O)O[MASK]C"
    >>> why = attnviz.explain(reaction, model="rxnmapper")
    >>> print(why.headline)
    A word of “.OCC” raises “C” over “[Pb]” most
    >>> why.decomposition.credit_error < 1e-3
    True
    >>> figure = why.plot()
    """

    main_array: ClassVar[str | None] = "credit"

    target: str = doc("The token, class or span that is explained, or the text of a similarity.")
    against: str | None = doc("The one that it is compared with.")
    kind: str = doc(
        '"next token", "answer", "masked token", "class", "label", "span" or "similarity".'
    )
    number: str = doc(
        'What is explained: "difference" (of logits), "log-probability", "logit" or "similarity".'
    )
    value: float = doc("The number in the text.")
    baseline: float = doc(
        "The number in the reference. The contributions of the words sum to the difference. NaN "
        "without a decomposition."
    )
    probability: float = doc(
        "The probability of the target: by the softmax, or by the sigmoid where a text has several "
        "labels at once. NaN for a score (regression, a reranker) and for a similarity."
    )
    top: tuple[str, ...] = doc("The most probable tokens or classes.")
    top_probabilities: tuple[float, ...] = doc("Their probabilities.")
    words: tuple[str, ...] = doc("The words of the text.", label=True)
    positions: tuple[tuple[int, ...], ...] = doc(
        "The positions of the pieces of each word. A word contributes the sum of its pieces."
    )
    special: tuple[bool, ...] = doc("Which words are special tokens.")
    tokens: tuple[str, ...] = doc("The tokens of the text.", label=True)
    unmeasured: tuple[int, ...] = doc(
        "The indices of words that are the same in both runs by construction: the word at which a "
        "token is predicted, and the attention sink."
    )
    reference: str = doc("What the text is compared with, in words.")
    decomposition: Decomposition | None = doc(
        "The difference to the reference, split over layers, heads and tokens; None for attention "
        "that cannot be decomposed, such as that of windows."
    )
    causal: Mapping[str, Tensor] = doc(
        "By intervention, what the number loses if each word is masked, replaced, knocked out or "
        "deleted, (W,). NaN for words that were not changed. Empty if nothing was measured."
    )
    replacements: Tensor = doc(
        'What it loses by each of K replacements of a word, (K, W). "replace" is their mean.'
    )
    notes: tuple[str, ...] = doc("Further lines of the caption.")
    agreement: AgreementReport = doc("Of the attention of the text, the sums and the number.")
    provenance: Provenance = doc("The model and the text.")
    methods: Mapping[str, Tensor] = doc(
        "Further attributions by the name of their method, (W,) each.", default_factory=dict
    )
    stacks: tuple[str, ...] = doc(
        'Whether each word is in the "source" or in the "target" of an encoder–decoder, whose '
        'words follow each other, or in the "first text" or "second text" of a pair; else empty.',
        default=(),
    )
    at: int | None = doc(
        "The index of the word whose label is explained; None without one.",
        later="0.2",
        default=None,
    )

    parts: str | None = doc(
        'What stands in place of words: "sentence", "passage", "part", "window" of a sound or '
        '"tile" of a picture; None for words.',
        later="0.2",
        default=None,
    )
    answer: tuple[str, ...] = doc(
        "The A words of the answer that is explained; empty for a single token or class.",
        label=True,
        later="0.2",
        default=(),
    )
    by_answer: Tensor | None = doc(
        "What each word of the answer loses without each part, (A, W): the sum over the pieces of "
        "the word. The sum over words is the effect on the answer. None without an answer.",
        later="0.2",
        default=None,
    )
    edges: tuple[tuple[float, ...], ...] = doc(
        "Where windows begin, and where the last one ends, in seconds; or the same of the rows and "
        "of the columns of tiles, in pixels of `image`. Empty for a text.",
        later="0.2",
        default=(),
    )
    image: Tensor | None = doc(
        "(H, W, 3) uint8, the picture as the model reads it.", later="0.2", default=None
    )
    waveform: Waveform | None = doc("The outline of the sound.", later="0.2", default=None)

    def _rules(self) -> Rules:
        W, T = len(self.words), len(self.tokens)
        are_of_words = len(self.special) == len(self.positions) == W
        yield "as many special flags and positions as words", are_of_words
        credit = None if self.decomposition is None else self.decomposition.credit
        yield "a contribution of each token", credit is None or credit.shape == (T,)
        yield "contributions or effects", credit is not None or len(self.causal) > 0
        yield "a stack of each word", len(self.stacks) in (0, W)
        yield "positions of tokens", all(0 <= row < T for rows in self.positions for row in rows)
        yield "a labeled word among its words", self.at is None or 0 <= self.at < W
        yield "unmeasured words among its words", all(0 <= n < W for n in self.unmeasured)
        by_word = [*self.causal.values(), *self.methods.values(), *self.replacements]
        yield "a number of each word", all(numbers.shape == (W,) for numbers in by_word)
        shape = (0, W) if self.by_answer is None else self.by_answer.shape
        yield "numbers of each word of the answer", shape == (len(self.answer), W)
        yield "an image of bytes", is_image(self.image)
        parts = math.prod(len(line) - 1 for line in self.edges)
        yield "edges of each window or tile", not self.edges or parts == W
        yield "a probability of each top choice", len(self.top) == len(self.top_probabilities)

    def __repr__(self) -> str:
        error = self.completeness_error
        exact = "no decomposition" if math.isnan(error) else f"completeness error {error:.0e}"
        value = f"{self.question} after {self.provenance.text or self._medium!r}: {self.value:.2f}"
        return f"ExplainResult({value}, {exact})"

    @property
    def question(self) -> str:
        """What is explained: “Paris” over “London”."""
        if self.kind == "similarity" or (self._number == "score" and self.against is None):
            return self.quantity
        choices = [self.target] if self.against is None else [self.target, self.against]
        question = " over ".join(f"“{literal(choice, _LONGEST)}”" for choice in choices)
        question = "the answer " * bool(self.answer) + question
        return question if self.at is None else f"{question} for {self.name(self.at)}"

    @property
    def quantity(self) -> str:
        """The number that is explained, in words."""
        if self.number == "difference":
            return "the difference of the logits"
        if self.kind == "similarity":
            is_named = not self.edges or self.target not in ("image", "sound")
            other = f"“{literal(self.target, 40)}”" if is_named else f"the other {self._medium}"
            return f"the similarity to {other}"
        if self._number == "score" and len(self.top) == 1:
            return "the score"
        of = self.question if self.answer else f"“{literal(self.target, _LONGEST)}”"
        return f"the {self._number} of {of}"

    @property
    def _number(self) -> str:
        """What is explained of the target, in words."""
        is_score = math.isnan(self.probability) and self.kind == "class"
        return "score" if is_score else self.number

    @property
    def share(self) -> str:
        """The probability of the target, "81%", or its score."""
        return signed(self.value) if math.isnan(self.probability) else percent(self.probability)

    @property
    def unit(self) -> str:
        """The unit of the number: logits, nats of a log-probability, or points."""
        return "points" if self._number == "score" else UNITS[self.number]

    @property
    def sources(self) -> list[int]:
        """The indices of the words that are ranked: no special tokens, and none unmeasured."""
        return [n for n, flag in enumerate(self.special) if not flag and n not in self.unmeasured]

    @property
    def credit(self) -> Tensor:
        """What each word contributed over all paths, (W,). NaN where it is not measured."""
        split = self.decomposition
        return self._nothing if split is None else self._where_measured(self.by_word(split.credit))

    def _where_measured(self, scores: Tensor) -> Tensor:
        """Return scores (W,), NaN for words that are not measured."""
        unmeasured = torch.tensor(self.unmeasured, dtype=torch.long, device="cpu")
        return scores.double().index_fill(0, unmeasured, torch.nan)

    @property
    def completeness_error(self) -> float:
        """How far the contributions, and the direct parts, miss the whole, as shares of them."""
        return math.nan if (of := self.decomposition) is None else of.relative_error(self.value)

    @property
    def attributions(self) -> dict[str, Tensor]:
        """The contributions, under the name "split", and the attributions of `methods`, (W,)."""
        others = {name: scores for name, scores in self.methods.items() if name != SPLIT}
        return others if self.decomposition is None else {SPLIT: self.credit, **others}

    @property
    def effect(self) -> Tensor:
        """What each word adds, (W,): `consensus`, or the contribution if nothing was measured."""
        return self.consensus if self.causal else self.credit

    @property
    def _effects(self) -> Tensor:
        """What each word adds by each of K interventions, or what it contributes, (K, W)."""
        return torch.stack([*self.causal.values()] or [self.credit])

    @property
    def least(self) -> float:
        """The least effect that counts: it is above rounding, and not printed as 0.00."""
        share = getattr(self.agreement.output, "tolerance", ranking.ROUNDING)
        numbers = (share * abs(x) for x in (self.value, self.baseline) if x == x)
        return max([ranking.PRINTED, *numbers])

    @cached_property
    def _sign(self) -> int:
        """1 if the largest effect raises the number, else -1."""
        effects = self.effect[self.sources]
        return -1 if len(effects) and effects[effects.abs().argmax()] < 0 else 1

    @property
    def total(self) -> float:
        """The sum of the contributions. NaN without a decomposition."""
        return math.nan if self.decomposition is None else self.decomposition.total

    @cached_property
    def rank_correlations(self) -> dict[str, tuple[float, float, float]]:
        """Spearman's ρ of each method with the measured effect, and its 95 % interval.

        The interval is a bootstrap over the words of the text and over the words that replace each
        of them. Empty for fewer than six words: ρ of a few words is no statistic. Empty also if
        nothing was measured.
        """
        if "replace" not in self.causal or len(self.sources) < ranking.RANKABLE:
            return {}
        random, count, words = np.random.default_rng(0), len(self.replacements), len(self.sources)
        draws = random.multinomial(count, [1 / count] * count, _RESAMPLES)
        picked = torch.from_numpy(random.integers(0, words, (_RESAMPLES, words)))
        means = torch.from_numpy(draws / count) @ self.replacements
        effects = ranking.consensus({**self.causal, "replace": means}, self.sources)
        effects, table = effects[:, self.sources].gather(1, picked), {}
        for name, scores in self.attributions.items():
            of_words = scores[self.sources]
            if (rho := ranking.spearman(of_words, self.consensus[self.sources])) is not None:
                rhos = ranking.correlate_ranks(of_words[picked], effects)
                table[name] = (rho, *np.nanquantile(rhos, [0.025, 0.975]).tolist())
        return table

    @property
    def strongest(self) -> int | None:
        """The index of the word that moved the number most; None where interventions disagree.

        The word has the largest effect. Each intervention moves the number in its direction, by
        `least` or more, and most of them move it most by this word.
        """
        if not self.sources:
            return None
        first, leading = self.first(self.effect), [*map(self.first, self._effects)]
        agree = bool((self._sign * self._effects[:, first] >= self.least).all())
        return first if agree and 2 * leading.count(first) > len(leading) else None

    def first(self, scores: Tensor | Sequence[float]) -> int:
        """Return the index of the source that moves the number most, by some scores (W,)."""
        return max(self.sources, key=lambda index: self._sign * float(scores[index]))

    def name(self, index: int) -> str:
        """Return a word, or a part, as a sentence names it."""
        word = f"“{literal(self.names[index], _LONGEST)}”"
        if self.edges:
            return f"{self.words[index]} of the {self._medium}"
        return f"{self.parts} {index + 1}" if self.parts else word

    @property
    def _medium(self) -> str:
        """What has tiles or windows."""
        return "picture" if self.parts == "tile" else "sound"

    @property
    def alike(self) -> list[int]:
        """The tiles or windows whose effects are like the largest one, or the strongest word."""
        first, along = self.strongest, (self._sign * self.effect).tolist()
        if first is None or not self.edges:
            return [] if first is None else [first]
        return [n for n in self.sources if along[n] >= _ALIKE * along[first]]

    @property
    def peak(self) -> tuple[int, int] | None:
        """The word of an answer, and the window, with the largest effect; None for other parts."""
        if self.parts != "window" or self.by_answer is None or self.by_answer.max() < self.least:
            return None
        word, window = divmod(int(self.by_answer.argmax()), len(self.words))
        return word, window

    @property
    def headline(self) -> str:
        """The finding in one sentence: the word with the largest measured effect."""
        question, part = self.question, self.parts or "word"
        after = f" after {self.name(0)}" * (0 in self.unmeasured and not self.special[0])
        most = f"most of the {part}s{after}" if after else "most"
        if self.peak is not None:
            word, window = self.peak
            answered = literal(numbered(self.answer)[word], _LONGEST)
            return f"{self.name(window)} raises “{answered}” most"
        if not self.sources:
            return f"The text is too short to explain {question} by its {part}s"
        if self._effects[:, self.sources].abs().max() < self.least:
            return f"No {part}{after} alone changes {question} by {signed(self.least)} {self.unit}"
        verb = "raises" if self._sign > 0 else "lowers"
        first, leading = self.strongest, {*map(self.first, self._effects)}
        if self.edges:
            return self._headline_of_edges(verb)
        if first is None and len(leading) == 1:
            return f"Interventions disagree on whether {self.name(*leading)} {verb} {question}"
        name = self.group(leading) if first is None else self.name(first)
        if name is None:
            return f"Interventions disagree on which word {verb} {question} {most}"
        name = name if self.causal else f"by its contribution {name}"
        if self._sign < 0 and max(self.total, float(self.effect[self.sources].sum())) <= -_FAR:
            what = "The context" if "only itself" in self.reference else "The text"
            return f"{what} lowers {question}, {name} {most}"
        return f"{name[0].upper()}{name[1:]} {verb} {question} {most}"

    def _headline_of_edges(self, verb: str) -> str:
        """Return the sentence on the tiles or windows that moved the number most."""
        rows = [divmod(n, len(self.edges[-1]) - 1) for n in self.alike]
        sides = [(min(side), max(side) + 1) for side in zip(*rows, strict=True)]
        are_neighbors = math.prod(high - low for low, high in sides) == len(rows)
        count = len(rows)
        if count > max(_COUNTS) or not are_neighbors:
            of = f"{count} of {len(self.words)} {verb[:-1]}"
            return f"No {self.parts} stands out: {of} {self.question} alike"
        name = self.name(self.alike[0])
        if count > 1 and self.parts == "window":
            begin, end = (round(self.edges[0][n], 2) for n in sides[1])
            name = f"{begin:g}–{end:g} s of the sound"
        elif count > 1:
            name, verb = f"{_COUNTS[count]} neighboring tiles of the picture", verb[:-1]
        return f"{name[0].upper()}{name[1:]} {verb} {self.question} most"

    @property
    def finding(self) -> str:
        """The number in the text and in the reference, and the effect of the strongest word."""
        has_share = not (self.answer or math.isnan(self.probability))
        text = f"{self.quantity[0].upper()}{self.quantity[1:]} is {signed(self.value)} here"
        if self.decomposition is not None:
            other = "without context" if "only itself" in self.reference else "in the reference"
            other = "with all words masked" if "all words are" in self.reference else other
            text += f" and {signed(self.baseline)} {other}"
        text += f"; probability {self.share}." if has_share else "."
        first, along = self.strongest, (self._sign * self.effect).tolist()
        doing = CHANGES[next(iter(self.causal))][0] if self.parts else "Changing"
        verb, other_verb = ("lowers", "raises")[:: self._sign]
        if len(self.alike) > 1 and self.peak is None:
            by = self._between(self.effect[self.alike])
            return f"{text} {doing} each alone {verb} it by {by} {self.unit}."
        if self.peak is not None and self.by_answer is not None:
            word, _ = self.peak
            most, next_one, *_ = [*self.by_answer[word].sort(descending=True).values.tolist(), 0.0]
            name = literal(numbered(self.answer)[word], _LONGEST)
            text += f" Silencing the window lowers that of “{name}” by {signed(most)} nats"
            if next_one <= 0:
                return f"{text}; no other lowers it."
            return f"{text}; any other, by {signed(next_one)} or less."
        if first is not None and self.causal:
            by = self._between(torch.stack([effect[first] for effect in self.causal.values()]))
            text += f" {doing} {self.name(first)} {verb} it by {by} {self.unit}"
            others = [n for n in self.sources if n != first and along[n] >= self.least]
            if len(self.causal) > 1:
                text += f", by {'the' if ' to ' in by else 'each'} kind of change."
            elif others:
                second = max(others, key=along.__getitem__)
                next_one = f"{self.name(second)} with {signed(along[second])}"
                text += f"; the next in this direction is {next_one}."
            else:
                text += f"; no other {other_verb} it."
        if self.decomposition is None or not self.sources:
            return text
        source = max(self.sources, key=self.credit.abs().tolist().__getitem__)
        number = float(self.credit[source])
        is_known = bool(self.causal) and first == source  # from the headline, and the numbers
        if is_known or abs(number) < self.least:
            return text
        credit = f"{self.name(source)}, {signed(number)} {self.unit}"
        if first in (None, source):
            return f"{text} The largest contribution is that of {credit}."
        another = "an" + (self.group((first, source)) or "a word").replace("a", "other", 1)
        return f"{text} The contributions name {another} first: {credit}."

    @staticmethod
    def _between(effects: Tensor) -> str:
        """Return the smallest and the largest size of some effects: "0.30 to 0.42"."""
        return " to ".join(dict.fromkeys(signed(float(x)) for x in effects.abs().aminmax()))

    def shown(self, *, measured: bool | None) -> Shown:
        """Return what colors the words: their effects or their contributions."""
        if self.parts:
            raise InputError("It is explained by parts. Draw it with attnviz.plot.explain.")
        measured = bool(self.causal) if measured is None else measured
        numbers = self.consensus if measured else self.credit
        kind = "measured effect" if measured else "contribution"
        says = f"{self.finding} The color of a word is its {kind}."
        target = "score" if self.quantity == "the score" else self.target
        return Shown(
            numbers.tolist(), says, "lowers", f" {self.unit}, raises {self.question}",
            self.unmeasured, 4 * self.least, f"{target} {self.share}",
            self.unmeasured if self.kind == "masked token" else (),
        )  # fmt: skip

    def _quantities(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the name of each quantity by word, and its numbers, (W,)."""
        yield "credit", self.credit
        for name, lost in self.causal.items():
            yield f"lost by {name}", lost
        yield "consensus", self.consensus
        for name, scores in self.methods.items():
            yield f"method {name}", scores

    def to_arrays(self) -> dict[str, Tensor]:
        """Return the contributions, the effects and the attributions of words, and the split."""
        arrays = {name.replace(" ", "_"): numbers for name, numbers in self._quantities()}
        if (split := self.decomposition) is not None:
            arrays |= {"token_credit": split.credit, "value": split.value, "routing": split.routing}
        arrays |= {} if self.by_answer is None else {"by_answer": self.by_answer}
        return {**arrays, "replacements": self.replacements}

    def about(self) -> dict[str, Any]:
        """Return what is explained, the sums, the correlations, and the proof."""
        return {
            **described(self, "headline target against kind number unit value baseline"),
            **described(self, "probability reference special stacks unmeasured total positions"),
            **described(self, "completeness_error rank_correlations"),
            **(described(self, "parts answer") if self.parts else {}),
            **(described(self, "edges") if self.edges else {}),
            "top": dict(zip(self.top, self.top_probabilities, strict=True)),
            **proof(self),
        }

    def columns_of_table(self) -> Columns:
        """Return one row for each word."""
        columns: Columns = {"position": list(range(len(self.words))), "word": list(self.words)}
        if self.parts == "window":
            columns |= {"begin": list(self.edges[0][:-1]), "end": list(self.edges[0][1:])}
        if self.stacks:
            columns["stack"] = list(self.stacks)
        for name, numbers in self._quantities():
            columns[name] = self._where_measured(numbers).numpy()
        by_answer = () if self.by_answer is None else self.by_answer
        for word, lost in zip(numbered(self.answer), by_answer, strict=True):
            columns[f"answer {word}"] = lost.numpy()
        return columns

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(self.headline, "bold")
        yield Text(self.finding)
        yield Text(f"compared with {self.reference}", "dim")
        if self.top and not math.isnan(self.probability):
            tops = zip(map(literal, self.top), map(percent, self.top_probabilities), strict=True)
            yield Text(f"most probable: {', '.join(map(' '.join, tops))}", "dim")
        contributed = {} if self.decomposition is None else {"all paths": self.credit}
        measured = {"measured": self.consensus} if len(self.causal) > 1 else {}
        columns = {**measured, **self.causal, **contributed, **self.methods}
        columns = {name: self._where_measured(scores) for name, scores in columns.items()}
        yield self._table(columns)
        for name, (rho, low, high) in self.rank_correlations.items():
            yield Text(
                f"rank correlation ρ of {name} with the measured effect of "
                f"{len(self.sources)} words: {rho:.2f} ({low:.2f} to {high:.2f} over words)"
            )
        yield from dim(self.notes)

    def _table(self, columns: Mapping[str, Tensor]) -> Table:
        """Return one line for each word or part; of tiles and windows, for the strongest.

        Of an answer to a sound or a picture, one for each word: what it loses most by, and how
        much.
        """
        if self.edges and self.by_answer is not None:
            table = plain_table(
                ("word", f"{self.parts} that raises it most, {self.unit}", "second"), no_wrap=3
            )
            for word, lost in zip(self.answer, self.by_answer, strict=True):
                best = [n for n in lost.argsort(descending=True).tolist() if lost[n] >= self.least]
                told = [f"{self.words[n]}  {signed(float(lost[n]))}" for n in best]
                table.add_row(literal(word, 20), *[*told, "–", "–"][:2])
            return table
        shown = [n for n, flag in enumerate(self.special) if not flag]
        if self.edges:
            shown = sorted(shown, key=lambda n: -abs(float(self.effect[n])))[:_STRONGEST]
        table = plain_table((self.parts or "word",), list(columns), no_wrap=1)
        for n in shown:
            label = literal(self.names[n], 50 if self.parts else 14)
            label = f"{n + 1:>2}  {label}" if self.parts and not self.edges else label
            table.add_row(label, *(signed(float(scores[n])) for scores in columns.values()))
        return table
