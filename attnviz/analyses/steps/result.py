"""The stages of one head, from the input to the output, with their agreement."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

import numpy as np
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text
from torch import Tensor

from attnviz.errors import expect_names
from attnviz.figures.claims import were_read
from attnviz.formula.attention import HIDDEN
from attnviz.results import AxisGeometry, Provenance
from attnviz.results.agreement_report import LINEAR, AgreementReport
from attnviz.results.base import Result, Savable, described, doc, documented, proof
from attnviz.results.text import dim, literal, plain_table, selection

_NUMBERS = 3  # of the row that is followed


@documented
class Stage(Savable):
    """One stage of one head."""

    name: str = doc('"X", "Q", …, "weights", "output".')
    formula: str = doc('As in "X W^Q + b^Q".')
    values: Tensor = doc("(rows, columns), CPU, float64.")
    factors: tuple[tuple[int, int], ...] = doc("The shapes of two multiplied matrices.", default=())
    rows: Literal["query", "key"] = doc("What a row is.", default="query")
    over_keys: bool = doc("Whether columns are keys, not features.", default=False)
    part: tuple[int, int] | None = doc(
        "(first, end) of the columns of this head, where all heads are side by side.", default=None
    )
    difference: float | None = doc(
        "The largest difference from the model's numbers; None if not compared.", default=None
    )
    passed: bool | None = doc("Whether they agree; None if not compared.", default=None)
    why_not: str = doc("Why it was not compared.", default="")

    def __repr__(self) -> str:
        return f"Stage({self.name!r}, {self.formula!r}, {self.size})"

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.values)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        """Return the values, for numpy."""
        return np.array(self.values.numpy(), dtype, copy=copy)

    @property
    def size(self) -> str:
        """Rows and columns in words: "7 × 32"."""
        return " × ".join(map(str, self.values.shape))

    @property
    def array_name(self) -> str:
        """The name of its array in files: "head_output"."""
        return self.name.replace(" ", "_")

    def about(self) -> dict[str, Any]:
        """Return the formula, the shape and the agreement of the stage, without its numbers."""
        return {
            "name": self.array_name,
            **described(self, "formula difference passed"),
            "shape": list(self.values.shape),
        } | ({"why_not_compared": self.why_not} if self.why_not else {})


@documented
class StepsResult(Result):
    """The stages of one head, with one word to follow.

    V is recomputed from X, and A from the V of the model. In a model of low precision,
    `contributions` therefore add up to A only within that precision.

    Examples
    --------
    >>> import attnviz
    >>> result = attnviz.attend("the train left the station")
    >>> stages = attnviz.steps(result, layer=5, head=3, word="train")
    >>> stages["scaled scores"].values.shape  # queries × keys
    torch.Size([7, 7])
    >>> figure = stages.plot()
    """

    stages: tuple[Stage, ...] = doc('In order: `result["scores"]` returns one.')
    queries: tuple[str, ...] = doc("The labels of the m queries: tokens, not words.", label=True)
    keys: tuple[str, ...] = doc("The labels of the n keys.", label=True)
    row: int = doc("The query that is followed.")
    word: str = doc("Its label.")
    stack: str = doc('The stack of layers, such as "encoder".')
    layer: int = doc("The layer, counted from 0.")
    head: int = doc("The head, counted from 0.")
    heads: int = doc("How many heads the layer has.")
    notes: tuple[str, ...] = doc("How the head was chosen, and the pieces of the word.")
    agreement: AgreementReport = doc("Whether the attention agrees with the model's.")
    provenance: Provenance = doc("The model and the versions.")
    sides: tuple[AxisGeometry, ...] = doc(
        "Which queries and keys the model read as unknown tokens; empty without any.",
        default=(),
        later="0.2",
    )

    main_array: ClassVar[str] = "weights"

    def side(self, name: Literal["query", "key"]) -> AxisGeometry:
        """Return which queries, or keys, the model read as unknown tokens."""
        return self.sides[name == "key"] if self.sides else AxisGeometry()

    def __repr__(self) -> str:
        names = ", ".join(stage.name for stage in self.stages)
        return (
            f"StepsResult({self.stack} layer {self.layer}, head {self.head}, {self.word!r}: "
            f"{names}; {self.agreement.verdict})"
        )

    def __getitem__(self, name: str) -> Stage:
        """Return a stage by its name; InputError if this head has no such stage."""
        names = [stage.name for stage in self.stages]
        expect_names([name], names, "a stage of this head")
        return self.stages[names.index(name)]

    def __iter__(self) -> Iterator[Stage]:
        return iter(self.stages)

    def __len__(self) -> int:
        return len(self.stages)

    def __contains__(self, name: str) -> bool:
        return any(stage.name == name for stage in self.stages)

    @property
    def signed(self) -> bool:
        """Whether weights may be negative: those of linear attention."""
        return self.stack == LINEAR

    @property
    def contributions(self) -> Tensor:
        """What each key adds to the word's attention vector: α_j v_j, (n, d_v)."""
        return self["weights"].values[self.row].unsqueeze(-1) * self["V"].values

    @property
    def shares(self) -> Tensor:
        """How much each key adds along the attention vector, (n,): α_j v_j · a / a · a.

        They sum to 1; one is negative where a key adds what the others take away.
        """
        vector = self.contributions.sum(0)
        return self.contributions @ vector / (vector @ vector).clamp(min=1e-300)

    def to_arrays(self) -> dict[str, Tensor]:
        """Return the values of each stage, (rows, columns)."""
        return {stage.array_name: stage.values for stage in self.stages}

    def about(self) -> dict[str, Any]:
        """Return which head and word it is, what is known of each stage, and the proof."""
        return {
            **described(self, "stack layer head word row"),
            "stages": [stage.about() for stage in self.stages],
            "shares": self.shares.tolist(),
            **proof(self),
        }

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        where = selection(self.stack, (self.layer,), (self.head,))
        word = literal(self.word)
        yield Text(f"{where} of {self.provenance.model}, following “{word}”", "bold")
        row = f"row of “{word}”" if len(word) < 12 else "its row"
        table = plain_table(())
        for title in ("stage", "formula", "shape", row, "agrees to"):
            table.add_column(title, no_wrap=title != "formula", overflow="fold")
        for stage in self.stages:
            given = stage.why_not == "given"
            numbers = Text("a row for each key", "dim")
            if stage.rows == "query":
                values = stage.values[self.row].tolist()
                first = " ".join(f"{_number(value):>5}" for value in values[:_NUMBERS])
                numbers = Text(first + (" …" if len(values) > _NUMBERS else ""))
            if stage.difference is None:
                verdict = Text("" if given else "not compared", "dim")
            elif stage.passed:
                verdict = Text(f"{stage.difference:.0e}", "green")
            else:
                verdict = Text(f"DIFFERS by {stage.difference:.0e}", "bold red")
            formula = "given" if given else stage.formula
            table.add_row(stage.name, formula, stage.size, numbers, verdict)
        yield table
        yield self._table_of_keys(bars=options.max_width >= 60)
        yield from dim(self.notes)

    def _table_of_keys(self, *, bars: bool) -> Table:
        """Return the score, the weight and the share of the attention vector for each key."""
        names = [stage.name for stage in self.stages if stage.over_keys]
        titles = [name.removesuffix(" scores") for name in names]
        table = plain_table(("key",), titles, no_wrap=1 + len(names))
        if bars:
            table.add_column("", no_wrap=True)
        table.add_column("of vector", justify="right", no_wrap=True)
        rows = [self[name].values[self.row].tolist() for name in names]
        largest, shares = max(map(abs, rows[-1])), self.shares.tolist()
        for key, label in enumerate(self.keys):
            bar = "█" * round(14 * abs(rows[-1][key]) / max(largest, 1e-12))
            numbers = [_number(row[key]) for row in rows]
            share = f"{round(100 * shares[key])}%"
            cells = [Text(bar, "blue" if rows[-1][key] >= 0 else "red")] if bars else []
            look = "" if were_read(self.side("key"), key) else "dim italic"
            table.add_row(Text(literal(label), look), *numbers, *cells, share)
        return table


def _number(value: float) -> str:
    if value < HIDDEN:
        return "-∞"
    value = round(value, 2) + 0.0  # no -0.00
    return f"{value:.2f}" if abs(value) < 10_000 else f"{value:.0e}"
