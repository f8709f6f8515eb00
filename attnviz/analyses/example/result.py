"""A worked example, replayed stage by stage beside what a book prints."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text
from torch import Tensor

from attnviz.errors import joined
from attnviz.results.base import Result, Savable, described, doc, documented
from attnviz.results.text import counted, literal, plain_table

_LABEL = 12  # characters of a row's or a column's label in a terminal

# The states of a printed cell. One that is inherited follows only from printed stages before it.
DIFFERS, INHERITED, ROUNDED = "does not follow", "inherited", "within rounding"
UNTOLD, EXACT = "cannot be checked", "follows exactly"
# The mark of a state in a terminal, and how its cells are counted.
STATES = {
    DIFFERS: ("≠", "wrong"),
    INHERITED: ("↳", "inherited"),
    ROUNDED: ("≈", ROUNDED),
    UNTOLD: ("?", UNTOLD),
    EXACT: ("", "exact"),
}
PRINTED = "printed"  # the key of a matrix with states

Labels: TypeAlias = tuple[str, ...]


@documented
class GivenMatrix(Savable):
    """A matrix with labels, as an example gives it or as it is shown."""

    key: str = doc('Its name, "X" or "W_q", or where it is from.')
    rows: tuple[str, ...] = doc("The labels of the m rows.")
    columns: tuple[str, ...] = doc("The labels of the n columns.")
    values: Tensor = doc("(m, n), float64.")
    texts: tuple[tuple[str, ...], ...] = doc("The numbers with the digits of the file.")


@dataclass(frozen=True, eq=False)
class ReplayedStage(Savable):
    """One stage: what is printed, and what attnviz computes from two sources.

    The slacks, (m, n), are how far a cell may be from the printed one: half a unit of the last
    digit, and the largest error that the rounding of `sources` can cause. A source that the inputs
    give exactly is not rounded.
    """

    name: str  # as in "K"
    title: str  # as in "Keys K"
    formula: str  # as in "K = X W_k"
    head: None  # all numbers are of one head
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    printed: Tensor | None  # (m, p)
    texts: tuple[tuple[str, ...], ...]  # the printed numbers with their digits
    decimals: int | None  # the digits after the point, in the printed cell that has most
    from_inputs: Tensor  # (m, n), float64; if n < p, printed columns from n on cannot be checked
    from_printed: Tensor | None  # (m, n), from the nearest printed stages, `sources`
    sources: tuple[str, ...]
    slack_from_inputs: Tensor | None
    slack_from_printed: Tensor | None
    slips: bool = False  # a cell does not follow from printed stages, or only from these
    notes: tuple[str, ...] = ()

    @property
    def from_inputs_follows(self) -> Tensor | None:
        """Which printed cells follow from the inputs, (m, n) booleans; None without any."""
        return self._follows(self.from_inputs, self.slack_from_inputs)

    @property
    def from_printed_follows(self) -> Tensor | None:
        """Which printed cells follow from the printed stages before; None without any."""
        return self._follows(self.from_printed, self.slack_from_printed)

    @property
    def from_printed_exactly(self) -> Tensor | None:
        """Which cells follow from printed stages as printed: within half a unit of a digit."""
        return self._follows(self.from_printed, self.slack_from_inputs)

    @property
    def states(self) -> NDArray[np.str_]:
        """The state of each printed cell, (m, p); empty without any."""
        follows = self.from_inputs_follows
        if self.printed is None or follows is None:
            return np.empty((0, 0), np.str_)
        linked, exactly = self.from_printed_follows, self.from_printed_exactly
        if linked is None or exactly is None:
            linked = exactly = follows
        begins = self.slips and bool(linked.all())  # no printed stage before it has an error
        wrong = ~follows & (~linked | begins)
        cases = [wrong.numpy(), ~follows.numpy(), (linked & ~exactly).numpy()]
        states = np.full(self.printed.shape, UNTOLD)
        states[:, : follows.shape[1]] = np.select(cases, [DIFFERS, INHERITED, ROUNDED], EXACT)
        return states

    def _follows(self, ours: Tensor | None, slack: Tensor | None) -> Tensor | None:
        if self.printed is None or ours is None or slack is None:
            return None
        return (ours - self.printed[:, : ours.shape[1]]).abs() <= slack

    def count(self) -> dict[str, int]:
        """Count the printed cells by their state."""
        return {state: int((self.states == state).sum()) for state in STATES}

    def matrices(self) -> list[GivenMatrix]:
        """Return the printed matrix and ours from both sources, with one more digit."""
        digits = 3 if self.decimals is None else self.decimals + 1
        n = self.from_inputs.shape[1]
        matrices = []
        if self.printed is not None:
            cells = self.printed.clone()
            cells[:, n:] = torch.nan  # they cannot be checked
            matrices.append(GivenMatrix(PRINTED, self.rows, self.columns, cells, self.texts))
        linked = f"from printed {joined(self.sources)}", self.from_printed
        for source, values in ("from the inputs", self.from_inputs), linked:
            if values is not None:
                texts = tuple(tuple(f"{x:.{digits}f}" for x in row) for row in values.tolist())
                matrices.append(GivenMatrix(source, self.rows, self.columns[:n], values, texts))
        return matrices


@documented
class ExampleResult(Result):
    """A worked example with every stage replayed.

    Examples
    --------
    >>> import attnviz
    >>> worked = attnviz.example("phones")
    >>> [stage.name for stage in worked.stages]
    ['Q', 'K', 'V', 'scores', 'scaled scores', 'weights', 'head output', 'concatenated']
    >>> figure = worked.plot()
    """

    name: str = doc('A bundled example, such as "phones", or the name of the file.')
    title: str = doc("The title that the example has.")
    tokens: tuple[str, ...] = doc("The labels of the keys.", label=True)
    given: tuple[GivenMatrix, ...] = doc("The matrices from which everything is computed.")
    stages: tuple[ReplayedStage, ...] = doc("The stages in order.")

    agreement: ClassVar[None] = None  # no model runs, so there is nothing to verify

    def __repr__(self) -> str:
        return f"ExampleResult({self.name!r}, {len(self.stages)} stages, {self.summary()})"

    def count(self) -> dict[str, int]:
        """Count the printed cells by their state."""
        counts = [stage.count() for stage in self.stages]
        return {state: sum(of[state] for of in counts) for state in STATES}

    @property
    def slips(self) -> tuple[str, ...]:
        """The stages in which the book has an error that no earlier stage explains."""
        return tuple(stage.name for stage in self.stages if stage.slips)

    def summary(self) -> str:
        """Return in one line how many printed cells have which state, and the slips."""
        slips = f"; slips: {', '.join(self.slips)}" if self.slips else ""
        return verdict(self.count()) + slips

    def finding(self) -> str:
        """Return as a title which printed numbers are wrong, and how many inherit that."""
        counts = self.count()
        follow, inherited = counts[EXACT] + counts[ROUNDED], counts[INHERITED]
        if not self.slips:
            text = f"All {follow} printed numbers of the example follow from its inputs"
            return text if follow else self.title
        wrong = [stage for stage in self.stages if stage.count()[DIFFERS]]
        nouns = [re.sub(r" \w$", "", one.title).lower() for one in wrong]
        more = f", and {counted(inherited, 'inherited one')}" if inherited else ""
        return f"The example has {counted(counts[DIFFERS], 'error')} in its {joined(nouns)}{more}"

    def to_arrays(self) -> dict[str, Tensor]:
        """Return what the example gives, and what is printed and recomputed of each stage."""
        arrays = {f"{matrix.key} given": matrix.values for matrix in self.given}
        ours = ("from_inputs", "from_printed", "slack_from_inputs", "slack_from_printed")
        follows = ("from_inputs_follows", "from_printed_follows", "from_printed_exactly")
        for stage in self.stages:
            for kind in ("printed", *ours, *follows):
                arrays[f"{stage.name} {kind}"] = getattr(stage, kind)
        return {name: array for name, array in arrays.items() if array is not None}

    def about(self) -> dict[str, Any]:
        """Return how many printed cells follow, and the facts about each stage."""
        stage = "name title formula decimals slips rows columns sources notes"
        return {
            "example": self.name,
            "title": self.title,
            "summary": self.summary(),
            "counts": self.count(),
            "slips": list(self.slips),
            "stages": [described(one, stage) for one in self.stages],
        }

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(literal(self.title, 120), "bold")
        marks = (f"{mark or 'no mark:'} {said}" for mark, said in STATES.values())
        yield Text(", ".join(marks), "dim")
        for given in self.given:
            yield Text("")
            yield _table([given], np.empty((0, 0), np.str_))
        for number, stage in enumerate(self.stages, start=1):
            yield Text(f"\n{number}  {stage.title}   {stage.formula}", "bold")
            yield _table(stage.matrices(), stage.states)
            for line in (verdict(stage.count()), *stage.notes):
                yield Text(literal(line, 2000))
        yield Text(f"\n{self.summary()}", "bold")


def verdict(counts: dict[str, int]) -> str:
    """Return how many printed cells have which state."""
    said = ", ".join(f"{count} {STATES[state][1]}" for state, count in counts.items() if count)
    return f"printed: {said}" if said else "nothing is printed"


def _table(matrices: Sequence[GivenMatrix], states: NDArray[np.str_]) -> Table:
    """Return the numbers of matrices that have the same rows, each row below the other."""
    table = plain_table(("", ""))
    for label in matrices[0].columns:
        table.add_column(Text(literal(label, _LABEL)), justify="right", no_wrap=True)
    for i, label in enumerate(matrices[0].rows):
        for matrix in matrices:
            cells = [Text(text) for text in matrix.texts[i]]
            for j, state in enumerate(states[i] if matrix.key == PRINTED else ()):
                mark, _ = STATES[state]
                cells[j] = Text(f"{mark}{cells[j]}", "bold red" if state == DIFFERS else "")
            row = literal(label, _LABEL) if matrix is matrices[0] else ""
            table.add_row(Text(row), matrix.key, *cells)
    return table
