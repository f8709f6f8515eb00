"""A worked example, replayed stage by stage beside what a book prints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

import attnviz
from attnviz.results.base import Columns, Result, Savable, table_of_matrices

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console, ConsoleOptions, RenderResult


@dataclass(frozen=True, eq=False)
class GivenMatrix(Savable):
    """A matrix that an example gives, exact as it stands: "X", "W_q", or "head 1 V".

    rows, columns : labels, of tokens or of features. values : (m, n), float64. texts : the same,
    each number with the digits that it is given.
    """

    key: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: Tensor
    texts: tuple[tuple[str, ...], ...]

    @property
    def of_tokens(self) -> bool:
        """Whether its rows are tokens, as those of all but the matrices W are."""
        return not self.key.startswith("W_")


@dataclass(frozen=True, eq=False)
class ReplayedStage(Savable):
    """One stage of one head: what is printed, and what we compute, twice.

    Attributes
    ----------
    name, title, formula : "K", "Keys K", "K = X W_k".
    head : counted from 0; None where an example has one head, and once the heads are joined.
    rows, columns : labels, of tokens or of features.
    printed : (m, p), what the book prints; None where it prints nothing.
    texts : the same, each number with the digits that it has in print; else empty.
    decimals : how many of them stand behind the point, in the cell that has most.
    from_inputs : (m, n), float64, from what the example gives. Where n < p, the columns of
        `printed` from n on cannot be told.
    from_printed : (m, n), the same from the printed stages before, `sources`; None without any.
    slack_from_inputs, slack_from_printed : (m, n), how far a cell may lie from what is printed:
        half a unit of the matrix's last digit, and the most that the rounding of `sources` can do.
    slips : whether the book goes wrong here by itself. Either a cell does not follow from the
        nearest that is printed; or it does not follow from the inputs although they do.
    notes : further lines of the caption.
    """

    name: str
    title: str
    formula: str
    head: int | None
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    printed: Tensor | None
    texts: tuple[tuple[str, ...], ...]
    decimals: int | None
    from_inputs: Tensor
    from_printed: Tensor | None
    sources: tuple[str, ...]
    slack_from_inputs: Tensor | None
    slack_from_printed: Tensor | None
    slips: bool = False
    notes: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """What the stage is called among all: "scores", or "head 1 scores"."""
        return self.name if self.head is None else f"head {self.head} {self.name}"

    @property
    def from_inputs_follows(self) -> Tensor | None:
        """(m, n) of booleans: which printed cells follow from the inputs; None without any."""
        return self._follows(self.from_inputs, self.slack_from_inputs)

    @property
    def from_printed_follows(self) -> Tensor | None:
        """(m, n) of booleans: which follow from the printed stages before; None without any."""
        return self._follows(self.from_printed, self.slack_from_printed)

    @property
    def untold(self) -> int:
        """How many printed cells cannot be told from what is given."""
        if self.printed is None:
            return 0
        return self.printed.numel() - self.printed[:, : self.from_inputs.shape[1]].numel()

    def _follows(self, ours: Tensor | None, slack: Tensor | None) -> Tensor | None:
        if self.printed is None or ours is None or slack is None:
            return None
        return (ours - self.printed[:, : ours.shape[1]]).abs() <= slack


@dataclass(frozen=True, eq=False)
class ExampleResult(Result):
    """A worked example with every stage replayed, in order.

    name : "phones", or the file that it was read from. title : as the example says. tokens : the
    words that are attended to. given : what all is computed from.
    """

    name: str
    title: str
    tokens: tuple[str, ...]
    given: tuple[GivenMatrix, ...]
    stages: tuple[ReplayedStage, ...]

    agreement: ClassVar[None] = None  # no model runs, so there is nothing to verify

    def __repr__(self) -> str:
        """Say what it holds, without the tensors."""
        return f"ExampleResult({self.name!r}, {len(self.stages)} stages, {self.summary()})"

    def count(self) -> dict[str, int]:
        """Count the printed cells: all, untold, and those that follow in each of the two ways.

        `linked` are those before which something is printed.
        """
        alone = [stage.from_inputs_follows for stage in self.stages]
        linked = [stage.from_printed_follows for stage in self.stages]
        return {
            "printed": sum(s.printed.numel() for s in self.stages if s.printed is not None),
            "untold": sum(stage.untold for stage in self.stages),
            "from_inputs": sum(int(each.sum()) for each in alone if each is not None),
            "linked": sum(each.numel() for each in linked if each is not None),
            "from_printed": sum(int(each.sum()) for each in linked if each is not None),
        }

    @property
    def slips(self) -> tuple[str, ...]:
        """The stages at which the book goes wrong by itself, not by what went before."""
        return tuple(stage.key for stage in self.stages if stage.slips)

    def summary(self) -> str:
        """Return in one line how many printed cells follow, in each of the two ways."""
        n = self.count()
        if not n["printed"]:
            return "nothing is printed to compare with"
        told = n["printed"] - n["untold"]
        parts = [f"{n['from_inputs']} of {told} printed cells follow from the inputs"]
        if n["linked"]:
            parts.append(
                f"{n['from_printed']} of {n['linked']} follow from the printed stages before them"
            )
        if n["untold"]:
            parts.append(f"{n['untold']} cannot be told")
        return ", ".join(parts)

    def to_arrays(self) -> dict[str, Tensor]:
        """Return what the example gives, and what is printed and recomputed of each stage."""
        kinds = (
            "printed", "from_inputs", "from_printed", "slack_from_inputs", "slack_from_printed",
            "from_inputs_follows", "from_printed_follows",
        )  # fmt: skip
        arrays = {f"{matrix.key} given": matrix.values for matrix in self.given}
        for stage in self.stages:
            of_stage = {f"{stage.key} {kind}": getattr(stage, kind) for kind in kinds}
            arrays |= {name: array for name, array in of_stage.items() if array is not None}
        return arrays

    def labels(self) -> dict[str, list[str]]:
        """Return the tokens of the example."""
        return {"tokens": list(self.tokens)}

    def about(self) -> dict[str, Any]:
        """Return how many printed cells follow, and what is known of each stage."""
        texts = ("key", "name", "head", "title", "formula", "decimals", "slips")
        lists = ("rows", "columns", "sources", "notes")
        return {
            "example": self.name,
            "title": self.title,
            "summary": self.summary(),
            "counts": self.count(),
            "slips": list(self.slips),
            "stages": [
                {key: getattr(stage, key) for key in texts}
                | {key: list(getattr(stage, key)) for key in lists}
                for stage in self.stages
            ],
        }

    def columns_of_table(self) -> Columns:
        """Return one array after the other, by row and column."""
        return table_of_matrices(self.to_arrays())

    def plot(self, **keywords: Any) -> Figure:
        """Draw the stages: see `attnviz.plot.example`."""
        return attnviz.plot.example(self, **keywords)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Print the matrices of each stage beside each other, and what differs."""
        from attnviz.analyses.example.text import as_text

        return as_text(self, console, options)
