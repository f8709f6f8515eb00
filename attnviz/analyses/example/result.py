"""A worked example, replayed stage by stage beside what a book prints."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
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
STATES = "does not follow", "inherited", "within rounding", "follows exactly"
DIFFERS, INHERITED, ROUNDED, EXACT = STATES
_COUNTED = {DIFFERS: "wrong", INHERITED: "inherit errors", ROUNDED: ROUNDED}
_MARKS = {DIFFERS: "≠", INHERITED: "↳", ROUNDED: "≈"}
_STYLES = {DIFFERS: "bold red", INHERITED: "dim", ROUNDED: "yellow"}

Labels: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Matrix:
    """A matrix as it is shown, and the states of its cells if it is compared with others."""

    source: str
    values: Tensor
    texts: Sequence[Sequence[str]]
    rows: Labels
    columns: Labels
    states: NDArray[np.str_] | None = None

    @property
    def heading(self) -> tuple[str, str]:
        """What it is, and its source or how many cells have which state."""
        if self.source.startswith("from "):
            return "computed", self.source
        if self.states is None:
            return self.source, ""
        counts = {of: np.count_nonzero(self.states == state) for state, of in _COUNTED.items()}
        said = ", ".join(f"{count} {of}" for of, count in counts.items() if count)
        return self.source, said or "all follow"


@documented
class GivenMatrix(Savable):
    """A matrix that an example gives, with labels."""

    key: str = doc('Its name: "X" or "W_q".')
    rows: tuple[str, ...] = doc("The labels of the m rows.")
    columns: tuple[str, ...] = doc("The labels of the n columns.")
    values: Tensor = doc("(m, n), float64.")
    texts: tuple[tuple[str, ...], ...] = doc("The numbers with the digits of the file.")

    def matrix(self, source: str = "") -> Matrix:
        """Return the matrix as it is shown."""
        return Matrix(source, self.values, self.texts, self.rows, self.columns)


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
        """The state of each printed cell, one of `STATES`, (m, n); empty without any."""
        exactly = self.from_inputs_follows
        if exactly is None:
            return np.empty((0, 0), np.str_)
        follows, nearly = exactly, exactly
        if self.from_printed_follows is not None and self.from_printed_exactly is not None:
            follows, nearly = self.from_printed_follows, self.from_printed_exactly
        cases = [(~follows & ~exactly).numpy(), ~exactly.numpy(), (follows & ~nearly).numpy()]
        return np.select(cases, STATES[:3], EXACT)

    def _follows(self, ours: Tensor | None, slack: Tensor | None) -> Tensor | None:
        if self.printed is None or ours is None or slack is None:
            return None
        return (ours - self.printed[:, : ours.shape[1]]).abs() <= slack

    def about(self) -> dict[str, Any]:
        """Return the facts about the stage beside its arrays, as types of JSON."""
        return described(self, "name title formula decimals slips rows columns sources notes")

    def matrices(self) -> list[Matrix]:
        """Return the printed matrix and ours from both sources, with one more digit."""
        digits = 3 if self.decimals is None else self.decimals + 1
        ours = {"from the inputs": self.from_inputs}
        if self.from_printed is not None:
            ours[f"from printed {' and '.join(self.sources)}"] = self.from_printed
        matrices = []
        if self.printed is not None:
            cells = self.printed.clone()
            cells[:, self.from_inputs.shape[1] :] = torch.nan  # they cannot be checked
            shown = cells, self.texts, self.rows, self.columns, self.states
            matrices.append(Matrix("printed", *shown))
        for source, values in ours.items():
            texts = [[f"{x:.{digits}f}" for x in row] for row in values.tolist()]
            matrices.append(Matrix(source, values, texts, self.rows, self.columns))
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
        """Count the printed cells: all, unchecked ones, and those that follow from each source.

        `linked` counts the cells that have printed stages before them, and `within_rounding` those
        of `from_printed` that do not follow exactly.
        """

        def total(kind: str, of: Callable[[Tensor], Any] = Tensor.sum) -> int:
            arrays = (getattr(stage, kind) for stage in self.stages)
            return int(sum(of(array) for array in arrays if array is not None))

        printed, follow = total("printed", Tensor.numel), total("from_printed_follows")
        return {
            "printed": printed,
            "untold": printed - total("from_inputs_follows", Tensor.numel),
            "from_inputs": total("from_inputs_follows"),
            "linked": total("from_printed_follows", Tensor.numel),
            "from_printed": follow,
            "within_rounding": follow - total("from_printed_exactly"),
        }

    @property
    def slips(self) -> tuple[str, ...]:
        """The stages in which the book has an error that no earlier stage explains."""
        return tuple(stage.name for stage in self.stages if stage.slips)

    def summary(self) -> str:
        """Return in one line how many printed cells follow from each source."""
        n = self.count()
        if not n["printed"]:
            return "nothing is printed to compare with"
        checked = n["printed"] - n["untold"]
        parts = [f"{n['from_inputs']} of {checked} printed cells follow from the inputs"]
        if n["linked"]:
            linked = f"{n['from_printed']} of {n['linked']}"
            parts.append(f"{linked} follow from the printed stages before them")
        if n["within_rounding"]:
            parts[-1] += f" ({n['within_rounding']} of these only {ROUNDED})"
        if n["untold"]:
            parts.append(f"{n['untold']} cannot be checked")
        return ", ".join(parts)

    def finding(self) -> str:
        """Return as a title which printed numbers are wrong, and how many inherit that."""
        n = self.count()
        if not (checked := n["printed"] - n["untold"]):
            return self.title
        if n["from_inputs"] == checked:
            return f"All {checked} printed numbers of the example follow from its inputs"
        shown = [one for one in self.stages if one.printed is not None]
        states = {re.sub(r" \w$", "", one.title).lower(): one.states for one in shown}
        if len(states) == 1 and not n["from_inputs"]:
            source = self.given[0].key if len(self.given) == 1 else "inputs"
            return f"None of the example's {checked} {joined([*states])} follows from its {source}"
        if not (wrong := [noun for noun, of in states.items() if DIFFERS in of]):
            return f"All {checked} printed numbers of the example follow from those before them"
        cells = [str(state) for of in states.values() for state in of.flat]
        more = f", and {counted(cells.count(INHERITED), 'inherited one')}" * (INHERITED in cells)
        return (
            f"The example has {counted(cells.count(DIFFERS), 'error')} in its {joined(wrong)}{more}"
        )

    def conclusion(self) -> str:
        """Return the summary, and the stages that have slips."""
        slips = f" Slips: {', '.join(self.slips)}." if self.slips else ""
        return f"{self.summary().capitalize()}.{slips}"

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
        return {
            "example": self.name,
            "title": self.title,
            "summary": self.summary(),
            "counts": self.count(),
            "slips": list(self.slips),
            "stages": [stage.about() for stage in self.stages],
        }

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(literal(self.title, 120), "bold")
        if any(stage.printed is not None for stage in self.stages):
            marks = ", ".join(f"{mark} {_COUNTED[state]}" for state, mark in _MARKS.items())
            yield Text(f"{marks}, no mark: {EXACT}", "dim")
        for given in self.given:
            yield Text(f"\n{given.key}, given", "bold")
            yield _table([given.matrix()])
        for number, stage in enumerate(self.stages, start=1):
            yield Text(f"\n{number}  {stage.title}   {stage.formula}", "bold")
            yield _table(stage.matrices())
            for matrix in stage.matrices():
                if matrix.states is not None:
                    look = "bold red" if DIFFERS in matrix.states else ""
                    yield Text(": ".join(matrix.heading), look)
            for note in stage.notes:
                yield Text(literal(note, 2000), "dim")
        yield Text(f"\n{self.conclusion()}", "bold")


def _table(matrices: Sequence[Matrix]) -> Table:
    """Return the numbers of matrices that have the same rows, each row below the other."""
    table = plain_table(("", ""))
    for label in matrices[0].columns:
        table.add_column(Text(literal(label, _LABEL)), justify="right", no_wrap=True)
    for i, label in enumerate(matrices[0].rows):
        for matrix in matrices:
            cells = [Text(text) for text in matrix.texts[i]]
            for j, state in enumerate(() if matrix.states is None else matrix.states[i]):
                if state in _MARKS:
                    cells[j] = Text(f"{_MARKS[state]}{cells[j]}", _STYLES[state])
            row = literal(label, _LABEL) if matrix is matrices[0] else ""
            table.add_row(Text(row), matrix.source, *cells)
    return table
