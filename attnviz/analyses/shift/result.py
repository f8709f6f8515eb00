"""What moved a word's vector: the effect of changing each other word, and its exact parts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text
from torch import Tensor

from attnviz.attribution.decomposition import Decomposition, ResidualStream
from attnviz.attribution.ranking import RANKABLE, Shown, WordResult, spearman
from attnviz.errors import joined
from attnviz.results import AgreementReport, Provenance
from attnviz.results.base import Columns, described, doc, documented, proof, stacked
from attnviz.results.text import dim, fraction, literal, plain_table, raised, signed

_LONGEST_NAME = 32  # letters of a word, or of a region, in a sentence
_LISTED = 3  # words that a sentence names
_FAR = 0.1  # of the way: less is no movement to speak of
_SHORT = 0.005  # of the word's length: printed as 0%
_CHANGES = {
    "mask": ("masking", "masked"), "replace": ("replacing", "replaced"),
    "knock-out": ("hiding", "hidden"), "delete": ("deleting", "deleted"),
}  # fmt: skip


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
    regions: tuple[str, ...] = doc("The two regions whose axis is the direction; empty without.")
    place: Tensor = doc(
        "The place of the word in the text and in the reference, as it enters each layer and at "
        "the end, (2, L + 1). Between regions 1 is the first and 0 the second at the end, and ½ is "
        "their middle in each layer; their vectors have the same mean norm in each layer. Without "
        "regions 0 is the place in the reference and 1 that in the text at the end; each layer is "
        "measured in units of the norm there."
    )
    rails: Tensor | None = doc(
        "The places of the two regions in each layer and at the end, (2, L + 1): ½ where they are "
        "one point. None without regions."
    )
    way: float = doc(
        "The length of the way of which contributions are shares, in units of the hidden state. "
        "With regions, it leads from the center of the second to that of the first; else from the "
        "end in the reference to the end in the text."
    )
    size: float = doc("The norm of the word's vector at the end.")
    distances: Tensor | None = doc(
        "The distance to the center of each region, in units of their distance in that layer, (L + "
        "1, 2). None without regions."
    )
    notes: tuple[str, ...] = doc("Further lines of the caption.")
    agreement: AgreementReport = doc("That of the attention of the text.")
    provenance: Provenance = doc("The model and the text.")
    methods: Mapping[str, Tensor] = doc("Attributions by method, (W,) each.", default_factory=dict)
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
    def unread(self) -> list[int]:
        """The indices of the words that a causal model cannot have read at the word."""
        words = (n for n, flag in enumerate(self.special) if not flag)
        return [n for n in words if n > self.at and not self.rollout[n] > 0]

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
        rows, effects = self.sources, {**self.causal}
        if len(effects) > 1:
            effects["consensus"] = self.consensus
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
        by_source = ("layer", "head", "token")
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
            ("place", "place", self.place, ("run", "layer")),
            ("rails", "rail", self.rails, ("region", "layer")),
            ("distances", "distance", self.distances, ("layer", "region")),
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
            **described(self, "word at special positions reference headline way size regions"),
            **described(self, "rank_correlations head_rank_correlations"),
            "replaced": {self.names[index]: self.replaced[index] for index in self.entries},
            "conclusion": self.conclusion(),
            **described(split, "total start length"),
            "completeness_error": split.error,
            "credit_error": split.credit_error,
            **({"method_correlations": self.method_correlations} if self.methods else {}),
            "ledger": {**described(stream, "bias own total"), "completeness_error": stream.error},
            **proof(self),
        }

    def columns_of_table(self) -> Columns:
        """Return one quantity after the other; a column that one does not depend on is empty."""
        labels = {"token": self.tokens, "word": self.words, "region": self.regions}
        labels["run"] = ("text", "reference")
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
        yield Text(self.headline, "bold")
        yield from map(Text, self.details)
        if self.regions:
            yield from self._line_of_ends(options.max_width)
        yield self._table_of_words()
        yield Text(f"compared with {self.reference}", "dim")
        yield from map(Text, self._conclusions())
        stream = self.residual_stream
        yield Text(
            f"residual stream, from the static vector to the end, {signed(stream.total)}: "
            f"attention {signed(float(stream.attention.sum()))}, "
            f"MLPs {signed(float(stream.mlp.sum()))}, "
            f"biases {signed(stream.bias)}, own {signed(stream.own)} (the static vector "
            "after the norms, minus itself)"
        )
        rails = [] if self.rails is None else zip(self.regions, self.rails, strict=True)
        for name, places in [*zip(("here", self.without), self.place, strict=True), *rails]:
            listed = "  ".join(fraction(place) or "–" for place in places.tolist())
            yield Text(f"place by layer and at the end, {name}: {listed}")
        yield from dim(self.notes)

    @property
    def reached(self) -> tuple[float, float]:
        """The places at the end, in the text and in the reference."""
        here, other = self.place[:, -1].tolist()
        return here, other

    def _line_of_ends(self, width: int) -> Iterator[Text]:
        """Yield the way between the regions as a line with both ends, and their names below it."""
        (first, second), (here, other) = self.ends, self.reached
        before, after = f"{second} 0 ", f" 1 {first}"
        low, high = min(0.0, here, other), max(1.0, here, other)
        room = max(10, min(width, 100) - len(before) - len(after))
        start, end = (round((at - low) / (high - low) * (room - 1)) for at in (other, here))
        line, (left, right) = ["─"] * room, sorted((start, end))
        line[left : right + 1] = ["━"] * (right + 1 - left)
        line[start], line[end] = "○", "●"
        yield Text(f"{before}{''.join(line)}{after}")
        names = (self.without, "here") if start <= end else ("here", self.without)
        gap = " " * max(1, right - left - 1)
        yield Text(f"{names[0]:>{len(before) + left + 1}}{gap}{names[1]}")

    def _table_of_words(self) -> Table:
        adds, sides = self.along(self.parts), ("#d9720f", "#3567ad")[:: self.sign]
        takes = [self.along(lost) for lost in self.causal.values()]
        gap = abs(self.share(self.decomposition.total))
        shown = [n for n in self.sources if abs(adds[n]) >= 0.02 * gap]
        longest = max((abs(adds[n]) for n in shown), default=1.0)
        rows: list[list[str | Text]] = []
        for n in shown:
            bar = "█" * round(20 * abs(adds[n]) / longest)
            numbers = [fraction(each[n]) for each in (adds, *takes)]
            look = "bold" if n == self.strongest else ""
            name = Text(raised(literal(self.names[n], 14)), look)
            rows.append([name, Text(bar, sides[adds[n] < 0]), *numbers])
        rest = sum(share for n, share in enumerate(adds) if n not in shown)
        for label, share in (("others", rest), ("the gap", gap)):
            rows.append([label, "", fraction(share), *[""] * len(takes)])
        return plain_table(["", ""], ["adds", *self.changed], rows, no_wrap=3 + len(takes))

    @property
    def effect(self) -> Tensor | None:
        """The effect of changing each word, the plain mean of the interventions, (W,)."""
        effect = torch.stack(list(self.causal.values())).mean(0) if self.causal else None
        return None if effect is None or effect[self.sources].isnan().all() else effect

    @property
    def tested(self) -> Tensor:
        """What the word loses by the first kind of change of each other word, (W,), or NaN."""
        return next(iter(self.causal.values()), self._nothing)

    @property
    def changing(self) -> str:
        """What was done to a word to measure `tested`, as a verb: "masking"."""
        return next((_CHANGES[name][0] for name in self.causal), "changing")

    @property
    def changed(self) -> tuple[str, ...]:
        """The kinds of change as participles: "masked"."""
        return tuple(_CHANGES[name][1] for name in self.causal)

    def shown(self, *, measured: bool | None) -> Shown:
        """Return what colors the words: the shares of the way that they add, or that they take."""
        numbers = self.shares(self.tested if measured else self.parts)
        kind = f"what {self.changing} it takes" if measured else "what it adds"
        says = f"{' '.join(self.details)} The color of a word is {kind}."
        says += " Gray words come later: they are not read." * bool(self.unread)
        gray = [*self.unread, *([] if self.sink is None else [self.sink])]
        if self.regions:
            high, low = (f"toward {end}" for end in self.ends)
            return Shown(numbers, says, low, f", {high}", gray)
        least = 4 * _SHORT * self.size / abs(self.way)
        return Shown(numbers, says, "against the shift", ", along it", gray, least)

    def share(self, number: Tensor | float) -> float:
        """Return a number as a share of the way."""
        return float(number) / self.way

    def shares(self, numbers: Tensor) -> list[float]:
        """Return numbers (W,) as shares of the way."""
        return [self.share(number) for number in numbers]

    def conclusion(self) -> str:
        """Return what moved the word, without what is so by construction."""
        return " ".join([f"{self.headline}.", *self.details, *self._carried()])

    def _carried(self) -> Iterator[str]:
        """Yield the layer and the head that carry most of the difference of two texts."""
        if self.entries:
            by_head = self.decomposition.table.sum(-1) * self.sign
            best = int(by_head.sum(1).argmax())
            layer, head = divmod(int(by_head.argmax()), by_head.shape[1])
            of_layer, of_head = map(self._share, (by_head[best].sum(), by_head[layer, head]))
            yield (
                f"The strongest layer is {best} ({of_layer}), the strongest head {head} of layer "
                f"{layer} ({of_head})."
            )

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
        return [*self._reached()] if self.entries else [*self._moved()]

    def _name(self, index: int) -> str:
        return f"“{raised(literal(self.names[index], _LONGEST_NAME))}”"

    @property
    def sign(self) -> int:
        """Whether the shift is toward the first region, 1, or the second, -1."""
        return 1 if self.decomposition.total >= 0 else -1

    def along(self, scores: Tensor) -> list[float]:
        """Return scores (W,) as shares of the way, positive along the shift."""
        return [self.sign * share for share in self.shares(scores)]

    @property
    def parts(self) -> Tensor:
        """The contributions, (W,), with the difference at the start: their sum is the shift."""
        if self.is_all_paths:
            return self.by_word(self.decomposition.credit)
        parts = self.direct
        parts[self.at] += self.decomposition.start
        return parts

    @property
    def credited(self) -> int | None:
        """The word with most credit; None below 0.1 of the way, and for a pair of texts."""
        along = self.along(self.credit)
        top = max(self.sources, key=along.__getitem__, default=-1)
        return top if not self.entries and top >= 0 and min(along[top], self._gap) >= _FAR else None

    @property
    def _gap(self) -> float:
        """The shift as a share of the way, or 0 if that is short without regions."""
        is_short = not self.regions and abs(self.way) < _SHORT * self.size
        return 0.0 if is_short else abs(self.share(self.decomposition.total))

    @property
    def strongest(self) -> int | None:
        """The word that is credited most, alone, and whose change takes a quarter of that or more.

        None if there is none, or if another takes 1.5 times as much and 0.1 of the way.
        """
        top = self.credited
        if top is None or len(self._alike(top)) > 1 or self._taken_by(top) is not None:
            return None
        lost, credit = (self.along(scores)[top] for scores in (self.tested, self.credit))
        return top if lost >= 0.25 * credit else None

    def _taken_by(self, top: int) -> int | None:
        """Return the other word of which the change takes much more than that of the first."""
        lost = self.along(self.tested)
        known = (n for n in self.sources if lost[n] == lost[n])
        most = max(known, key=lost.__getitem__, default=top)
        return most if most != top and lost[most] >= max(_FAR, 1.5 * lost[top]) else None

    def _alike(self, top: int) -> list[int]:
        """Return the words whose credit is printed alike: the first one, and its ties."""
        credit = list(map(self._share, self.credit))
        return [n for n in self.sources if credit[n] == credit[top]]

    @property
    def ends(self) -> tuple[str, str]:
        """What is at 1 and at 0."""
        if not self.regions:
            return "here", self.without
        first, second = (literal(region, _LONGEST_NAME) for region in self.regions)
        return first, second

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

    @property
    def _toward(self) -> str:
        """Where the shift leads; empty without regions."""
        return f" toward {self.ends[self.sign < 0]}" if self.regions else ""

    def _movement(self, length: float) -> str:
        start, end = self.ends[:: -1 if length >= 0 else 1]
        return f"{self._share(abs(length))} of the way from {start} to {end}"

    def _headline_of_a_pair(self) -> str:
        """Say how far different words move the word: that they do so is no finding."""
        word, total = self._name(self.at), self.decomposition.total
        others = joined([f"“{literal(self.replaced[n])}”" for n in self.entries])
        pair = f"{joined([self._name(n) for n in self.entries])} in place of {others}"
        pair = pair if len(self.entries) <= _LISTED else f"{len(self.entries)} words"
        moved = f"{pair} {'moves' if len(self.entries) == 1 else 'move'} {word}"
        if self.regions:
            return f"{moved} {self._movement(total)}"
        return f"{moved} by {fraction(total)}, {abs(total) / self.size:.0%} of its length"

    def _headline_of_words(self) -> str:
        """Say which word is credited most with the shift, and whether changing it confirms that."""
        word, top = self._name(self.at), self.credited
        least = 1e-6 * self.decomposition.length
        if not any(abs(self.credit[n]) > least for n in self.sources):
            return f"No other word moves {word}"
        if self._gap < _FAR:
            toward = f" toward {' or '.join(self.ends)}" if self.regions else ""
            return f"Nothing here moves {word} far{toward}"
        if top is None:
            return f"No single word moves {word}{self._toward or ' far'}"
        if len(alike := self._alike(top)) > 1:
            names = joined([self._name(n) for n in alike[:_LISTED]])
            return f"{names} get the most credit for moving {word}{self._toward}, and alike"
        name = self._name(top)
        if (other := self._taken_by(top)) is not None:
            other_name = self._name(other)
            return f"{name} is credited most, but {self.changing} {other_name} moves {word} more"
        if self.strongest is None:
            lost = self.tested[top].item()
            rest = f", but {self.changing} it changes little" if lost == lost else self._toward
            return f"{name} gets the most credit for moving {word}{rest}"
        return f"{name} pulls {word}{self._toward}" if self.regions else f"{name} moves {word} most"

    def _moved(self) -> Iterator[str]:
        """Yield how far the sentence moves the word, and the numbers of the headline."""
        total, top = self.decomposition.total, self.credited
        if not self.regions:
            yield f"The sentence moves it by {abs(total) / self.size:.0%} of its length."
        else:
            (first, second), far = self.ends, f"{self._share(abs(total))} of the way"
            yield f"The sentence moves it {far}{self._toward} (0 is {second}, 1 is {first})."
        if top is not None:
            adds, takes = self.along(self.credit), self.along(self.tested)
            said = [f"{self.changing} it takes {fraction(takes[top])}"]
            if (other := self._taken_by(top)) is not None:
                said.append(f"{self.changing} {self._name(other)} {fraction(takes[other])}")
            tested = ", ".join(said) if takes[top] == takes[top] else "not tested by changing it"
            of = "" if self.regions else " of this gap"
            yield f"{self._name(top)} adds {fraction(adds[top])}{of}; {tested}."

    def _reached(self) -> Iterator[str]:
        """Yield where a difference of two texts enters, and how it reaches the word directly."""
        split, rows = self.decomposition, self.entries

        def share(number: Tensor | float) -> str:
            return self._share(number * self.sign)

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
        return fraction(self.share(number))

    def _conclusions(self) -> Iterator[str]:
        split = self.decomposition
        unit = "along the axis" if self.regions else "along itself"
        start = f" plus {signed(split.start)} that differed at the start" if split.start else ""
        way = f" of {signed(self.way)} for the whole way" if self.regions else ""
        yield (
            f"the shift {unit}, in units of the hidden state: {signed(split.total)}{way}; all "
            f"paths sum to it (error {split.credit_error:.0e} of its length), and so do value and "
            f"routing, the direct parts{start} (error {split.error:.0e})"
        )
        yield from self._carried()
        if ranks := self.rank_correlations:
            yield (
                f"rank correlation ρ of all paths with the effect of changing each of "
                f"{len(self.sources)} words, in separate runs: {_listed(ranks)}"
            )
        others = {"raw attention": self.raw_attention, "rollout": self.rollout}
        others |= {name: scores * self.sign for name, scores in self.methods.items()}
        for name, scores in others.items():
            ranked = sorted(self.sources, key=scores.tolist().__getitem__, reverse=True)[:5]
            yield f"first words by {name}: {', '.join(raised(self.names[n]) for n in ranked)}"
        for name, ranks in self.method_correlations.items():
            yield f"rank correlation ρ of {name}: {_listed(ranks)}"
        if ranks := self.head_rank_correlations:
            yield f"rank correlation ρ of the heads with the effect of patching: {_listed(ranks)}"


def _listed(correlations: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {signed(rho)}" for name, rho in correlations.items())
