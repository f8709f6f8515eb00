"""Every stage of an example twice: from its inputs, and from the printed stages before.

Both ways are one pass through the formula. In the second, a stage that is printed stands in for
ours wherever a later one uses it; the gradient with respect to it tells what its rounding can do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attnviz.attention import (
    causal_mask,
    context,
    hide,
    masked_scores,
    merge_heads,
    scores,
    softmax,
    split_heads,
)
from attnviz.examples.fitting import Plan, fit, shape
from attnviz.examples.reading import JOINED, STAGES, Given
from attnviz.examples.scales import scale_note
from attnviz.examples.stages import describe, sides
from attnviz.examples.values import Matrix, decimals
from attnviz.records import GivenMatrix, ReplayedStage, WorkedExample

_BINARY = 1e-12  # of the largest number: what float64 leaves of decimal fractions
_AT_ONCE = 256  # cells whose gradients are held at one time

# The matrices of a stage: one per head, or one in all where the heads are joined.
Values = dict[str, list[Tensor]]


@dataclass(frozen=True)
class Way:
    """One way through the stages.

    own : what each stage computes. used : what later stages took in its place. known : the printed
    matrices among them, by stage and head, of which gradients can be had.
    """

    own: Values
    used: Values
    known: dict[tuple[str, int], Tensor]


def replay(given: Given) -> WorkedExample:
    """Compute every stage of an example twice and compare it with what is printed.

    Raises
    ------
    InputError : its parts do not fit together.
    """
    plan = fit(given)
    printed = {
        (stage, head): _tensor(matrix)
        for stage, matrices in given.printed.items()
        for head, matrix in enumerate(matrices)
        if matrix is not None
    }
    ways = _compute(given, plan, {}), _compute(given, plan, printed)
    shown = [stage for stage in STAGES if stage in plan.computed and _says_more(stage, given, plan)]
    by_head = [stage for stage in shown if stage not in JOINED]
    order = [(stage, head) for head in range(given.heads) for stage in by_head]
    order += [(stage, 0) for stage in shown if stage in JOINED]
    stages = tuple(_stage(given, plan, ways, stage, head) for stage, head in order)
    return WorkedExample(given.name, given.title, plan.tokens, _inputs(given, plan), stages)


def _inputs(given: Given, plan: Plan) -> tuple[GivenMatrix, ...]:
    found = [(name, name, matrix) for name, matrix in given.whole.items()]
    found += [
        (name if given.heads == 1 else f"head {head} {name}", name, matrix)
        for name, matrices in given.by_head.items()
        for head, matrix in enumerate(matrices)
    ]
    return tuple(
        GivenMatrix(key, *sides(name, shape(matrix), plan), _tensor(matrix), decimals(matrix))
        for key, name, matrix in found
    )


def _says_more(stage: str, given: Given, plan: Plan) -> bool:
    """Whether a stage is more than the one before: scores times 1 are not."""
    return stage != "scaled scores" or stage in given.printed or _scale(given, plan) != 1


def _scale(given: Given, plan: Plan) -> float:
    return float(plan.shapes["Q"][1] ** -0.5 if given.scale is None else given.scale)


def _compute(given: Given, plan: Plan, printed: dict[tuple[str, int], Tensor]) -> Way:
    """Go through the stages in order, with what is printed in place of ours from there on."""
    known = {key: matrix.clone().requires_grad_() for key, matrix in printed.items()}
    own: Values = {}
    used: Values = {
        stage: [_tensor(one) for one in matrices] for stage, matrices in given.by_head.items()
    }
    whole = {name: _tensor(matrix) for name, matrix in given.whole.items()}
    mask = _mask(given, plan)

    def project(W: str) -> list[Tensor]:
        return list(split_heads(whole["X"] @ whole[W], given.heads))

    def masked(S: Tensor) -> Tensor:
        return S if mask is None else masked_scores(S, mask)

    formulas: dict[str, Callable[[], list[Tensor]]] = {
        "Q": lambda: project("W_q"),
        "K": lambda: project("W_k"),
        "V": lambda: project("W_v"),
        "scores": lambda: [scores(Q, K) for Q, K in zip(used["Q"], used["K"], strict=True)],
        "scaled scores": lambda: [S * _scale(given, plan) for S in used["scores"]],
        "weights": lambda: [softmax(masked(S)) for S in used["scaled scores"]],
        "head output": lambda: [
            context(A, V) for A, V in zip(used["weights"], used["V"], strict=True)
        ],
        "concatenated": lambda: [merge_heads(torch.stack(used["head output"]))],
        "output": lambda: [used["concatenated"][0] @ whole["W_o"]],
    }
    for stage in plan.computed:
        own[stage] = formulas[stage]()
        used[stage] = [
            known.get((stage, head), matrix)[:, : matrix.shape[1]]
            for head, matrix in enumerate(own[stage])
        ]
    return Way(own, used, known)


def _mask(given: Given, plan: Plan) -> Tensor | None:
    if given.mask == "causal":
        return causal_mask(*plan.shapes["scores"])
    return None if given.mask is None else hide(~torch.tensor(given.mask))


def _stage(given: Given, plan: Plan, ways: tuple[Way, Way], stage: str, head: int) -> ReplayedStage:
    """Compare one stage of one head with what is printed."""
    free, linked = ways
    ours, theirs = free.own[stage][head].detach(), linked.own[stage][head]
    rounding, sources = _rounding(given, theirs, linked)
    matrix = given.printed[stage][head] if stage in given.printed else None
    unit = None if matrix is None else 0.5 * 10.0 ** -decimals(matrix)
    slack = None if unit is None else torch.full_like(ours, unit) + _fraction(ours)
    what = describe(stage, plan, given, _scale(given, plan) if "scores" in plan.shapes else 1.0)
    found = ReplayedStage(
        name=stage,
        symbol=what.symbol,
        title=what.title,
        formula=what.formula,
        head=head if given.heads > 1 and stage not in JOINED else None,
        rows=what.rows,
        columns=what.columns if matrix is None else what.wider(len(matrix[0])),
        printed=None if matrix is None else _tensor(matrix),
        decimals=None if matrix is None else decimals(matrix),
        from_inputs=ours,
        from_printed=theirs.detach() if sources else None,
        sources=sources,
        slack_from_inputs=slack,
        slack_from_printed=None
        if unit is None or not sources
        else unit + rounding + _fraction(theirs.detach()),
    )
    return _with_notes(found, given, plan, linked, head)


def _with_notes(
    stage: ReplayedStage, given: Given, plan: Plan, linked: Way, head: int
) -> ReplayedStage:
    """Add what can be said beyond the numbers."""
    notes = []
    if stage.untold:
        reason = given.notes.get(stage.name) or (
            f"what is given makes {stage.from_inputs.shape[1]} of its columns"
        )
        notes.append(f"{stage.untold} printed cells cannot be told: {reason}")
    elif stage.name in given.notes:
        notes.append(given.notes[stage.name])
    if stage.name == "weights":
        mask = _mask(given, plan)
        for name, row in zip(stage.rows, () if mask is None else mask.tolist(), strict=False):
            if all(row):
                notes.append(f"“{name}” sees no token: its weights are 0")
        scaled = linked.used["scaled scores"][head]
        slack, _ = _rounding(given, scaled, linked, itself=("scaled scores", head))
        scale = _scale(given, plan)
        notes += scale_note(stage, scaled.detach() / scale, slack / abs(scale), mask, scale)
    return replace(stage, notes=tuple(notes))


def _rounding(
    given: Given, value: Tensor, way: Way, itself: tuple[str, int] | None = None
) -> tuple[Tensor, tuple[str, ...]]:
    """Return what rounding the printed cells can do to each cell of `value`, in first order.

    Σ |∂ value / ∂ printed| · half a unit, and the names of the printed stages it is computed from.
    """
    if itself is not None and itself in way.known:
        return torch.full_like(value, _half_unit(given, *itself)), (itself[0],)
    if not value.requires_grad:
        return torch.zeros_like(value), ()
    keys = list(way.known)
    leaves = [way.known[key] for key in keys]
    sources: dict[str, None] = {}
    moved = []
    cells = value.flatten()
    each = torch.eye(cells.numel(), dtype=value.dtype)
    for start in range(0, cells.numel(), _AT_ONCE):
        one_each = each[start : start + _AT_ONCE]
        slopes = torch.autograd.grad(
            cells, leaves, one_each, retain_graph=True, allow_unused=True, is_grads_batched=True
        )
        total = torch.zeros(len(one_each), dtype=value.dtype)
        for key, slope in zip(keys, slopes, strict=True):
            if slope is not None:
                sources[key[0]] = None
                total += slope.abs().sum((-2, -1)) * _half_unit(given, *key)
        moved.append(total)
    return torch.cat(moved).reshape(value.shape), tuple(sources)


def _half_unit(given: Given, stage: str, head: int) -> float:
    matrix = given.printed[stage][head]
    return 0.0 if matrix is None else 0.5 * 10.0 ** -decimals(matrix)


def _fraction(ours: Tensor) -> float:
    return _BINARY * (1.0 + float(ours.abs().max()))


def _tensor(matrix: Matrix) -> Tensor:
    return torch.tensor([list(map(float, row)) for row in matrix], dtype=torch.float64)
