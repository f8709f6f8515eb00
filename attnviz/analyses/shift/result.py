"""What moved a word's vector: its exact parts, and what is lost where other words are changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import attnviz
from attnviz.analyses.shift.decomposition import ResidualStream, ShiftDecomposition
from attnviz.results.attention_result import Provenance
from attnviz.results.base import Columns, Result, proof, stacked
from attnviz.results.report import AgreementReport
from attnviz.results.words import literal

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table

_FEWEST = 3  # sources that can be ranked
_LONGEST = 14  # letters of a word in a table
_RANKED = 5  # words of each ranking
_NOTHING = 1e-6  # of the largest: not worth a rank


@dataclass(frozen=True, eq=False)
class ShiftResult(Result):
    """What moved a word's vector in a text, with the proof of the sum and a causal check.

    Attributes
    ----------
    word : the word as it is written, the#2 where there are several. at : which of the words it is.
    words : of the text, special tokens among them, W. positions : of the pieces of each; where a
        word has several, what it brings is their sum, and where `word` itself has, everything is
        the mean over them. special : which words are special tokens.
    tokens : of the text, T.
    reference : what the text is compared with, in words.
    decomposition : the difference to the reference, split.
    residual_stream : what was added from the static to the contextual vector.
    causal : by intervention, what the word loses along the direction where each other word is
        masked, replaced, knocked out or deleted, (W,); NaN where nothing was done.
    patched : (L, H), what the word loses directly where one head gives what it gives in the
        reference; None where that was not asked for.
    raw_attention : (W,), the weights of the word in the last layer, the mean of all heads.
    rollout : (W,), attention multiplied through the layers.
    regions : the names of the regions whose axis the direction is; empty where it is the shift's
        own.
    path : (L + 1,), where the word stands on that axis, from the second region (0) to the first
        (1), as it enters each layer and in the end. distances : (L + 1, 2), how far it is from the
        center of each, where their own distance in that layer is 1. None without regions.
    notes : further lines of the caption.
    agreement, provenance : of the attention of the text.
    methods : further attributions by the name of their method, (W,) each.
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
    patched: Tensor | None
    raw_attention: Tensor
    rollout: Tensor
    regions: tuple[str, ...]
    path: Tensor | None
    distances: Tensor | None
    notes: tuple[str, ...]
    agreement: AgreementReport
    provenance: Provenance
    methods: Mapping[str, Tensor] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Say what it holds, without the tensors."""
        return (
            f"ShiftResult({self.word!r} in {self.provenance.text!r}: "
            f"{self.decomposition.total:.2f}, completeness error {self.decomposition.error:.0e})"
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The words as they can be asked for: the#1 and the#2 where there are several."""
        return numbered(self.words)

    @property
    def sources(self) -> list[int]:
        """Where the words are that can move the word: no special tokens, not the word itself.

        What rollout gives nothing to is read on no path, as later words in a causal model.
        """
        return [
            at
            for at, special in enumerate(self.special)
            if not special and at != self.at and self.rollout[at] > 0
        ]

    def by_word(self, parts: Tensor) -> Tensor:
        """Sum parts (…, T) over the pieces of each word, (…, W)."""
        return torch.stack([parts[..., list(at)].sum(-1) for at in self.positions], dim=-1)

    @property
    def credit(self) -> Tensor:
        """What each word brought over all paths, (W,)."""
        return self.by_word(self.decomposition.credit)

    @property
    def consensus(self) -> Tensor | None:
        """The mean of all interventions, each in units of its own deviation, (W,).

        None where fewer than two were made.
        """
        return consensus(self.causal, self.sources) if len(self.causal) > 1 else None

    @property
    def rank_correlations(self) -> dict[str, float]:
        """Spearman's ρ of the credits with each intervention, and with their consensus.

        Empty where fewer than three sources differ in what they brought: nothing is ranked then.
        """
        at = self.sources
        credit = self.credit[at]
        if not at or len(set((credit / credit.abs().max() * 1e6).round().tolist())) < _FEWEST:
            return {}
        return self._rank_correlations(self.credit)

    @property
    def method_correlations(self) -> dict[str, dict[str, float]]:
        """The same for each of `methods`: Spearman's ρ with each intervention, and the consensus.

        Methods that cannot be ranked are left out.
        """
        by_method = {name: self._rank_correlations(each) for name, each in self.methods.items()}
        return {name: correlations for name, correlations in by_method.items() if correlations}

    def _rank_correlations(self, attribution: Tensor) -> dict[str, float]:
        """Return Spearman's ρ of an attribution (W,) with each intervention, where there is one."""
        effects = dict(self.causal)
        if (common := self.consensus) is not None:
            effects["consensus"] = common
        at = self.sources
        rhos = {name: spearman(attribution[at], each[at]) for name, each in effects.items()}
        return {name: rho for name, rho in rhos.items() if rho is not None}

    @property
    def heads_correlation(self) -> tuple[float, float] | None:
        """Pearson's r and Spearman's ρ of the heads' parts with what patching them does."""
        if self.patched is None:
            return None
        by_head = self.decomposition.table.sum(-1).flatten()
        patched = self.patched.flatten().to(by_head)
        rho = spearman(by_head, patched)
        r = torch.corrcoef(torch.stack([by_head, patched]))[0, 1].item()
        return None if rho is None else (r, rho)

    def to_arrays(self) -> dict[str, Tensor]:
        """Return the parts of the shift, those of the residual stream, and the causal effects."""
        split, stream = self.decomposition, self.residual_stream
        arrays = {
            "value": split.value,
            "routing": split.routing,
            "credit": split.credit,
            "direction": split.direction,
            "ledger_attention": stream.attention,
            "ledger_mlp": stream.mlp,
            **{f"causal_{name.replace('-', '_')}": lost for name, lost in self.causal.items()},
            "patched": self.patched,
            "raw_attention": self.raw_attention,
            "rollout": self.rollout,
            **{f"method_{name.replace('-', '_')}": scores for name, scores in self.methods.items()},
            "path": self.path,
            "distances": self.distances,
        }
        return {name: array for name, array in arrays.items() if array is not None}

    def labels(self) -> dict[str, list[str]]:
        """Return the words and the tokens of the text."""
        return {"words": list(self.words), "tokens": list(self.tokens)}

    def about(self) -> dict[str, Any]:
        """Return the totals, the errors, the correlations, and the proof."""
        split, stream, heads = self.decomposition, self.residual_stream, self.heads_correlation
        return {
            "word": self.word,
            "at": self.at,
            "positions": [list(positions) for positions in self.positions],
            "special": list(self.special),
            "reference": self.reference,
            "regions": list(self.regions),
            "total": split.total,
            "start": split.start,
            "length": split.length,
            "completeness_error": split.error,
            "credit_error": split.credit_error,
            "rank_correlations": self.rank_correlations,
            **({"method_correlations": self.method_correlations} if self.methods else {}),
            "heads_correlation": None
            if heads is None
            else dict(zip(("r", "rho"), heads, strict=True)),
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
        split, stream = self.decomposition, self.residual_stream
        labels: dict[str, Sequence[str]] = {
            "token": self.tokens,
            "word": self.words,
            "region": self.regions,
        }
        tables: list[Columns] = []

        def add(quantity: str, numbers: Tensor | None, *dimensions: str) -> None:
            if numbers is None:
                return
            named = {
                name: labels.get(name, range(size))
                for name, size in zip(dimensions, numbers.shape, strict=True)
            }
            table = stacked(named, {"number": numbers})
            tables.append({"quantity": [quantity] * numbers.numel(), **table})

        add("value", split.value, "layer", "head", "token")
        add("routing", split.routing, "layer", "head", "token")
        add("credit", split.credit, "token")
        for name, lost in self.causal.items():
            add(f"lost by {name}", lost, "word")
        add("patched", self.patched, "layer", "head")
        add("raw attention", self.raw_attention, "word")
        add("rollout", self.rollout, "word")
        for name, scores in self.methods.items():
            add(f"method {name}", scores, "word")
        add("ledger attention", stream.attention, "layer", "head", "token")
        add("ledger MLP", stream.mlp, "layer")
        add("path", self.path, "layer")
        add("distance", self.distances, "layer", "region")
        names = dict.fromkeys(name for table in tables for name in table)
        return {
            name: [
                value
                for table in tables
                for value in table.get(name, [None] * len(table["quantity"]))
            ]
            for name in names
        }

    def plot(self, **keywords: Any) -> Figure:
        """Draw what each word brought: see `attnviz.plot.shift`."""
        return attnviz.plot.shift(self, **keywords)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Print what each word brought, what changing it takes, and how nearly all adds up."""
        from rich.text import Text

        toward = f" toward {self.regions[0]}, from {self.regions[1]}" if self.regions else ""
        yield Text(f"what moved “{literal(self.word)}”{toward}", "bold")
        yield Text(f"compared with {self.reference}", "dim")
        yield from self._tables_of_words(options.max_width)
        for line in self._conclusions():
            yield Text(line)
        if len(self.sources) > 1:
            yield self._table_of_rankings()
        for line in (self._account(), *self._region_lines()):
            yield Text(line)
        for note in self.notes:
            yield Text(note, "dim")

    def _tables_of_words(self, width: int) -> Iterator[Table]:
        """Yield a row for each word: what it brought over all paths and directly, what is lost.

        In several tables where the terminal is too narrow for one.
        """
        from rich.table import Table
        from rich.text import Text

        split = self.decomposition
        columns = {
            "all paths": self.credit,
            "value": self.by_word(split.value.sum((0, 1))),
            "routing": self.by_word(split.routing.sum((0, 1))),
            **self.causal,
        }
        count = len(columns) if width >= 12 * len(columns) else 3
        for start in range(0, len(columns), count):
            table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
            table.add_column("source", no_wrap=True)
            shown = dict(list(columns.items())[start : start + count])
            for name in shown:
                table.add_column(name, justify="right", no_wrap=True)
            for index, word in enumerate(self.words):
                cells = (_number(numbers[index]) for numbers in shown.values())
                table.add_row(Text(literal(word, _LONGEST)), *cells)
            yield table

    def _conclusions(self) -> Iterator[str]:
        """Yield what the columns are, which word brought most, and how far to trust all this."""
        split = self.decomposition
        unit = "along the axis" if self.regions else "along the shift"
        differed = f" with {_number(split.start)} that differed at the start" if split.start else ""
        yield (
            f"the shift, {unit}: {_number(split.total)}; all paths sum to it (missed by "
            f"{split.credit_error:.0e} of its length), and so do value and routing, what the word "
            f"itself took{differed} ({split.error:.0e})"
        )
        toward = self.credit * (1 if split.total > 0 else -1)
        most = int(toward.argmax())
        if toward[most] > _NOTHING * split.length:
            lost = [
                f"{name} {_number(effect[most])}"
                for name, effect in self.causal.items()
                if not effect[most].isnan()
            ]
            changed = f"; where it is changed is lost: {', '.join(lost)}" if lost else ""
            name = literal(self.names[most])
            yield f"“{name}” brought most of it, {_number(self.credit[most])}{changed}"
        if ranks := self.rank_correlations:
            correlations = ", ".join(f"{name} {_number(rho)}" for name, rho in ranks.items())
            yield (
                f"all paths rank {len(self.sources)} words as changing each does, "
                f"in runs of its own, with ρ: {correlations}"
            )
        for name, ranks in self.method_correlations.items():
            correlations = ", ".join(f"{other} {_number(rho)}" for other, rho in ranks.items())
            yield f"{name} ranks them with ρ: {correlations}"
        if (heads := self.heads_correlation) is not None:
            r, rho = map(_number, heads)
            yield f"the heads agree with patching them: r {r}, ρ {rho}"

    def _table_of_rankings(self) -> Table:
        """Return the first words by the split, by what is often drawn, and by what is lost."""
        from rich.table import Table
        from rich.text import Text

        sign = 1 if self.decomposition.total > 0 else -1  # the first are those that brought most
        name, lost = next(iter(self.causal.items()))
        if (common := self.consensus) is not None:
            name, lost = "consensus", common
        rankings = {
            "by the split": self.credit * sign,
            "by raw attention": self.raw_attention,
            "by rollout": self.rollout,
            **{
                f"by {name}": scores * sign
                for name, scores in self.methods.items()
                if name not in ("raw-attention", "rollout")
            },
            f"by what is lost ({name})": lost * sign,
        }
        table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
        columns = []
        for name, numbers in rankings.items():
            table.add_column(name, no_wrap=True)
            scores = {index: numbers[index].item() for index in self.sources}
            least = _NOTHING * max(map(abs, scores.values()))
            ranked = sorted(
                (index for index in scores if abs(scores[index]) > least),
                key=scores.__getitem__,
                reverse=True,
            )
            words = [Text(literal(self.names[index], _LONGEST)) for index in ranked[:_RANKED]]
            columns.append(words)
        for row in range(max(map(len, columns))):
            table.add_row(*(words[row] if row < len(words) else Text() for words in columns))
        return table

    def _account(self) -> str:
        stream = self.residual_stream
        return (
            f"ledger, from the static vector to the end, {_number(stream.total)}: attention "
            f"{_number(stream.attention.sum())}, MLPs {_number(stream.mlp.sum())}, biases "
            f"{_number(stream.bias)}, own {_number(stream.own)} (what norms made of the static "
            "vector, less it)"
        )

    def _region_lines(self) -> Iterator[str]:
        """Yield where the word stands between the regions, before and after."""
        if self.path is None or self.distances is None:
            return
        first, second = self.regions
        path = "  ".join(_number(place) or "–" for place in self.path.tolist())
        yield (
            f"its place from {second} (0) to {first} (1), entering each layer and in the end: "
            f"{path}"
        )
        before, after = ([_number(distance) for distance in row] for row in self.distances[[0, -1]])
        if all(before):
            line = (
                f"{before[0]} before and {after[0]} after, to {second} {before[1]} and {after[1]}"
            )
        else:  # the static vectors of one word at one position
            line = f"{after[0]} after, to {second} {after[1]}; before, both are one"
        yield f"its distance, if theirs is 1: to {first} {line}"


def _number(value: Tensor | float) -> str:
    """Return a number in two decimals; "" for NaN."""
    text = f"{float(value):.2f}".replace("-0.00", "0.00").replace("-", "\N{MINUS SIGN}")
    return text if float(value) == float(value) else ""


def numbered(words: Sequence[str]) -> tuple[str, ...]:
    """Return words with a number where they occur several times.

    >>> numbered(["The", "cat", "the"])
    ('The#1', 'cat', 'the#2')
    """
    folded = [word.casefold() for word in words]
    return tuple(
        word if folded.count(each) == 1 else f"{word}#{folded[: at + 1].count(each)}"
        for at, (word, each) in enumerate(zip(words, folded, strict=True))
    )


def consensus(effects: Mapping[str, Tensor], at: list[int]) -> Tensor:
    """Return the mean of effects (W,), each in units of its deviation over some words."""
    scaled = []
    for effect in effects.values():
        deviation = effect[at].std(correction=0) if at else torch.zeros(())
        scaled.append(effect / deviation if deviation > 0 else effect)
    return torch.stack(scaled).mean(0)


def spearman(a: Tensor, b: Tensor) -> float | None:
    """Return the correlation of ranks, ties in between; None below three, or where all tie.

    >>> spearman(torch.tensor([1.0, 2.0, 3.0, 3.0]), torch.tensor([0.0, 5.0, 6.0, 6.0]))
    1.0
    """
    if len(a) < _FEWEST or any(not each.max() > each.min() for each in (a, b)):
        return None
    from scipy.stats import spearmanr

    return float(spearmanr(a.numpy(), b.numpy()).statistic)
