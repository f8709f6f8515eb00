"""What moved a word's vector: its exact parts, and the effect of changing each other word."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

import attnviz
from attnviz.results.agreement_report import AgreementReport
from attnviz.results.attention_result import Provenance
from attnviz.results.axis import literal
from attnviz.results.base import Columns, Result, Savable, proof, stacked

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table

_FEWEST = 3  # sources that can be ranked
_LONGEST = 14  # letters of a word in a table
_RANKED = 5  # words of each ranking
_NOTHING = 1e-6  # of the largest: not worth a rank


@dataclass(frozen=True, eq=False)
class ShiftDecomposition(Savable):
    """The difference of two runs at one position, split over layers, heads and sources.

    All numbers are lengths along `direction`, in units of the hidden state. There are L layers,
    H heads and T sources.
    """

    value: Tensor  # the part of each head due to different values, (L, H, T)
    routing: Tensor  # the part due to different attention weights, (L, H, T)
    start: float  # the difference at the position itself before the first layer
    credit: Tensor  # of each source over all paths, also through other positions, (T,)
    total: float  # the difference of the runs
    length: float  # its norm in all directions
    direction: Tensor  # of norm 1, (d,)

    def __repr__(self) -> str:
        """Return a summary without the tensors."""
        L, H, T = self.value.shape
        size = f"{L} layers × {H} heads × {T} tokens"
        return f"ShiftDecomposition({size}: {self.total:.2f}, error {self.error:.0e})"

    @property
    def table(self) -> Tensor:
        """The sum of value and routing parts, (L, H, T)."""
        return self.value + self.routing

    @property
    def error(self) -> float:
        """The completeness error of the direct parts, as a share of the length."""
        return abs(self.table.sum().item() + self.start - self.total) / self.length

    @property
    def credit_error(self) -> float:
        """The completeness error of the credits, as a share of the length."""
        return abs(self.credit.sum().item() - self.total) / self.length


@dataclass(frozen=True, eq=False)
class ResidualStream(Savable):
    """What was added to the residual stream of one position, from its static vector to the end.

    Attention weights, the scales of norms and the gates of activations are fixed at their values.
    The network is then affine, and every part is propagated to the end. Numbers are as in
    `ShiftDecomposition`.
    """

    attention: Tensor  # added by each head from each source, (L, H, T)
    mlp: Tensor  # added by each MLP, (L,)
    bias: float  # added by all biases after the values
    own: float  # the propagated static vector, minus the static vector
    total: float  # the shift along the direction
    length: float  # its norm in all directions
    direction: Tensor  # of norm 1, (d,)

    def __repr__(self) -> str:
        """Return a summary without the tensors."""
        return (
            f"ResidualStream(attention {self.attention.sum():.2f}, MLPs {self.mlp.sum():.2f}, "
            f"biases {self.bias:.2f}, own {self.own:.2f}: {self.total:.2f}, error {self.error:.0e})"
        )

    @property
    def error(self) -> float:
        """The completeness error, as a share of the length."""
        parts = self.attention.sum().item() + self.mlp.sum().item() + self.bias + self.own
        return abs(parts - self.total) / self.length


@dataclass(frozen=True, eq=False)
class ShiftResult(Result):
    """What moved a word's vector in a text, with the proof of the sum and a causal check.

    The text has T tokens and W words, special tokens among them.

    Attributes
    ----------
    word : str
        The word as it is written; the#2 if there are several.
    at : int
        The index of the word.
    words : tuple of str
        The words of the text.
    positions : tuple of tuple of int
        The positions of the pieces of each word. A word contributes the sum of its pieces. If
        `word` itself has several pieces, their mean is explained.
    special : tuple of bool
        Which words are special tokens.
    tokens : tuple of str
        The tokens of the text.
    reference : str
        What the text is compared with, in words.
    decomposition : ShiftDecomposition
        The difference to the reference, split.
    residual_stream : ResidualStream
        What was added from the static to the contextual vector.
    causal : mapping of str to Tensor
        By intervention, what the word loses along the direction if each other word is masked,
        replaced, knocked out or deleted, (W,). NaN for words that were not changed.
    direct_effect : Tensor or None
        The effect of patching each head at the word, with all other attention fixed, (L, H). Mean
        of patching the text with the reference, and the reverse. None if heads were not patched.
    raw_attention : Tensor
        The weights of the word in the last layer, averaged over heads, (W,).
    rollout : Tensor
        Attention multiplied through the layers, (W,).
    regions : tuple of str
        The two regions whose axis is the direction. Empty if the direction is that of the shift.
    path : Tensor or None
        The place of the word on that axis, from the second region (0) to the first (1), as it
        enters each layer and at the end, (L + 1,). None without regions.
    distances : Tensor or None
        The distance to the center of each region, in units of their distance in that layer,
        (L + 1, 2). None without regions.
    notes : tuple of str
        Further lines of the caption.
    agreement, provenance : AgreementReport, Provenance
        Those of the attention of the text.
    methods : mapping of str to Tensor
        Further attributions by the name of their method, (W,) each.
    total_effect : Tensor or None
        The same as `direct_effect` for patching each head at all positions, with everything after
        it recomputed.
    replaced : tuple of str
        The word of the reference text in place of each word; "" where both are the same. Empty if
        the reference is no other text.
    """

    word: str
    at: int
    words: tuple[str, ...]
    positions: tuple[tuple[int, ...], ...]
    special: tuple[bool, ...]
    tokens: tuple[str, ...]
    reference: str
    decomposition: ShiftDecomposition
    residual_stream: ResidualStream
    causal: Mapping[str, Tensor]
    direct_effect: Tensor | None
    raw_attention: Tensor
    rollout: Tensor
    regions: tuple[str, ...]
    path: Tensor | None
    distances: Tensor | None
    notes: tuple[str, ...]
    agreement: AgreementReport
    provenance: Provenance
    methods: Mapping[str, Tensor] = field(default_factory=dict)
    total_effect: Tensor | None = None
    replaced: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Return a summary without the tensors."""
        return (
            f"ShiftResult({self.word!r} in {self.provenance.text!r}: "
            f"{self.decomposition.total:.2f}, completeness error {self.decomposition.error:.0e})"
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The words, with a number where one occurs several times: the#1 and the#2."""
        return numbered(self.words)

    @property
    def sources(self) -> list[int]:
        """The indices of the words that can move the word, without special tokens and itself.

        A word with a rollout of 0 is on no path, such as later words in a causal model.
        """
        return [
            index
            for index, special in enumerate(self.special)
            if not special and index != self.at and self.rollout[index] > 0
        ]

    def by_word(self, parts: Tensor) -> Tensor:
        """Sum parts (…, T) over the pieces of each word, (…, W)."""
        return sum_pieces(parts, self.positions)

    @property
    def credit(self) -> Tensor:
        """What each word contributed over all paths, (W,)."""
        return self.by_word(self.decomposition.credit)

    @property
    def direct(self) -> Tensor:
        """What the word takes directly from each word, over all layers and heads, (W,)."""
        return self.by_word(self.decomposition.table.sum((0, 1)))

    @property
    def entries(self) -> list[int]:
        """The indices of the words at which the text differs from a reference text."""
        return [index for index, other in enumerate(self.replaced) if other]

    @property
    def contributions(self) -> tuple[str, Tensor]:
        """What is ranked by word: over all paths, or directly, (W,), with its name.

        If the text differs from its reference in one other word, all paths start there by
        construction. What the word takes directly from each word is not fixed.
        """
        is_fixed = len(self.entries) == 1 and self.entries != [self.at]
        return ("direct parts", self.direct) if is_fixed else ("all paths", self.credit)

    @property
    def consensus(self) -> Tensor | None:
        """The mean of all interventions, each in units of its deviation, (W,). None for one."""
        return consensus(self.causal, self.sources) if len(self.causal) > 1 else None

    @property
    def _effects(self) -> dict[str, Tensor]:
        """The effects of all interventions, and their consensus."""
        common = self.consensus
        return {**self.causal, **({} if common is None else {"consensus": common})}

    @property
    def rank_correlations(self) -> dict[str, float]:
        """Spearman's ρ of the credits with each intervention, and with their consensus.

        Empty if the credits of fewer than three sources differ.
        """
        credit = self.credit[self.sources]
        if not self.sources:
            return {}
        distinct = set((credit / credit.abs().max() * 1e6).round().tolist())
        return {} if len(distinct) < _FEWEST else self._rank_correlations(self.credit)

    @property
    def method_correlations(self) -> dict[str, dict[str, float]]:
        """Spearman's ρ of each of `methods` with each intervention, and with their consensus.

        Methods that cannot be ranked are left out.
        """
        by_method = {name: self._rank_correlations(scores) for name, scores in self.methods.items()}
        return {name: correlations for name, correlations in by_method.items() if correlations}

    def _rank_correlations(self, attribution: Tensor) -> dict[str, float]:
        """Return Spearman's ρ of an attribution (W,) with each intervention that can be ranked."""
        rows, effects = self.sources, self._effects
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

    def _quantities(self) -> list[tuple[str, str, Tensor | None, tuple[str, ...]]]:
        """Return the names of each quantity in files and tables, its numbers and its dimensions."""
        split, stream = self.decomposition, self.residual_stream
        by_source = ("layer", "head", "token")
        rows: list[tuple[str, str, Tensor | None, tuple[str, ...]]] = [
            ("value", "value", split.value, by_source),
            ("routing", "routing", split.routing, by_source),
            ("credit", "credit", split.credit, ("token",)),
        ]
        for name, lost in self.causal.items():
            rows.append((f"causal_{name}", f"lost by {name}", lost, ("word",)))
        rows += [
            ("direct_effect", "direct effect", self.direct_effect, ("layer", "head")),
            ("total_effect", "total effect", self.total_effect, ("layer", "head")),
            ("raw_attention", "raw attention", self.raw_attention, ("word",)),
            ("rollout", "rollout", self.rollout, ("word",)),
        ]
        for name, scores in self.methods.items():
            rows.append((f"method_{name}", f"method {name}", scores, ("word",)))
        return [
            *rows,
            ("ledger_attention", "ledger attention", stream.attention, by_source),
            ("ledger_mlp", "ledger MLP", stream.mlp, ("layer",)),
            ("path", "path", self.path, ("layer",)),
            ("distances", "distance", self.distances, ("layer", "region")),
        ]

    def to_arrays(self) -> dict[str, Tensor]:
        """Return the parts of the shift, those of the residual stream, and the causal effects."""
        arrays = {
            name.replace("-", "_"): numbers
            for name, _, numbers, _ in self._quantities()
            if numbers is not None
        }
        return {**arrays, "direction": self.decomposition.direction}

    def labels(self) -> dict[str, list[str]]:
        """Return the words and the tokens of the text."""
        return {"words": list(self.words), "tokens": list(self.tokens)}

    def about(self) -> dict[str, Any]:
        """Return the totals, the errors, the correlations, and the proof."""
        split, stream = self.decomposition, self.residual_stream
        return {
            "word": self.word,
            "at": self.at,
            "positions": [list(positions) for positions in self.positions],
            "special": list(self.special),
            "reference": self.reference,
            "replaced": {self.names[index]: self.replaced[index] for index in self.entries},
            "conclusion": self.conclusion(),
            "regions": list(self.regions),
            "total": split.total,
            "start": split.start,
            "length": split.length,
            "completeness_error": split.error,
            "credit_error": split.credit_error,
            "rank_correlations": self.rank_correlations,
            **({"method_correlations": self.method_correlations} if self.methods else {}),
            "head_rank_correlations": self.head_rank_correlations,
            "ledger": {
                "bias": stream.bias,
                "own": stream.own,
                "total": stream.total,
                "completeness_error": stream.error,
            },
            **proof(self),
        }

    def columns_of_table(self) -> Columns:
        """Return one quantity after the other; a column that one does not depend on is empty."""
        labels = {"token": self.tokens, "word": self.words, "region": self.regions}
        tables: list[Columns] = []
        for _, quantity, numbers, dimensions in self._quantities():
            if numbers is None:
                continue
            along = {
                name: labels.get(name, range(size))
                for name, size in zip(dimensions, numbers.shape, strict=True)
            }
            table = stacked(along, {"number": numbers})
            tables.append({"quantity": [quantity] * numbers.numel(), **table})
        return {
            name: [
                value
                for table in tables
                for value in table.get(name, [None] * len(table["quantity"]))
            ]
            for name in dict.fromkeys(name for table in tables for name in table)
        }

    def plot(self, **keywords: Any) -> Figure:
        """Draw what moved the word: see `attnviz.plot.shift`."""
        return attnviz.plot.shift(self, **keywords)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Print the contribution of each word, the effect of changing it, and the errors."""
        from rich.text import Text

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
        for note in self.notes:
            yield Text(note, "dim")

    def _tables_of_words(self, width: int) -> Iterator[Table]:
        """Yield tables with a row for each word; several if the terminal is narrow."""
        split = self.decomposition
        numbers = {
            "all paths": self.credit,
            "value": self.by_word(split.value.sum((0, 1))),
            "routing": self.by_word(split.routing.sum((0, 1))),
            **self.causal,
        }
        words = {"source": [literal(word, _LONGEST) for word in self.words]}
        columns = [(name, [_number(number) for number in row]) for name, row in numbers.items()]
        count = len(columns) if width >= 12 * len(columns) else 3
        for start in range(0, len(columns), count):
            yield _table(words | dict(columns[start : start + count]), justify="right")

    def conclusion(self) -> str:
        """Return what moved the word, without what is so by construction."""
        return " ".join(self._what_differs() if self.entries else self._what_contributed())

    def _what_contributed(self) -> Iterator[str]:
        """Yield the word that contributed most over all paths, and the effect of changing it."""
        split = self.decomposition
        toward = self.credit * (1 if split.total > 0 else -1)
        most = int(toward.argmax())
        if toward[most] > _NOTHING * split.length:
            effects = {name: lost[most].item() for name, lost in self.causal.items()}
            changed = f"; effect of changing it: {_listed(effects)}" if most in self.sources else ""
            yield (
                f"“{literal(self.names[most])}” contributed most, {_number(self.credit[most])} of "
                f"{_number(split.total)}{changed}."
            )

    def _what_differs(self) -> Iterator[str]:
        """Yield where a difference of two texts enters, and how it reaches the word directly."""
        split, names = self.decomposition, [f"“{literal(name)}”" for name in self.names]
        total, entries = _number(split.total), self.entries
        pairs = [f"{names[n]} (“{literal(self.replaced[n])}” in the reference)" for n in entries]
        if len(entries) == 1:
            yield f"All of the shift starts at {pairs[0]}, the only difference."
        else:
            shares = [f"{_number(self.credit[n])} starts at {names[n]}" for n in entries]
            yield f"The differences are {_joined(pairs)}. Of {total}, {_joined(shares)}."
        others = [n for n in entries if n != self.at]
        rest = [n for n in range(len(names)) if n not in (*others, self.at)]
        parts = [f"{_number(self.direct[n])} directly from {names[n]}" for n in others]
        parts += [f"{_number(self.direct[self.at])} from itself"]
        parts += [f"{_number(self.direct[rest].sum())} from other tokens"]
        own = f", besides {_number(split.start)} that it starts with" if split.start else ""
        yield f"Of {total}, {names[self.at]} takes {_joined(parts)}{own}."
        by_head = split.table.sum(-1)
        toward = by_head * (1 if split.total > 0 else -1)
        best = int(toward.sum(1).argmax())
        layer, head = divmod(int(toward.argmax()), by_head.shape[1])
        yield (
            f"The strongest layer is {best} ({_number(by_head[best].sum())}), the strongest head "
            f"{head} of layer {layer} ({_number(by_head[layer, head])})."
        )

    def _conclusions(self) -> Iterator[str]:
        """Yield the sums, what moved the word, and the rank correlations."""
        split = self.decomposition
        unit = "along the axis" if self.regions else "along itself"
        start = f" plus {_number(split.start)} that differed at the start" if split.start else ""
        yield (
            f"the shift {unit}, in units of the hidden state: {_number(split.total)}; all paths "
            f"sum to it (error {split.credit_error:.0e} of its length), and so do value and "
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
        """Return the first words by the decomposition, by attention, and by the effect."""
        sign = 1 if self.decomposition.total > 0 else -1  # the first contributed most
        effects = self._effects
        name = "consensus" if "consensus" in effects else next(iter(effects))
        contributed, contributions = self.contributions
        others = [name for name in self.methods if name not in ("raw-attention", "rollout")]
        rankings = {
            f"by {contributed}": contributions * sign,
            "by raw attention": self.raw_attention,
            "by rollout": self.rollout,
            **{f"by {other}": self.methods[other] * sign for other in others},
            f"by effect ({name})": effects[name] * sign,
        }
        columns = {}
        for name, numbers in rankings.items():
            scores = {index: numbers[index].item() for index in self.sources}
            least = _NOTHING * max(map(abs, scores.values()))
            ranked = sorted(scores, key=scores.__getitem__, reverse=True)
            shown = [index for index in ranked if abs(scores[index]) > least][:_RANKED]
            columns[name] = [literal(self.names[index], _LONGEST) for index in shown]
        return _table(columns)


def _table(
    columns: Mapping[str, Sequence[str]], *, justify: Literal["left", "right"] = "left"
) -> Table:
    """Return a table without lines. `justify` is that of all columns but the first."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for number, name in enumerate(columns):
        table.add_column(name, justify=justify if number else "left", no_wrap=True)
    for row in itertools.zip_longest(*columns.values(), fillvalue=""):
        table.add_row(*map(Text, row))
    return table


def _listed(correlations: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {_number(rho)}" for name, rho in correlations.items())


def _joined(parts: Sequence[str]) -> str:
    """Return a list in words: a, b and c."""
    return " and ".join(part for part in (", ".join(parts[:-1]), parts[-1]) if part)


def _number(value: Tensor | float) -> str:
    """Return a number in two decimals; "" for NaN."""
    text = f"{float(value):.2f}".replace("-0.00", "0.00").replace("-", "\N{MINUS SIGN}")
    return "" if text == "nan" else text


def sum_pieces(parts: Tensor, positions: Sequence[Sequence[int]]) -> Tensor:
    """Sum parts (…, T) over the pieces of each word, (…, W)."""
    return torch.stack([parts[..., list(pieces)].sum(-1) for pieces in positions], dim=-1)


def numbered(words: Sequence[str]) -> tuple[str, ...]:
    """Return words with a number where they occur several times.

    >>> numbered(["The", "cat", "the"])
    ('The#1', 'cat', 'the#2')
    """
    folded = [word.casefold() for word in words]
    return tuple(
        word if folded.count(key) == 1 else f"{word}#{folded[: index + 1].count(key)}"
        for index, (word, key) in enumerate(zip(words, folded, strict=True))
    )


def consensus(effects: Mapping[str, Tensor], rows: list[int]) -> Tensor:
    """Return the mean of effects (W,), each in units of its deviation over some words."""
    scaled = []
    for effect in effects.values():
        deviation = effect[rows].std(correction=0) if rows else effect.new_zeros(())
        scaled.append(effect / deviation if deviation > 0 else effect)
    return torch.stack(scaled).mean(0)


def spearman(a: Tensor, b: Tensor) -> float | None:
    """Return Spearman's rank correlation; None for fewer than three numbers, or if all tie.

    >>> spearman(torch.tensor([1.0, 2.0, 3.0, 3.0]), torch.tensor([0.0, 5.0, 6.0, 6.0]))
    1.0
    """
    if len(a) < _FEWEST or any(not numbers.max() > numbers.min() for numbers in (a, b)):
        return None
    from scipy.stats import spearmanr

    return float(spearmanr(a.numpy(), b.numpy()).statistic)
