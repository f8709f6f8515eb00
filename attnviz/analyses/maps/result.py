"""The maps that are drawn from captured attention, and rankings of heads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text
from torch import Tensor

import attnviz
from attnviz.errors import from_end, true_or_false, whole_number
from attnviz.figures import claims
from attnviz.heads import Maps, OneMap
from attnviz.results import AgreementReport, AxisGeometry, Provenance, Special, base
from attnviz.results.text import dim, literal, selection, with_minus
from attnviz.runtime import Printed

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LENGTHS = 16, 12, 9, 7, 6, 5  # of the names of columns in a terminal, until all fit
_MOST_KEYS, _MOST_WORDS = 3, 40  # in a terminal that is too narrow for the map
MOST_MAPS = 200  # of heads, in one figure
_STRONG, _CLAIMED = "bold #ffffff on #3567ad", "bold #ffffff on #c4122f"  # in any terminal


class _LabeledMaps(Maps, base.Result):
    """One map, or the maps of all heads, as a result."""

    agreement: AgreementReport

    def _label_rules(self, *others: set[int]) -> base.Rules:
        """Yield the rules of labels. others : the sizes of the dimensions before theirs."""
        m, n, masked = len(self.rows), len(self.columns), self.masked
        is_full = base.fits(self.weights, *others, {m}, {n}) and self.weights.numel() > 0
        yield "a weight for each pair of labels", is_full and self.weights.is_floating_point()
        special = len(self.special_rows) in (0, m) and len(self.special_columns) in (0, n)
        yield "special tokens among its labels", special
        is_mask = masked is None or (masked.dtype == torch.bool and masked.shape == (m, n))
        yield "a mask for each pair of labels", is_mask
        rows, columns = self.sides
        yield "a place for each label", rows.fits(m) and columns.fits(n)

    def _number_rules(self) -> base.Rules:
        is_known = self.agreement.verdict != "verified" or bool(self.weights.isfinite().any())
        yield "numbers where it says that they were verified", is_known

    def _dimensions(self) -> dict[str, Sequence[Any]]:
        return {"query": self.rows, "key": self.columns}

    def columns_of_table(self) -> base.Columns:
        """Return one row for each weight."""
        return base.stacked(self._dimensions(), {"weight": self.weights})

    def __len__(self) -> int:
        return len(self.weights)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.weights)

    def _places(self) -> dict[str, Any]:
        """Return where rows and columns lie in an image, audio or a long text, if they do."""
        places: dict[str, Any] = {}
        for name, side in zip(("rows", "columns"), self.sides, strict=True):
            if side.landmarks:
                places[f"tokens_of_{name}"] = {"first": side.start, "in_each": side.cell}
            for kind in ("patches", "seconds"):
                if (known := getattr(side, kind)) is not None:
                    places[f"{kind}_of_{name}"] = list(known)
        return places


@base.documented
class AttentionMap(_LabeledMaps, OneMap):
    """One map as it is drawn: weights, labels, and notes on how they were computed.

    Examples
    --------
    >>> import attnviz
    >>> result = attnviz.attend("the train left")
    >>> drawn = attnviz.attention_map(result, layer=0, head=1, special="remove")
    >>> drawn.to_frame().round(2)
    key     the  train  left
    query
    the    0.17   0.35  0.48
    train  0.17   0.28  0.55
    left   0.23   0.04  0.74
    >>> axes = drawn.plot()
    """

    weights: Tensor = base.doc("(m, n), CPU.")
    rows: tuple[str, ...] = base.doc("The labels of queries.", label=True)
    columns: tuple[str, ...] = base.doc("The labels of keys.", label=True)
    stack: str = base.doc("The stack of layers.")
    layer: int | tuple[int, ...] = base.doc("The layer, or the layers that were averaged.")
    heads: tuple[int, ...] = base.doc("The head, or the heads that were averaged.")
    notes: tuple[str, ...] = base.doc(
        "On merged, removed or renormalized weights, and on the choice of the head."
    )
    agreement: AgreementReport = base.doc("Of the result that the map comes from.")
    provenance: Provenance = base.doc("Likewise.")
    boundary: tuple[int | None, int | None] = base.doc(
        "(row, column) with which the second text of a pair starts, None without one.",
        default=(None, None),
    )
    special_rows: tuple[bool, ...] = base.doc("Which queries are special tokens.", default=())
    special_columns: tuple[bool, ...] = base.doc("Which keys are special tokens.", default=())
    sides: tuple[AxisGeometry, AxisGeometry] = base.doc(
        "Where the rows and the columns lie in an image, in audio or in a long text.",
        default=(AxisGeometry(), AxisGeometry()),
    )
    image: Tensor | None = base.doc("As in `AttentionResult`.", default=None)
    masked: Tensor | None = base.doc(
        "(m, n), which keys a query may not attend to; None if it may attend to all.", default=None
    )
    starts_with_sink: bool = base.doc(
        "Whether the first key is the first word of a causal model without special tokens: many "
        "heads rest on it, whatever it says.",
        default=False,
    )
    special: Special = base.doc("How special tokens were treated.", default="keep")

    def _rules(self) -> base.Rules:
        yield from self._label_rules()
        yield "an image in colors", base.is_image(self.image)

    def to_arrays(self) -> dict[str, Tensor]:
        """Return the weights (m, n), and the image where there is one."""
        return {"weights": self.weights} | ({} if self.image is None else {"image": self.image})

    def about(self) -> dict[str, Any]:
        """Return which head it is, where rows and columns lie, and the proof."""
        which = base.described(self, "stack layer heads")
        return {**which, **self._places(), **base.proof(self)}

    @property
    def where(self) -> str:
        """Which layers and heads the map is of, in words."""
        return selection(self.stack, self.layers, self.heads)

    def __repr__(self) -> str:
        m, n = self.weights.shape
        return (
            f"AttentionMap({self.stack}, {self.where}, {m} × {n}, "
            f"{self.provenance.model}, {self.agreement.verdict})"
        )

    def to_frame(self, *, wide: bool = True) -> pd.DataFrame:
        """Return the weights as a table, queries × keys; not `wide`, with one row for each weight.

        `seaborn.heatmap` takes the wide table.
        """
        if true_or_false(wide, "wide"):
            return base.wide_table(self.weights, self.rows, self.columns)
        return super().to_frame()

    def plot(self, **keywords: Any) -> Axes:  # type: ignore[override]
        """Draw the map: see `attnviz.plot.heatmap`."""
        return attnviz.plot.heatmap(self, **keywords)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        return self.printed(claims.of_map(self) or claims.Finding(""), options.max_width)

    def printed(self, finding: claims.Finding, width: int) -> Iterator[Text | Table]:
        """Yield what a terminal shows: a finding, and the map under its words, or word by word."""
        cell = finding.cell or (-1, -1)
        yield Text(finding.sentence or self.where, "bold")
        gray = self.uninformative.all(1), self.uninformative.all(0)
        looks = [["dim" if one else "" for one in of_side] for of_side in gray]
        for of_side, claimed in zip(looks, cell, strict=True):
            of_side[claimed] = "bold red" if claimed >= 0 else of_side[claimed]
        sides = zip((self.rows, self.columns), looks, strict=True)
        rows, columns = ([*map(Text, map(literal, names), of)] for names, of in sides)
        room = width - max(name.cell_len for name in rows) - len(columns) - 1
        for most in _LENGTHS:
            widths = [max(3 + (n == cell[1]), min(k.cell_len, most)) for n, k in enumerate(columns)]
            if sum(widths) <= room:
                yield from self._printed_map(rows, columns, widths, cell)
                break
        else:
            is_placed = any(one.patches or one.seconds or one.cell > 1 for one in self.sides)
            if is_placed and len(rows) > _MOST_WORDS:
                what = "parts of the text" if self.sides[0].cell > 1 else "positions"
                yield Text(f"{len(rows)} {what} are too many for this terminal; see the file")
            else:
                yield from self._printed_words(rows, columns, cell)
        unit = "percent of the largest weight" if self.signed else "percent of a row"
        yield Text(f"{self.where}, {self.provenance.model}; {unit}, · less than evenly", "dim")
        yield from dim(self.notes)

    @property
    def _percent(self) -> Tensor:
        weights = self.weights.float().nan_to_num()
        return 100 * (weights / weights.abs().max().clamp(min=1e-12) if self.signed else weights)

    def _printed_map(
        self, rows: list[Text], columns: list[Text], widths: list[int], cell: tuple[int, int]
    ) -> Iterator[Text | Table]:
        """Yield an arc from the claimed query to its key, and numbers under the words."""
        percent, gray = self._percent, self.uninformative
        if cell[0] != cell[1] and self.rows == self.columns:
            start = max(name.cell_len for name in rows) + 1
            left, right = sorted(start + sum(widths[:n]) + n + (widths[n] - 1) // 2 for n in cell)
            share = f" {percent[cell]:.0f}% "
            bar = (share if len(share) < right - left else "").center(right - left - 1, "─")
            ends = "▼│" if cell[1] < cell[0] else "│▼"
            for line in (f"┌{bar}┐", (" " * len(bar)).join(ends)):
                yield Text(" " * left + line, "bold red")
        largest = percent.abs().masked_fill(gray, 0).max()

        def shown(row: int, column: int) -> Text:
            value, said = abs(percent[row, column]), with_minus(f"{percent[row, column]:.0f}")
            look = "dim" if gray[row, column] else _STRONG if value > largest / 2 else ""
            if value < 100 / len(columns):
                masked = self.masked is not None and self.masked[row, column]
                said, look = "" if masked else "·", "dim"
            if (row, column) == cell:
                said, look = f"[{said}]", _CLAIMED
            return Text(f"{said:^{widths[column]}}", look)

        table = Table(box=None, padding=(0, 1, 0, 0), header_style="")
        table.add_column(justify="right")
        for name, wide in zip(columns, widths, strict=True):
            name.truncate(wide, overflow="ellipsis")
            name.align("center", wide)
            table.add_column(name, width=wide, no_wrap=True)
        for row, name in enumerate(rows):
            table.add_row(name, *(shown(row, column) for column in range(len(columns))))
        yield table

    def _printed_words(
        self, rows: list[Text], columns: list[Text], cell: tuple[int, int]
    ) -> Iterator[Table]:
        """Yield one line for each word: the words that it attends to, with bars."""
        percent, least = self._percent, max(10, 200 / len(columns))
        table = Table(box=None, padding=(0, 1, 0, 0), show_header=False)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(no_wrap=True)
        strongest = percent.abs().masked_fill(self.uninformative, 0).amax(-1)
        shown = sorted(strongest.topk(min(_MOST_WORDS, len(rows))).indices.tolist())
        for row in shown:
            name, of_row = rows[row], percent[row]
            keys = of_row.abs().topk(min(_MOST_KEYS, len(of_row))).indices.tolist()
            links = Text("→ ")
            for key in (key for key in keys if of_row[key].abs() >= least):
                look = "bold red" if (row, key) == cell else "dim" if columns[key].style else ""
                said = with_minus(f"{columns[key].plain} {of_row[key]:.0f}% ")
                links.append(said, look).append("█" * round(float(of_row[key].abs()) / 12), look)
                links.append("  ")
            nothing = Text(f"  nothing above {least:.0f}%", "dim")
            mark = "▸" if row == cell[0] else ""
            table.add_row(Text(mark).append(name), links if len(links) > 2 else nothing)
        if len(shown) < len(rows):
            table.add_row("", Text(f"{len(rows) - len(shown)} more words are in the file", "dim"))
        yield table


@base.documented
class HeadMaps(_LabeledMaps):
    """The maps of all heads, of all layers or of one.

    Examples
    --------
    >>> import attnviz
    >>> maps = attnviz.head_maps(attnviz.attend("the train left the station"))
    >>> maps.weights.shape  # layers × heads × queries × keys
    torch.Size([6, 12, 7, 7])
    >>> maps.columns
    ('[CLS]', 'the', 'train', 'left', 'the', 'station', '[SEP]')
    >>> figure = maps.plot()
    """

    weights: Tensor = base.doc("(layers, heads, rows, columns), CPU.")
    rows: tuple[str, ...] = base.doc("The labels of queries.", label=True)
    columns: tuple[str, ...] = base.doc("The labels of keys.", label=True)
    stack: str = base.doc("The stack of layers.")
    layers: tuple[int, ...] = base.doc("Its layers.")
    notes: tuple[str, ...] = base.doc("As in `AttentionMap`.")
    agreement: AgreementReport = base.doc("Of the result that the maps come from.")
    provenance: Provenance = base.doc("Likewise.")
    sides: tuple[AxisGeometry, AxisGeometry] = base.doc(
        "As in `AttentionMap`.", default=(AxisGeometry(), AxisGeometry())
    )
    heads: tuple[int, ...] = base.doc("The numbers of the heads if it has only some.", default=())
    special_rows: tuple[bool, ...] = base.doc("As in `AttentionMap`.", default=())
    special_columns: tuple[bool, ...] = base.doc("Likewise.", default=())
    masked: Tensor | None = base.doc("(rows, columns), what no layer may read.", default=None)
    starts_with_sink: bool = base.doc("As in `AttentionMap`.", default=False)

    def _rules(self) -> base.Rules:
        heads = self.weights.shape[1] if self.weights.dim() == 4 else 0
        yield from self._label_rules({len(self.layers)}, {heads})
        yield "a number for each head", len(self.heads) in (0, heads)

    def to_arrays(self) -> dict[str, Tensor]:
        """Return the weights (layers, heads, rows, columns)."""
        return {"weights": self.weights}

    def about(self) -> dict[str, Any]:
        """Return which layers they are, where rows and columns lie, and the proof."""
        return {**base.described(self, "stack layers"), **self._places(), **base.proof(self)}

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the heads."""
        return self.heads or tuple(range(self.weights.shape[1]))

    def _dimensions(self) -> dict[str, Sequence[Any]]:
        return {"layer": self.layers, "head": self.numbers, **super()._dimensions()}

    def __repr__(self) -> str:
        layers, heads, m, n = self.weights.shape
        return (
            f"HeadMaps({self.stack}, {layers} × {heads} heads, {m} × {n} each, "
            f"{self.provenance.model}, {self.agreement.verdict})"
        )

    def plot(self, **keywords: Any) -> Figure:
        """Draw all maps: see `attnviz.plot.heads`."""
        return attnviz.plot.heads(self, **keywords)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        layers, heads, m, n = self.weights.shape
        size = f"{layers} × {heads} heads, {m} × {n} weights each"
        hint = "; name a layer to see the maps of all its heads" * (layers * heads > MOST_MAPS)
        yield Text(f"{self.provenance.model}: {size}{hint}", "bold")


@dataclass(frozen=True)
class HeadScore:
    """One head and its score."""

    layer: int
    head: int
    score: float
    # Whether it rests, by the rule of titles and surveys; False in a streamed text: not known.
    resting: bool = field(default=False, kw_only=True)


@dataclass(frozen=True, repr=False)
class HeadRanking(Printed):
    """Heads, best first, and what the score is, in words for a caption.

    Examples
    --------
    >>> import attnviz
    >>> ranking = attnviz.rank_heads(attnviz.attend("the train left the station"))
    >>> len(ranking), ranking.best.layer, ranking.best.head
    (72, 0, 4)
    """

    scores: tuple[HeadScore, ...]
    meaning: str

    def __repr__(self) -> str:
        best = f", best {_names(self.scores[:1], scores=True)}" if self.scores else ""
        return f"HeadRanking({len(self)} heads by {self.meaning}{best})"

    def __len__(self) -> int:
        return len(self.scores)

    def __iter__(self) -> Iterator[HeadScore]:
        return iter(self.scores)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """Return the scores by layer and head, NaN where a head is absent, for numpy."""
        table = HeadRanking.to_frame(self).pivot(index="layer", columns="head", values="score")
        heads = range(1 + max(table.columns, default=-1))
        return np.array(table.reindex(columns=heads).to_numpy(), dtype, copy=copy)

    def to_frame(self) -> pd.DataFrame:
        """Return the heads as a table, best first: layer, head, score."""
        import pandas as pd

        return pd.DataFrame([*self.scores], columns=["layer", "head", "score"])

    @property
    def best(self) -> HeadScore:
        """The head that ranks first."""
        return self.scores[0]

    def of_layer(self, layer: int) -> Self:
        """Return the ranking of the heads of one layer; -1 is the last."""
        layer = from_end(whole_number(layer, "a layer"), sorted({s.layer for s in self.scores}))
        return replace(self, scores=tuple(s for s in self.scores if s.layer == layer))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(f"{self.meaning}: {_names(self.scores[:6], scores=True)}")


@dataclass(frozen=True)
class HeadMatch(HeadScore):
    """How one head weighs a key word for a query word: its score is the weight."""

    rank: int  # 1 where no word weighs more for the query, itself and special tokens aside
    above: frozenset[str]  # the function words that weigh less


@dataclass(frozen=True, repr=False)
class HeadMatches(HeadRanking):
    """Every head's weight from one word to another, the largest first.

    Examples
    --------
    >>> import attnviz
    >>> result = attnviz.attend("the train left the station")
    >>> attnviz.find_heads(result, query="train", key="station").best.rank
    1
    """

    scores: tuple[HeadMatch, ...]
    query: str
    key: str
    others: tuple[str, ...]  # the function words to compare with

    def __repr__(self) -> str:
        best = _names(self.scores[:1], scores=True)
        return f"HeadMatches({self.query!r} to {self.key!r}, {len(self)} heads, best {best})"

    def to_frame(self) -> pd.DataFrame:
        """Return the heads as a table, the largest weight first.

        The columns are layer, head, weight, rank among the words, and whether the weight is above
        that of every function word.
        """
        frame = super().to_frame().rename(columns={"score": "weight"})
        best = set(self.above_function_words)
        frame["rank"] = [head.rank for head in self.scores]
        frame["above_function_words"] = [head in best for head in self.scores]
        return frame

    @property
    def first(self) -> tuple[HeadMatch, ...]:
        """The heads in which no word but the query itself weighs more."""
        return tuple(head for head in self.scores if head.rank == 1)

    @property
    def above_function_words(self) -> tuple[HeadMatch, ...]:
        """The heads in which every function word of the text weighs less."""
        return tuple(head for head in self.scores if head.above.issuperset(self.others))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = Table("head", "weight", "rank among the words", box=None, header_style="dim")
        for head in self.scores[:10]:
            table.add_row(f"{head.layer}.{head.head}", f"{head.score:.3f}", str(head.rank))
        yield Text(f"{self.meaning}, largest first", "bold")
        yield table
        yield Text(self._count(f"above every word but “{self.query}” itself", self.first))
        if self.others:
            words = " and ".join(f"“{word}”" for word in self.others)
            yield Text(self._count(f"above {words}", self.above_function_words))

    def _count(self, what: str, heads: Sequence[HeadScore]) -> str:
        names = f": {_names(heads)}" if heads else ""
        return f"{what} in {len(heads)} of {len(self.scores)} heads{names}"


def _names(heads: Sequence[HeadScore], *, scores: bool = False) -> str:
    return ", ".join(
        f"{head.layer}.{head.head}" + (f" ({head.score:.2f})" if scores else "") for head in heads
    )
