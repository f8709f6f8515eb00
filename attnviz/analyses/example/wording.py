"""How a replayed stage is put into words and cells, alike in a terminal and in a figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from attnviz.analyses.example.result import ExampleResult, ReplayedStage

_MOST_NAMED, _MOST_PLACES = 4, 6  # cells that are named with their numbers, and without
_LONGEST = 24  # characters of a label


@dataclass(frozen=True)
class Shown:
    """One matrix as it is shown: what stands above it, and in its cells.

    follows : which cells do, None where that is not asked.
    """

    heading: str
    values: Tensor
    texts: Sequence[Sequence[str]]
    follows: Tensor | None = None


def matrices(stage: ReplayedStage) -> list[Shown]:
    """Return what is printed and what we have, with one more digit.

    Where both ways give the same digits, and follow alike, one matrix stands for both.
    """
    digits = 3 if stage.decimals is None else stage.decimals + 1
    ours = [
        Shown(way, values, [[f"{x:.{digits}f}" for x in row] for row in values.tolist()], follows)
        for values, follows, way in _ways(stage)
    ]
    if len(ours) == 2 and ours[0].texts == ours[1].texts:
        masks = ours[0].follows, ours[1].follows
        if masks[0] is None or masks[1] is None or bool((masks[0] == masks[1]).all()):
            ours = [replace(ours[1], heading=f"{ours[0].heading} and {ours[1].heading}")]
    printed = [] if stage.printed is None else [Shown("printed", stage.printed, stage.texts)]
    return printed + ours


def _ways(stage: ReplayedStage) -> list[tuple[Tensor, Tensor | None, str]]:
    """Return for each way what we have, which printed cells follow, and what the way is called."""
    ways = [(stage.from_inputs, stage.from_inputs_follows, "from the inputs")]
    if stage.from_printed is not None:
        way = f"from the printed {' and '.join(stage.sources)}"
        ways.append((stage.from_printed, stage.from_printed_follows, way))
    return ways


def slips_sentence(worked: ExampleResult) -> str:
    """Return in which stages the slips are, and that the rest comes from them; or nothing."""
    if not worked.slips:
        return ""
    carried = any(
        not follows.all()
        for stage in worked.stages
        if not stage.slips and (follows := stage.from_inputs_follows) is not None
    )
    where = "slip is" if len(worked.slips) == 1 else "slips are"
    rest = "; what else does not follow is carried on from there" if carried else ""
    return f"The {where} in {_and(worked.slips)}{rest}"


def follow_counts(stage: ReplayedStage) -> list[tuple[bool, str]]:
    """Return for each way whether all follow, and how many, as "4 of 8 follow from the inputs"."""
    return [
        (bool(follows.all()), f"{int(follows.sum())} of {follows.numel()} follow {way}")
        for _, follows, way in _ways(stage)
        if follows is not None
    ]


def sentences(stage: ReplayedStage) -> list[tuple[bool, str]]:
    """Return for each way whether all printed cells follow, and what is to be said of them.

    A sentence for each cell that does not, or one for all where they are many.
    """
    return [
        (bool(follows.all()), sentence)
        for ours, follows, way in _ways(stage)
        if follows is not None
        for sentence in _sentences(stage, ours, follows, way)
    ]


def _sentences(stage: ReplayedStage, ours: Tensor, follows: Tensor, way: str) -> list[str]:
    wrong = [(i, j) for i, j in (~follows).nonzero().tolist()]
    if not wrong:
        return [f"{way} all {follows.numel()} follow"]
    if len(wrong) <= _MOST_NAMED:
        return [_difference(stage, ours, i, j, way) for i, j in wrong]
    if len(wrong) == follows.numel():
        return [f"{way} none of {len(wrong)} follows"]
    return [f"{way} {len(wrong)} of {follows.numel()} do not follow: {_where(stage, wrong)}"]


def _difference(stage: ReplayedStage, ours: Tensor, i: int, j: int, way: str) -> str:
    """Say what is printed and what we have, with a digit more where these would look the same."""
    printed, digits = stage.texts[i][j], stage.decimals or 0
    told = f"{ours[i, j]:.{digits}f}"
    if float(told) == float(printed):
        told = f"{ours[i, j]:.{digits + 1}f}"
    return f"{_cell(stage, i, j)}: printed {printed}, {way} {told}"


def _where(stage: ReplayedStage, wrong: Sequence[tuple[int, int]]) -> str:
    """Name whole rows of cells first, then single cells."""
    width = stage.from_inputs.shape[1]
    rows = [i for i, _ in wrong]
    whole = [i for i in dict.fromkeys(rows) if rows.count(i) == width]
    single = [(i, j) for i, j in wrong if i not in whole]
    names = [_name(stage.rows[i]) for i in whole]
    parts = [f"{'row' if len(whole) == 1 else 'rows'} {_and(names)}"] if whole else []
    parts += [_cell(stage, i, j) for i, j in single[:_MOST_PLACES]]
    if len(single) > _MOST_PLACES:
        parts.append(f"and {len(single) - _MOST_PLACES} more")
    return ", ".join(parts)


def _and(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}".removeprefix(" and ")


def _cell(stage: ReplayedStage, i: int, j: int) -> str:
    return f"({_name(stage.rows[i])}, {_name(stage.columns[j])})"


def _name(label: str) -> str:
    return label if len(label) <= _LONGEST else label[: _LONGEST - 1] + "…"
