"""A replayed stage in words and cells, the same in a terminal and in a figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from attnviz.analyses.example.result import ExampleResult, ReplayedStage

_MOST_NAMED = 4  # cells that do not follow and are named with their numbers
_LONGEST = 24  # characters of a label


@dataclass(frozen=True)
class Shown:
    """One matrix with its heading and texts; `follows` tells which cells do, if that is known."""

    heading: str
    values: Tensor
    texts: Sequence[Sequence[str]]
    follows: Tensor | None = None


def matrices(stage: ReplayedStage) -> list[Shown]:
    """Return what is printed, and our numbers from both sources with one more digit.

    If both sources give the same digits and verdicts, one matrix stands for both.
    """
    digits = 3 if stage.decimals is None else stage.decimals + 1
    ours = [
        Shown(
            source, values, [[f"{x:.{digits}f}" for x in row] for row in values.tolist()], follows
        )
        for values, follows, source in _by_source(stage)
    ]
    if len(ours) == 2 and ours[0].texts == ours[1].texts:
        first, second = (shown.follows for shown in ours)
        if first is None or second is None or bool((first == second).all()):
            ours = [replace(ours[1], heading=f"{ours[0].heading} and {ours[1].heading}")]
    printed = [] if stage.printed is None else [Shown("printed", stage.printed, stage.texts)]
    return printed + ours


def _by_source(stage: ReplayedStage) -> list[tuple[Tensor, Tensor | None, str]]:
    """Return our numbers, which printed cells follow from them, and where the numbers are from."""
    sources = [(stage.from_inputs, stage.from_inputs_follows, "from the inputs")]
    if stage.from_printed is not None:
        name = f"from the printed {' and '.join(stage.sources)}"
        sources.append((stage.from_printed, stage.from_printed_follows, name))
    return sources


def slips_sentence(result: ExampleResult) -> str:
    """Return in which stages the slips are, and that other differences come from them."""
    if not result.slips:
        return ""
    carried = any(
        not follows.all()
        for stage in result.stages
        if not stage.slips and (follows := stage.from_inputs_follows) is not None
    )
    *others, last = result.slips
    stages = f"{', '.join(others)} and {last}" if others else last
    rest = "; what else does not follow is carried on from there" if carried else ""
    return f"The slip{'s are' if others else ' is'} in {stages}{rest}"


def follow_counts(stage: ReplayedStage) -> list[tuple[bool, str]]:
    """Return by source whether all follow, and how many: "4 of 8 follow from the inputs"."""
    return [
        (bool(follows.all()), f"{int(follows.sum())} of {follows.numel()} follow {source}")
        for _, follows, source in _by_source(stage)
        if follows is not None
    ]


def sentences(stage: ReplayedStage) -> list[tuple[bool, str]]:
    """Return by source whether all printed cells follow, and a sentence for each that does not.

    Many such cells are only counted.
    """
    found = []
    for ours, follows, source in _by_source(stage):
        wrong = [] if follows is None else (~follows).nonzero().tolist()
        if follows is not None and not wrong:
            found.append((True, f"{source} all {follows.numel()} follow"))
        elif follows is not None and len(wrong) > _MOST_NAMED:
            found.append((False, f"{source} {len(wrong)} of {follows.numel()} do not follow"))
        else:
            found += [(False, _difference(stage, ours, i, j, source)) for i, j in wrong]
    return found


def _difference(stage: ReplayedStage, ours: Tensor, i: int, j: int, source: str) -> str:
    """Name a cell with both numbers, ours with one more digit if they would look the same."""
    printed, digits = stage.texts[i][j], stage.decimals or 0
    number = f"{ours[i, j]:.{digits}f}"
    if float(number) == float(printed):
        number = f"{ours[i, j]:.{digits + 1}f}"
    row, column = (
        label if len(label) <= _LONGEST else label[: _LONGEST - 1] + "…"
        for label in (stage.rows[i], stage.columns[j])
    )
    return f"({row}, {column}): printed {printed}, {source} {number}"
