"""What moved a word's vector: the effect of changing each other word, and its exact parts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text
from torch import Tensor

from attnviz.attribution.decomposition import Decomposition, ResidualStream
from attnviz.attribution.ranking import RANKABLE, WordResult, consensus, spearman
from attnviz.errors import joined
from attnviz.results import AgreementReport, Provenance
from attnviz.results.base import Columns, Savable, described, doc, documented, proof, stacked
from attnviz.results.text import dim, literal, plain_table, signed

_LONGEST = 14  # letters of a word in a table
_LONGEST_NAME = 32  # letters of a word, or of a region, in a sentence
_LISTED = 3  # words that a sentence names
_NOTHING = 1e-6  # of the largest: not worth a rank
_FAR = 0.1  # of the way: less is no movement to speak of
_CHANGING = {
    "mask": "masking", "replace": "replacing", "knock-out": "knocking out", "delete": "deleting",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class ShiftPlane(Savable):
    """The path of a word through the layers, in one plane of the space of the hidden states.

    Across is the direction of the shift. One unit is the whole way: from the center of the second
    region to that of the first, or without regions from the end in the reference to the end in the
    text. Upwards is the direction orthogonal to it along which the two paths extend most, in the
    same unit, from the static vector.
    """

    path: Tensor  # in the text, as it enters each layer and at the end, (L + 1, 2)
    reference_path: Tensor  # in the reference, (L + 1, 2)
    region_ends: tuple[Tensor, ...]  # the end of each text of the regions, (n, 2) each
    way: float  # the length of one unit, in units of the hidden state
    size: float  # the norm of the word's vector at the end
    explained: float  # the share of the other variance of the paths that is upwards

    def __repr__(self) -> str:
        return f"ShiftPlane({len(self.path)} places, one unit is {self.way:.2f})"


@documented
class ShiftResult(WordResult):
    """What moved a word's vector in a text, with the proof of the sum and a causal check.

    The text has T tokens and W words, special tokens among them.

    Examples
    --------
    >>> import attnviz
    >>> moved = attnviz.shift("bank", "The bank was full of {mud|cash}.")
    >>> print(moved.headline)
    “cash” in place of “mud” moves “bank” by 4.18, 36% of its length
    >>> moved.decomposition.value.shape  # layers × heads × tokens
    torch.Size([6, 12, 9])
    >>> figure = moved.plot()
    """

    word: str = doc("The word as it is written; the#2 if there are several.")
    at: int = doc("The index of the word.")
    words: tuple[str, ...] = doc("The words of the text.", label=True)
    positions: tuple[tuple[int, ...], ...] = doc(
        "The positions of the pieces of each word. A word contributes the sum of its pieces. If "
        "`word` itself has several pieces, their mean is explained."
    )
    special: tuple[bool, ...] = doc("Which words are special tokens.")
    tokens: tuple[str, ...] = doc("The tokens of the text.", label=True)
    reference: str = doc("What the text is compared with, in words.")
    decomposition: Decomposition = doc("The difference to the reference, split.")
    residual_stream: ResidualStream = doc("What is added from the static to the contextual vector.")
    causal: Mapping[str, Tensor] = doc(
        "By intervention, what the word loses along the direction if each other word is masked, "
        "replaced, knocked out or deleted, (W,). NaN for words that were not changed."
    )
    direct_effect: Tensor | None = doc(
        "The effect of patching each head at the word, with all other attention fixed, (L, H). "
        "Mean of patching the text with the reference, and the reverse. None if heads were not "
        "patched."
    )
    raw_attention: Tensor = doc("The weights of the word in the last layer, mean of heads, (W,).")
    rollout: Tensor = doc("Attention multiplied through the layers, (W,).")
    regions: tuple[str, ...] = doc(
        "The two regions whose axis is the direction. Empty if the direction is that of the shift."
    )
    path: Tensor | None = doc(
        "The place of the word on the axis of the last state, from the second region (0) to the "
        "first (1), as it enters each layer and at the end, (L + 1,). None without regions."
    )
    distances: Tensor | None = doc(
        "The distance to the center of each region, in units of their distance in that layer, (L + "
        "1, 2). None without regions."
    )
    notes: tuple[str, ...] = doc("Further lines of the caption.")
    agreement: AgreementReport = doc("That of the attention of the text.")
    provenance: Provenance = doc("The model and the text.")
    methods: Mapping[str, Tensor] = doc(
        "Further attributions by the name of their method, (W,) each.", default_factory=dict
    )
    total_effect: Tensor | None = doc(
        "The same as `direct_effect` for patching each head at all positions, with everything "
        "after it recomputed.",
        default=None,
    )
    replaced: tuple[str, ...] = doc(
        'The word of the reference text in place of each word; "" where both are the same. Empty '
        "if the reference is no other text.",
        default=(),
    )
    plane: ShiftPlane | None = doc(
        "The path of the word through the layers. None in files of older versions.", default=None
    )
    sink: int | None = doc(
        "The index of the first word, if it stays readable in the reference because the tokenizer "
        "of a causal model has no BOS token. Its contribution is not measured.",
        default=None,
    )

    def __repr__(self) -> str:
        return (
            f"ShiftResult({self.word!r} in {self.provenance.text!r}: "
            f"{self.decomposition.total:.2f}, completeness error {self.decomposition.error:.0e})"
        )

    @property
    def sources(self) -> list[int]:
        """The indices of words that can move it: not special, not itself, of a rollout above 0."""
        others = (n for n, flag in enumerate(self.special) if not flag and self.rollout[n] > 0)
        return [n for n in others if n not in (self.at, self.sink)]

    @property
    def credit(self) -> Tensor:
        """What each word contributed over all paths, (W,). NaN where it is not measured."""
        credit = self.by_word(self.decomposition.credit)
        if self.sink is not None and self.sink != self.at:
            credit[self.sink] = torch.nan
        return credit

    @property
    def direct(self) -> Tensor:
        """What the word takes directly from each word, over all layers and heads, (W,)."""
        return self.by_word(self.decomposition.table.sum((0, 1)))

    @property
    def entries(self) -> list[int]:
        """The indices of the words at which the text differs from a reference text."""
        return [index for index, other in enumerate(self.replaced) if other]

    @property
    def is_all_paths(self) -> bool:
        """Whether words are ranked by what they contribute over all paths, not only directly.

        If the text differs from its reference in one other word, all paths start there by
        construction. What the word takes directly from each word is not fixed.
        """
        return len(self.entries) != 1 or self.entries == [self.at]

    @property
    def contributions(self) -> tuple[str, Tensor]:
        """What is ranked by word: over all paths, or directly, (W,), with its name."""
        return ("all paths", self.credit) if self.is_all_paths else ("direct parts", self.direct)

    @property
    def contribution_error(self) -> float:
        """The completeness error of the contributions, as a share of the length."""
        split = self.decomposition
        return split.credit_error if self.is_all_paths else split.error

    @property
    def consensus(self) -> Tensor | None:
        """The mean of all interventions, scaled to their mean deviation, (W,). None for one."""
        return consensus(self.causal, self.sources) if len(self.causal) > 1 else None

    @property
    def rank_correlations(self) -> dict[str, float]:
        """Spearman's ρ of the credits with each intervention, and with their consensus.

        Empty if the credits of fewer than six sources differ: ρ of a few words is no statistic.
        """
        credit = self.credit[self.sources]
        if not self.sources:
            return {}
        distinct = set((credit / credit.abs().max() * 1e6).round().tolist())
        return {} if len(distinct) < RANKABLE else self._rank_correlations(self.credit)

    @property
    def method_correlations(self) -> dict[str, dict[str, float]]:
        """Spearman's ρ of each of `methods` that can be ranked, as in `rank_correlations`."""
        by_method = {name: self._rank_correlations(scores) for name, scores in self.methods.items()}
        return {name: correlations for name, correlations in by_method.items() if correlations}

    def _rank_correlations(self, attribution: Tensor) -> dict[str, float]:
        """Return Spearman's ρ of an attribution (W,) with each intervention that can be ranked."""
        rows, common = self.sources, self.consensus
        effects = {**self.causal, **({} if common is None else {"consensus": common})}
        if len(rows) < RANKABLE:
            return {}
        rhos = {name: spearman(attribution[rows], lost[rows]) for name, lost in effects.items()}
        return {name: rho for name, rho in rhos.items() if rho is not None}

    @property
    def head_effects(self) -> dict[str, Tensor]:
        """The direct and the total effect of patching each head, (L, H), if they were measured."""
        effects = {"direct effect": self.direct_effect, "total effect": self.total_effect}
        return {name: effect for name, effect in effects.items() if effect is not None}

    @property
    def head_rank_correlations(self) -> dict[str, float]:
        """Spearman's ρ of the contributions of the heads with each of `head_effects`."""
        by_head = self.decomposition.table.sum(-1).flatten()
        rhos = {n: spearman(by_head, e.flatten()) for n, e in self.head_effects.items()}
        return {name: rho for name, rho in rhos.items() if rho is not None}

    def _quantities(self) -> Iterator[tuple[str, str, Tensor, tuple[str, ...]]]:
        """Yield the names of each quantity in files and tables, its numbers and its dimensions."""
        split, stream = self.decomposition, self.residual_stream
        by_source, along = ("layer", "head", "token"), ("layer", "axis")
        plane = self.plane
        text, other = (None, None) if plane is None else (plane.path, plane.reference_path)
        causal, methods = self.causal.items(), self.methods.items()
        quantities = [
            ("value", "value", split.value, by_source),
            ("routing", "routing", split.routing, by_source),
            ("credit", "credit", split.credit, ("token",)),
            *((f"causal_{name}", f"lost by {name}", lost, ("word",)) for name, lost in causal),
            ("direct_effect", "direct effect", self.direct_effect, ("layer", "head")),
            ("total_effect", "total effect", self.total_effect, ("layer", "head")),
            ("raw_attention", "raw attention", self.raw_attention, ("word",)),
            ("rollout", "rollout", self.rollout, ("word",)),
            *((f"method_{name}", f"method {name}", of, ("word",)) for name, of in methods),
            ("ledger_attention", "ledger attention", stream.attention, by_source),
            ("ledger_mlp", "ledger MLP", stream.mlp, ("layer",)),
            ("path", "path", self.path, ("layer",)),
            ("distances", "distance", self.distances, ("layer", "region")),
            ("plane_path", "path in the plane", text, along),
            ("plane_reference_path", "path of the reference in the plane", other, along),
        ]
        for name, quantity, numbers, dimensions in quantities:
            if numbers is not None:
                yield name.replace("-", "_"), quantity, numbers, dimensions

    def to_arrays(self) -> dict[str, Tensor]:
        """Return the parts of the shift, those of the residual stream, and the causal effects."""
        arrays = {name: numbers for name, _, numbers, _ in self._quantities()}
        return {**arrays, "direction": self.decomposition.direction}

    def about(self) -> dict[str, Any]:
        """Return the totals, the errors, the correlations, and the proof."""
        split, stream = self.decomposition, self.residual_stream
        return {
            **described(self, "word at special reference headline way regions"),
            **described(self, "rank_correlations head_rank_correlations"),
            "positions": [list(positions) for positions in self.positions],
            "replaced": {self.names[index]: self.replaced[index] for index in self.entries},
            "conclusion": self.conclusion(),
            **described(split, "total start length"),
            "completeness_error": split.error,
            "credit_error": split.credit_error,
            **({"method_correlations": self.method_correlations} if self.methods else {}),
            "ledger": {
                **described(stream, "bias own total"),
                "completeness_error": stream.error,
            },
            **proof(self),
        }

    def columns_of_table(self) -> Columns:
        """Return one quantity after the other; a column that one does not depend on is empty."""
        labels = {"token": self.tokens, "word": self.words, "region": self.regions}
        labels["axis"] = ("across", "upwards")
        tables: list[Columns] = []
        for _, quantity, numbers, dimensions in self._quantities():
            sides = zip(dimensions, numbers.shape, strict=True)
            along = {name: labels.get(name, range(size)) for name, size in sides}
            table = stacked(along, {"number": numbers})
            tables.append({"quantity": [quantity] * numbers.numel(), **table})
        columns: dict[str, Any] = {name: [] for table in tables for name in table}
        for table, (name, column) in itertools.product(tables, columns.items()):
            column.extend(table.get(name, [None] * len(table["quantity"])))
        return columns

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        toward = f" toward {self.regions[0]}, from {self.regions[1]}" if self.regions else ""
        yield Text(f"what moved “{literal(self.word)}”{toward}", "bold")
        yield Text(f"compared with {self.reference}", "dim")
        yield from self._tables_of_words(options.max_width)
        yield from map(Text, self._conclusions())
        if len(self.sources) > 1:
            yield self._table_of_rankings()
        stream = self.residual_stream
        yield Text(
            f"residual stream, from the static vector to the end, {_number(stream.total)}: "
            f"attention {_number(stream.attention.sum())}, MLPs {_number(stream.mlp.sum())}, "
            f"biases {_number(stream.bias)}, own {_number(stream.own)} (the static vector "
            "after the norms, minus itself)"
        )
        if self.path is not None and self.distances is not None:
            first, second = self.regions
            path = "  ".join(_number(place) or "–" for place in self.path)
            ends = self.distances[[0, -1]].T.tolist()
            near, far = (" and ".join(_number(end) or "–" for end in pair) for pair in ends)
            yield Text(f"place from {second} (0) to {first} (1), by layer and at the end: {path}")
            yield Text(
                f"distance before and after, in units of theirs: to {first} {near}, to {second} "
                f"{far}"
            )
        yield from dim(self.notes)

    def _tables_of_words(self, width: int) -> Iterator[Table]:
        """Yield tables with a row for each word; several if the terminal is narrow."""
        split = self.decomposition
        mean = self.effect if len(self.causal) > 1 else None
        numbers = {
            **({} if mean is None else {"mean effect": mean}),
            **self.causal,
            "all paths": self.credit,
            "value": self.by_word(split.value.sum((0, 1))),
            "routing": self.by_word(split.routing.sum((0, 1))),
        }
        words = [literal(word, _LONGEST) for word in self.words]
        names = list(numbers)
        count = len(names) if width >= 12 * len(names) else 3
        for start in range(0, len(names), count):
            here = names[start : start + count]
            columns = (map(_number, numbers[name]) for name in here)
            rows = zip(words, *columns, strict=True)
            yield plain_table(["source"], here, rows, no_wrap=1 + len(here))

    @property
    def way(self) -> float | None:
        """The length of the way of which contributions are shares, in units of the hidden state.

        With regions, it leads from the center of the second to that of the first; else from the end
        in the reference to the end in the text. None if it is not known.
        """
        if not self.regions:
            return self.decomposition.total
        return None if self.plane is None else self.plane.way

    @property
    def effect(self) -> Tensor | None:
        """The effect of changing each word, the mean of the interventions, (W,). None without.

        The plain mean is a length within the range of the interventions. In `consensus`, which
        ranks words, each intervention counts alike, and the mean may lie outside of this range.
        """
        effect = torch.stack(list(self.causal.values())).mean(0) if self.causal else None
        return None if effect is None or effect[self.sources].isnan().all() else effect

    @property
    def changing(self) -> str:
        """What was done to a word to measure its effect, as a verb: "masking"."""
        names = list(self.causal)
        return _CHANGING.get(names[0], "changing") if len(names) == 1 else "changing"

    @property
    def lost(self) -> str:
        """What the effect of a word is, for a label: "lost by masking it"."""
        verb, *particle = self.changing.split()
        mean = ["(mean)"] if len(self.causal) > 1 else []
        return " ".join(("lost by", verb, "it", *particle, *mean))

    def share(self, number: Tensor | float) -> float:
        """Return a number as a share of the way, if this is known."""
        return float(number) / (self.way or 1.0)

    def shares(self, numbers: Tensor) -> list[float]:
        """Return numbers (W,) as shares of the way."""
        return [self.share(number) for number in numbers]

    def conclusion(self) -> str:
        """Return what moved the word, without what is so by construction."""
        sentences = [f"{self.headline}.", *self.details]
        if self.entries:  # the layer and the head that carry most of the difference to the word
            split = self.decomposition
            by_head = split.table.sum(-1)
            toward = by_head * (1 if split.total > 0 else -1)
            best = int(toward.sum(1).argmax())
            layer, head = divmod(int(toward.argmax()), by_head.shape[1])
            sentences.append(
                f"The strongest layer is {best} ({self._share(toward[best].sum())}), the strongest "
                f"head {head} of layer {layer} ({self._share(toward[layer, head])})."
            )
        return " ".join(sentences)

    @property
    def headline(self) -> str:
        """What moved the word, in one sentence: the title of the figure."""
        if self.at not in self.entries:
            return self._headline_of_a_pair() if self.entries else self._headline_of_words()
        word, other = self._name(self.at), f"“{literal(self.replaced[self.at])}”"
        start = self.decomposition.start  # of the difference, without any context
        if self.regions:
            return f"In place of {other}, {word} itself makes {self._movement(start)}"
        return f"{self.share(start):.0%} of what parts {word} from {other} is in the words alone"

    @property
    def details(self) -> list[str]:
        """The sentences that follow the headline."""
        return [*self._reached()] if self.entries else [*self._measured(), *self._led()]

    def _name(self, index: int) -> str:
        return f"“{literal(self.names[index], _LONGEST_NAME)}”"

    def first(self, scores: Tensor) -> int | None:
        """Return the other word that moves the word most by some scores (W,); None if none does."""
        sizes = {n: size for n in self.sources if (size := abs(scores[n].item())) == size}
        top = max(sizes, key=sizes.__getitem__, default=-1)
        return top if sizes.get(top, 0.0) > _NOTHING * self.decomposition.length else None

    @property
    def strongest(self) -> int | None:
        """The index of the other word that moved the word most, by the mean effect.

        Each intervention moves the word in this direction, and most of them move it most by this
        word. By the contributions if nothing was measured. None if there is no such word, if two
        move it alike, or if the reference is another text.
        """
        effect = self.credit if self.effect is None else self.effect
        first = self.first(effect)
        if first is None or self.entries or len(self._alike(first, effect)) > 1:
            return None
        return first if self.is_confirmed(first, float(effect[first])) else None

    def _alike(self, first: int, scores: Tensor) -> list[int]:
        """Return the other words whose scores are printed alike: the first one, and its ties."""
        return [n for n in self.sources if self._share(scores[n]) == self._share(scores[first])]

    def _ends(self, length: float) -> tuple[str, str]:
        """Return where a movement of such a sign comes from, and where it leads."""
        if self.regions:
            first, second = (literal(region, _LONGEST_NAME) for region in self.regions)
        else:
            first, second = "its place here", f"its place {self.without}"
        return (second, first) if length >= 0 else (first, second)

    @property
    def without(self) -> str:
        """The reference in short, for a label."""
        if self.entries:
            replaced = dict.fromkeys(literal(self.replaced[n], 14) for n in self.entries)
            return f"with {joined([f'“{other}”' for other in replaced])}"
        if "may read only itself" in self.reference:
            return "alone"
        is_masked = "all other words are" in self.reference
        return "with all else masked" if is_masked else "in the reference"

    def _movement(self, length: Tensor | float) -> str:
        """Return a movement along the axis in words."""
        start, end = self._ends(float(length))
        if self.way is None:
            return f"by {_number(abs(float(length)))} toward {end}"
        return f"{_number(abs(self.share(length)))} of the way from {start} to {end}"

    def _headline_of_a_pair(self) -> str:
        """Say how far different words move the word: that they do so is no finding."""
        word, total = self._name(self.at), self.decomposition.total
        others = joined([f"“{literal(self.replaced[n])}”" for n in self.entries])
        pair = f"{joined([self._name(n) for n in self.entries])} in place of {others}"
        pair = pair if len(self.entries) <= _LISTED else f"{len(self.entries)} words"
        moved = f"{pair} {'moves' if len(self.entries) == 1 else 'move'} {word}"
        if self.regions:
            return f"{moved} {self._movement(total)}"
        share = "" if self.plane is None else f", {abs(total) / self.plane.size:.0%} of its length"
        return f"{moved} by {_number(total)}{share}"

    def _headline_of_words(self) -> str:
        """Say which word moved the word most, by the effect of changing it."""
        word, effect = self._name(self.at), self.effect
        scores = self.credit if effect is None else effect
        if (first := self.first(scores)) is None:
            return f"No other word moved {word}"
        name, movement = self._name(first), self._movement(scores[first])
        if effect is None:
            return f"The split credits {name} with {movement}; no effect was measured"
        kinds = torch.stack(list(self.causal.values()))[:, self.sources]
        furthest = self.share(kinds.nan_to_num().abs().max())
        if self.way is not None and furthest < _FAR:
            most, (start, end) = math.ceil(100 * furthest) / 100, self._ends(1.0)
            return f"No word moved {word} more than {most:.2f} of the way between {start} and {end}"
        share = f"{self._share(effect[first].abs())}{'' if self.way is None else ' of the way'}"
        if len(alike := self._alike(first, effect)) > 1:
            names = joined([self._name(n) for n in alike[:_LISTED]])
            return f"{names} moved {word} most and alike, {share} each"
        if len(kinds) == 1:
            return f"{self.changing.capitalize()} {name} moves {word} most, {share}"
        if self.strongest is None:
            return f"Interventions disagree on what moved {word} most"
        return f"{name} {'pulled' if self.regions else 'moved'} {word} {movement}"

    def _measured(self) -> Iterator[str]:
        """Yield the effect that the headline names, and what the split says of it."""
        effect = self.effect
        first = None if effect is None else self.first(effect)
        if effect is not None and first is not None:
            sign, name = effect[first].sign(), self._name(first)
            several = [self.share(one[first] * sign) for one in self.causal.values()]
            low, high = (_number(end) for end in (min(several), max(several)))
            spread = f" ({low} to {high} by the kind of change)" if low != high else ""
            source = self.first(self.credit)
            split = f"the split credits {name} with {self._share(self.credit[first])}"
            if source not in (None, first):
                split += f", and {self._name(source)} most, with {self._share(self.credit[source])}"
            unit = " toward" if self.way is None else " of the way toward"
            moves = f"moves it {self._share(effect[first] * sign)}{unit}"
            is_mean = len(several) > 1 and self.strongest is None
            by = f"On average, {self.changing}" if is_mean else self.changing.capitalize()
            yield f"{by} {name} {moves} {self._ends(float(effect[first]))[0]}{spread}; {split}."

    def _led(self) -> Iterator[str]:
        """Yield where all words together lead between two regions."""
        if self.regions:
            movement = self._movement(self.decomposition.total)
            yield f"In all, the sentence moves {self._name(self.at)} {movement}."
            if self.plane is not None:
                first, second = (literal(region, _LONGEST_NAME) for region in self.regions)
                place = _number(self.plane.path[-1, 0])
                yield f"It ends at {place}, where {second} is 0 and {first} is 1."

    def _reached(self) -> Iterator[str]:
        """Yield where a difference of two texts enters, and how it reaches the word directly."""
        split, rows = self.decomposition, self.entries
        sign = 1 if split.total > 0 else -1

        def share(number: Tensor | float) -> str:
            return self._share(number * sign)

        pairs = [f"{self._name(n)} (“{literal(self.replaced[n])}” in the reference)" for n in rows]
        if len(rows) == 1:
            yield f"All of it starts at {pairs[0]}, the only difference."
        else:
            known = [n for n in rows if self.credit[n] == self.credit[n]]
            shares = [f"{share(self.credit[n])} starts at {self._name(n)}" for n in known]
            yield f"The differences are {joined(pairs)}. {joined(shares)}."
        others = [n for n in rows if n != self.at]
        rest = [n for n in range(len(self.words)) if n not in (*others, self.at)]
        parts = [f"{share(self.direct[n])} directly from {self._name(n)}" for n in others]
        parts += [f"{share(self.direct[self.at])} from itself"]
        parts += [f"{share(self.direct[rest].sum())} from other tokens"]
        own = f", besides {share(split.start)} that it starts with" if split.start else ""
        total = f"Of {share(split.total)}" if self.regions else "Of the whole"
        yield f"{total}, {self._name(self.at)} takes {joined(parts)}{own}."

    def _share(self, number: Tensor | float) -> str:
        return _number(self.share(number))

    def _conclusions(self) -> Iterator[str]:
        """Yield the sums, what moved the word, and the rank correlations."""
        split = self.decomposition
        unit = "along the axis" if self.regions else "along itself"
        start = f" plus {_number(split.start)} that differed at the start" if split.start else ""
        way = f" of {_number(self.way)} for the whole way" if self.regions and self.way else ""
        yield (
            f"the shift {unit}, in units of the hidden state: {_number(split.total)}{way}; all "
            f"paths sum to it (error {split.credit_error:.0e} of its length), and so do value and "
            f"routing, the direct parts{start} (error {split.error:.0e})"
        )
        if conclusion := self.conclusion():
            yield conclusion
        if ranks := self.rank_correlations:
            yield (
                f"rank correlation ρ of all paths with the effect of changing each of "
                f"{len(self.sources)} words, in separate runs: {_listed(ranks)}"
            )
        for name, ranks in self.method_correlations.items():
            yield f"rank correlation ρ of {name}: {_listed(ranks)}"
        if ranks := self.head_rank_correlations:
            yield f"rank correlation ρ of the heads with the effect of patching: {_listed(ranks)}"

    def _table_of_rankings(self) -> Table:
        """Return the first words by the effect, by the decomposition, and by attention."""
        sign = 1 if self.decomposition.total > 0 else -1  # the first contributed most
        contributed, contributions = self.contributions
        others = [name for name in self.methods if name not in ("raw-attention", "rollout")]
        rankings = {
            **({} if self.effect is None else {"by mean effect": self.effect * sign}),
            f"by {contributed}": contributions * sign,
            "by raw attention": self.raw_attention,
            "by rollout": self.rollout,
            **{f"by {other}": self.methods[other] * sign for other in others},
        }
        columns = {}
        for name, numbers in rankings.items():
            scores = {index: numbers[index].item() for index in self.sources}
            least = _NOTHING * max(map(abs, scores.values()))
            ranked = sorted(scores, key=scores.__getitem__, reverse=True)
            shown = [index for index in ranked if abs(scores[index]) > least][:5]
            columns[name] = [literal(self.names[index], _LONGEST) for index in shown]
        rows = itertools.zip_longest(*columns.values(), fillvalue="")
        return plain_table(list(columns), rows=rows, no_wrap=len(columns))


def _listed(correlations: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {_number(rho)}" for name, rho in correlations.items())


def _number(value: Tensor | float) -> str:
    return signed(float(value), "")
