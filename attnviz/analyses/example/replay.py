"""Every stage of an example twice: from its inputs, and from the printed stages before.

Both ways are one pass through the formula. In the second, a stage that is printed stands in for
ours wherever a later one uses it, and what its rounding can do there is carried along.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attnviz.analyses.example.fitting import check_printed, check_sides, follow
from attnviz.analyses.example.intervals import Rounded
from attnviz.analyses.example.reading import Given
from attnviz.analyses.example.result import ExampleResult, GivenMatrix, ReplayedStage
from attnviz.analyses.example.scales import scale_note
from attnviz.analyses.example.stages import STAGES, TOKENS_ACROSS, TOKENS_DOWN
from attnviz.analyses.example.values import (
    Matrix,
    decimals,
    expect,
    half_unit,
    shape,
    texts,
)
from attnviz.formula.attention import causal_mask, hide

_BINARY = 1e-12  # of the largest number: what float64 leaves of decimal fractions
_COARSE = 10  # a slack so many times that of the cell's own rounding hides what one would see

Key = tuple[str, int]  # of one matrix: its stage, and the head
Labels = tuple[str, ...]


def replay(given: Given) -> ExampleResult:
    """Compute every stage of an example twice and compare it with what is printed.

    Raises
    ------
    InputError : its parts do not fit together.
    """
    computed = follow(given)
    own, used = _compute(given, computed, {})
    for stage in computed:
        check_printed(given, stage, own[stage, 0].shape)
    printed = {
        (stage, head): _rounded(
            tuple(row[: own[stage, head].shape[1]] for row in matrix),
            half_unit(matrix),
            (stage, head),
        )
        for stage, matrices in given.printed.items()
        for head, matrix in enumerate(matrices)
        if matrix
    }
    linked, linked_used = _compute(given, computed, printed)
    sides = _labels(given, used)
    found: dict[Key, ReplayedStage] = {}
    for key in sorted(own, key=lambda key: (STAGES[key[0]].joined, key[1])):
        if key[0] == "scaled scores" and key not in printed and used["scale", 0] == 1:
            continue  # scores times 1 are the scores
        one = _stage(given, key, own[key], linked[key], sides, used)
        follows = one.from_inputs_follows, one.from_printed_follows
        alone = all(_all(found[source].from_inputs_follows) for source in linked[key].sources)
        slips = not _all(follows[1]) or (alone and not _all(follows[0]))
        notes = _notes(given, one, key, linked_used)
        found[key] = replace(one, slips=slips, notes=tuple(notes))
    inputs = _inputs(given, sides)
    return ExampleResult(given.name, given.title, sides[1], inputs, tuple(found.values()))


def _compute(
    given: Given, computed: list[str], printed: Mapping[Key, Rounded]
) -> tuple[dict[Key, Rounded], dict[Key, Any]]:
    """Return what each stage computes, and what the later ones took: the printed one, if any."""
    heads = range(given.heads)
    own: dict[Key, Rounded] = {}
    used: dict[Key, Any] = {
        (name, head): _rounded(_part(given, name, head)) for name in given.whole for head in heads
    }
    for name, matrices in given.by_head.items():
        shapes = [str(shape(one)) for one in matrices]
        alike = len({*shapes}) == 1
        expect(alike, f"{name} of one shape in all heads", " and ".join(shapes), "Make them alike.")
        used |= {(name, head): _rounded(matrix) for head, matrix in enumerate(matrices)}
    for name in computed:
        stage = STAGES[name]
        if name == "scaled scores":
            default = given.scale is None and used["Q", 0].shape[1] ** -0.5
            used |= {("scale", head): float(given.scale or default) for head in heads}
        elif name == "weights":
            used |= {("mask", head): _mask(given, used["scaled scores", 0].shape) for head in heads}
        for head in heads[:1] if stage.joined else heads:
            operands = [used[need, head] for need in stage.needs]
            if name == "concatenated":
                operands = [used["head output", each] for each in heads]
            check_sides(name, operands, given)
            own[name, head] = stage.compute(*operands)
            used[name, head] = printed.get((name, head), own[name, head])
    return own, used


def _part(given: Given, name: str, head: int) -> Matrix:
    """Return the columns of a matrix that are one head's, where heads stand side by side in it."""
    matrix = given.whole[name]
    if name in ("X", "W_o"):
        return matrix
    width, left = divmod(len(matrix[0]), given.heads)
    what = f"heads that divide the {len(matrix[0])} columns of {name}"
    expect(not left, what, given.heads, "The heads' matrices stand side by side in it.")
    return tuple(row[head * width : (head + 1) * width] for row in matrix)


def _mask(given: Given, sides: tuple[int, int]) -> Tensor | None:
    if given.mask == "causal":
        do = "Write the mask as a matrix of 1 and 0."
        expect(sides[0] == sides[1], "as many queries as keys for a causal mask", sides, do)
        return causal_mask(*sides)
    if given.mask is None:
        return None
    found = len(given.mask), len(given.mask[0])
    do = "Each cell is 1 where the row's token sees the column's, else 0."
    expect(found == sides, f"a mask of the shape of the scores, {sides}", found, do)
    return hide(~torch.tensor(given.mask))


def _stage(
    given: Given,
    key: Key,
    ours: Rounded,
    theirs: Rounded,
    sides: tuple[Labels, Labels],
    used: Mapping[Key, Any],
) -> ReplayedStage:
    """Compare one stage of one head with what is printed."""
    name, head = key
    matrix = given.printed[name][head] if name in given.printed else ()
    unit = half_unit(matrix) if matrix else None
    sources = {source for source, _ in theirs.sources}
    return ReplayedStage(
        name=name,
        title=STAGES[name].title,
        formula=STAGES[name].formula.format(**_formulas(given, used)),
        head=head if given.heads > 1 and not STAGES[name].joined else None,
        rows=_side(name, ours.shape, sides)[0],
        columns=_side(name, shape(matrix) if matrix else ours.shape, sides)[1],
        printed=_rounded(matrix).value if matrix else None,
        texts=texts(matrix),
        decimals=decimals(matrix) if matrix else None,
        from_inputs=ours.value,
        from_printed=theirs.value if sources else None,
        sources=tuple(stage for stage in STAGES if stage in sources),
        slack_from_inputs=None if unit is None else _slack(ours, unit),
        slack_from_printed=None if unit is None or not sources else _slack(theirs, unit),
    )


def _formulas(given: Given, used: Mapping[Key, Any]) -> dict[str, str]:
    """Return what stands in the formulas where examples differ."""
    scale = used.get(("scale", 0), 1.0)
    default = given.scale is None and ("Q", 0) in used
    return {
        "scale": f"/ √{used['Q', 0].shape[1]}" if default else f"· {scale:.4g}",
        "scaled": "scores" if scale == 1 else "scaled scores",
        "mask": "" if given.mask is None else " + mask",
        "heads": "A of all heads" if given.heads == 1 else f"[A_0, …, A_{given.heads - 1}]",
    }


def _notes(given: Given, stage: ReplayedStage, key: Key, used: Mapping[Key, Any]) -> list[str]:
    """Say what can be said beyond the numbers."""
    name, head = key
    notes = [given.notes[name]] if name in given.notes else []
    if stage.untold:
        reason = notes or [f"what is given makes {stage.from_inputs.shape[1]} of its columns"]
        notes = [f"{stage.untold} printed cells cannot be told: {reason[0]}"]
    if stage.slack_from_printed is not None and stage.decimals is not None:
        moved = float(stage.slack_from_printed.max())
        if moved > _COARSE * 0.5 * 10.0**-stage.decimals:
            notes.append(
                f"What is printed of {' and '.join(stage.sources)} is too coarse to tell more: its "
                f"rounding can move a cell by {moved:.2g}"
            )
    if name == "head output" and "weights" in given.by_head:
        slack = half_unit(given.by_head["weights"][head]) * used["weights", head].shape[1]
        notes += [
            f"The weights of “{row}” sum to {total:.4g}, not to 1"
            for row, total in zip(
                stage.rows, used["weights", head].value.sum(1).tolist(), strict=True
            )
            if abs(total - 1) > slack + 1e-9
        ]
    if name == "weights":
        mask = used["mask", head]
        notes += [
            f"“{row}” sees no token: its weights are 0"
            for row, hidden in zip(stage.rows, () if mask is None else mask.tolist(), strict=False)
            if all(hidden)
        ]
        notes += scale_note(stage, used["scaled scores", head], mask, used["scale", head])
    return notes


def _labels(given: Given, used: Mapping[Key, Any]) -> tuple[Labels, Labels]:
    """Return the labels of what attends and of what is attended to."""
    m, n = next(used[s, 0].shape for s in ("weights", "Q", "K", "V") if (s, 0) in used)
    n = n if ("weights", 0) in used else m
    tokens = _counted(given.tokens, "tokens", n, "columns of the weights")
    if given.queries is None and m == n:
        return tokens, tokens
    return _counted(given.queries, "queries", m, "rows of the weights"), tokens


def _counted(labels: Labels | None, name: str, count: int, what: str) -> Labels:
    labels = tuple(map(str, range(count))) if labels is None else labels
    alike = len(labels) == count
    expect(alike, f"{count} {name}, one for each of the {what}", len(labels), "Name each once.")
    return labels


def _inputs(given: Given, sides: tuple[Labels, Labels]) -> tuple[GivenMatrix, ...]:
    found = {name: (name, matrix) for name, matrix in given.whole.items()}
    for name, matrices in given.by_head.items():
        for head, matrix in enumerate(matrices):
            found[name if given.heads == 1 else f"head {head} {name}"] = name, matrix
    return tuple(
        GivenMatrix(key, *_side(name, shape(one), sides), _rounded(one).value, texts(one))
        for key, (name, one) in found.items()
    )


def _side(name: str, size: tuple[int, int], sides: tuple[Labels, Labels]) -> tuple[Labels, Labels]:
    """Return the labels of rows and columns: tokens, or features, which are counted from 0."""
    rows, columns = (tuple(map(str, range(count))) for count in size)
    queries, tokens = sides
    if not name.startswith("W_"):
        rows = tokens if name in TOKENS_DOWN else queries
    return rows, tokens if name in TOKENS_ACROSS else columns


def _rounded(matrix: Matrix, unit: float = 0.0, *source: Key) -> Rounded:
    value = torch.tensor([list(map(float, row)) for row in matrix], dtype=torch.float64)
    return Rounded(value, torch.full_like(value, unit), frozenset(source))


def _slack(ours: Rounded, unit: float) -> Tensor:
    return ours.slack + unit + _BINARY * (1.0 + float(ours.value.abs().max()))


def _all(follows: Tensor | None) -> bool:
    return follows is None or bool(follows.all())
