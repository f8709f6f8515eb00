"""How a replayed stage is put into words, alike in a terminal and under a figure."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from attnviz.records import ReplayedStage, WorkedExample

_MOST_NAMED, _MOST_PLACES = 4, 6  # cells that are named with their numbers, and without
_LONGEST = 24  # characters of a label


def shown_decimals(stage: ReplayedStage) -> int:
    """Return the decimals with which ours are shown: one more than are printed."""
    return 3 if stage.decimals is None else stage.decimals + 1


def headings(stage: ReplayedStage) -> list[tuple[str, str]]:
    """Return (what stands above a matrix, the attribute that it is), from left to right.

    Where both ways give the same digits, one matrix stands for both.
    """
    found = [] if stage.printed is None else [("printed", "printed")]
    if stage.from_printed is None:
        return [*found, ("from the inputs", "from_inputs")]
    if same_digits(stage):
        return [*found, (f"from the inputs and {from_sources(stage)}", "from_printed")]
    return [
        *found, ("from the inputs", "from_inputs"), (f"from {from_sources(stage)}", "from_printed")
    ]  # fmt: skip


def same_digits(stage: ReplayedStage) -> bool:
    """Whether both ways show the same numbers, and follow alike."""
    one, other = stage.from_inputs, stage.from_printed
    if other is None:
        return True
    masks = stage.from_inputs_follows, stage.from_printed_follows
    alike = masks[0] is None or masks[1] is None or bool((masks[0] == masks[1]).all())
    digits = shown_decimals(stage)
    return alike and bool((one.round(decimals=digits) == other.round(decimals=digits)).all())


def from_sources(stage: ReplayedStage) -> str:
    """Return "the printed Q and K"."""
    return f"the printed {' and '.join(stage.sources)}"


def slips_sentence(worked: WorkedExample) -> str:
    """Return in which stages the slips are, and that the rest comes from them; or nothing."""
    if not worked.slips:
        return ""
    stages = f"{', '.join(worked.slips[:-1])} and {worked.slips[-1]}".removeprefix(" and ")
    carried = any(
        not follows.all()
        for stage in worked.stages
        if not stage.slips and (follows := stage.from_inputs_follows) is not None
    )
    where = "slip is" if len(worked.slips) == 1 else "slips are"
    rest = "; what else does not follow is carried on from there" if carried else ""
    return f"The {where} in {stages}{rest}"


def follow_counts(stage: ReplayedStage) -> list[tuple[bool, str]]:
    """Return for each way whether all follow, and how many, as "4 of 8 follow from the inputs"."""
    ways = (
        (stage.from_inputs_follows, "from the inputs"),
        (stage.from_printed_follows, f"from {from_sources(stage)}"),
    )
    return [
        (bool(mask.all()), f"{int(mask.sum())} of {mask.numel()} follow {way}")
        for mask, way in ways
        if mask is not None
    ]


def sentences(stage: ReplayedStage) -> list[tuple[bool, str]]:
    """Return for each way whether all printed cells follow, and what is to be said of them.

    A sentence for each cell that does not, or one for all where they are many.
    """
    ways = (
        (stage.from_inputs, stage.from_inputs_follows, "from the inputs"),
        (stage.from_printed, stage.from_printed_follows, f"from {from_sources(stage)}"),
    )
    return [
        (bool(mask.all()), sentence)
        for ours, mask, way in ways
        if ours is not None and mask is not None
        for sentence in _sentences(stage, ours, mask, way)
    ]


def _sentences(stage: ReplayedStage, ours: Tensor, mask: Tensor, way: str) -> list[str]:
    wrong = [(i, j) for i, j in (~mask).nonzero().tolist()]
    if not wrong:
        return [f"{way} all {mask.numel()} follow"]
    if stage.printed is None or len(wrong) > _MOST_NAMED:
        if len(wrong) == mask.numel():
            return [f"{way} none of {mask.numel()} follows"]
        return [f"{way} {len(wrong)} of {mask.numel()} do not follow: {_where(stage, wrong)}"]
    return [
        f"{_cell(stage, i, j)}: {_both(float(stage.printed[i, j]), float(ours[i, j]), stage, way)}"
        for i, j in wrong
    ]


def _both(printed: float, ours: float, stage: ReplayedStage, way: str) -> str:
    """Say what is printed and what we have, with the printed digits where these tell them apart."""
    digits = stage.decimals or 0
    told = f"{ours:.{digits}f}"
    if told == f"{printed:.{digits}f}":
        told = f"{ours:.{digits + 1}f}"
    return f"printed {printed:.{digits}f}, {way} {told}"


def _where(stage: ReplayedStage, wrong: Sequence[tuple[int, int]]) -> str:
    """Name whole rows of cells first, then single cells."""
    rows = dict.fromkeys(i for i, _ in wrong)
    width = stage.from_inputs.shape[1]
    whole = [i for i in rows if sum(at == i for at, _ in wrong) == width]
    single = [(i, j) for i, j in wrong if i not in whole]
    parts = [f"{'row' if len(whole) == 1 else 'rows'} {_listed(stage, whole)}"] if whole else []
    parts += [_cell(stage, i, j) for i, j in single[:_MOST_PLACES]]
    if len(single) > _MOST_PLACES:
        parts.append(f"and {len(single) - _MOST_PLACES} more")
    return ", ".join(parts)


def _listed(stage: ReplayedStage, rows: Sequence[int]) -> str:
    names = [_name(stage.rows[i]) for i in rows]
    return ", ".join(names[:-1]) + f" and {names[-1]}" if len(names) > 1 else names[0]


def _cell(stage: ReplayedStage, i: int, j: int) -> str:
    return f"({_name(stage.rows[i])}, {_name(stage.columns[j])})"


def _name(label: str) -> str:
    return label if len(label) <= _LONGEST else label[: _LONGEST - 1] + "…"
