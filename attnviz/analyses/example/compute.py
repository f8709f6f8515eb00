"""Worked examples: what a book prints, replayed stage by stage from its own numbers.

Every stage is computed twice by one pass through the formula: from the inputs, and from the printed
stages before it. In the second pass a printed stage replaces ours, and the largest error that its
rounding can cause is carried along.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import combinations
from operator import matmul, mul
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnviz.analyses.example.bundled import check_source
from attnviz.analyses.example.result import ExampleResult, GivenMatrix, ReplayedStage
from attnviz.analyses.example.schema import Lesson, Matrix, parse
from attnviz.errors import InputError, did_you_mean
from attnviz.formula.attention import hide, masked_scores, softmax
from attnviz.io.files import read_text

_MOST_BYTES = 1_000_000
_BEGIN = "Give X with W_q, W_k and W_v; or Q and K; or scores with a scale; or weights and V."
_BINARY = 1e-12  # of the largest number: the error of decimal fractions in float64
_COARSE = 10  # a slack so many times a cell's own rounding hides errors that one would see
Labels = tuple[str, ...]
Key = tuple[str, int]  # one matrix: its stage, and the head


@dataclass(frozen=True, eq=False)
class Rounded:
    """A matrix, how far the unrounded number can lie from each cell, and the printed sources."""

    value: Tensor
    slack: Tensor
    sources: frozenset[Key] = frozenset()

    @property
    def mT(self) -> Rounded:  # noqa: N802
        """The transposed matrix."""
        return Rounded(self.value.mT, self.slack.mT, self.sources)

    def __matmul__(self, other: Rounded) -> Rounded:
        """|(a ± δ)(b ± ε) - ab| is at most |a| ε + δ (|b| + ε)."""
        slack = self.value.abs() @ other.slack + self.slack @ (other.value.abs() + other.slack)
        return Rounded(self.value @ other.value, slack, self.sources | other.sources)

    def __mul__(self, factor: float) -> Rounded:
        """Scale it."""
        return Rounded(self.value * factor, self.slack * abs(factor), self.sources)

    def softmax(self, mask: Tensor | None = None) -> Rounded:
        """A weight is smallest where its own score is smallest and all others are largest."""
        low, value, high = (
            scores if mask is None else masked_scores(scores, mask)
            for scores in (self.value - self.slack, self.value, self.value + self.slack)
        )
        weights = softmax(value)
        slack = torch.maximum(weights - _softmax_of(low, high), _softmax_of(high, low) - weights)
        return Rounded(weights, slack.clamp(min=0), self.sources)


def _softmax_of(own: Tensor, others: Tensor) -> Tensor:
    """Return each cell's weight with its own score from one matrix and the rest from another."""
    is_own = torch.eye(own.shape[-1], dtype=torch.bool)
    mixed = torch.where(is_own, own.unsqueeze(-2), others.unsqueeze(-2))
    return softmax(mixed).diagonal(dim1=-2, dim2=-1)


def _concatenate(*heads: Rounded) -> Rounded:
    sources: frozenset[Key] = frozenset().union(*(head.sources for head in heads))
    value, slack = (torch.cat([getattr(h, name) for h in heads], -1) for name in ("value", "slack"))
    return Rounded(value, slack, sources)


class Stage(NamedTuple):
    """One stage: what it is computed from, and whether it is one matrix of all heads."""

    title: str
    formula: str
    needs: tuple[str, ...]
    compute: Callable[..., Rounded]
    joined: bool = False


STAGES = {
    "Q": Stage("Queries Q", "Q = X W_q", ("X", "W_q"), matmul),
    "K": Stage("Keys K", "K = X W_k", ("X", "W_k"), matmul),
    "V": Stage("Values V", "V = X W_v", ("X", "W_v"), matmul),
    "scores": Stage("Scores", "QKᵀ", ("Q", "K"), lambda Q, K: Q @ K.mT),
    "scaled scores": Stage("Scaled scores", "QKᵀ {scale}", ("scores", "scale"), mul),
    "weights": Stage(
        "Weights W", "W = softmax({scaled}{mask})", ("scaled scores", "mask"), Rounded.softmax
    ),
    "head output": Stage("Attention vectors A", "A = W V", ("weights", "V"), matmul),
    "concatenated": Stage(
        "All heads, side by side", "{heads}", ("head output",), _concatenate, joined=True
    ),
    "output": Stage("Output", "heads W_o", ("concatenated", "W_o"), matmul, joined=True),
}


def example(
    name: str | None = None, *, file: str | os.PathLike[str] | None = None
) -> ExampleResult:
    """Replay a worked example: every stage from the inputs, and from the printed stages before it.

    A printed cell follows where our float64 number differs from it by at most half a unit of the
    matrix's last digit and the error that the rounding of the printed cells before it can cause. A
    stage slips where a cell does not follow from the nearest printed stages; or not from the
    inputs, although those stages do.

    Parameters
    ----------
    name : str, optional
        A bundled example: "cat", "likes" or "phones".
    file : path, optional
        Your own example, a JSON object. It gives `X` (T, d_model), `W_q`, `W_k` (d_model, h·d_k),
        `W_v` (d_model, h·d_v), `W_o` (h·d_v, d_out), with `heads` (1), `scale` (1/√d_k) and `mask`
        ("causal", or (T, T) of 1 for visible and 0 for hidden); or a later stage: `Q` and `K`,
        `scores` or `weights`, and `V`. With several heads, a matrix may be a list of one per head.
        `printed` holds matrices by stage: Q, K, V, scores, scaled scores, weights, head output,
        concatenated, output. `title`, `tokens`, `queries` (labels of the rows, if they are not the
        tokens) and `notes` (a sentence by stage) describe it.

    Returns
    -------
    ExampleResult
        The stages in order, each with what is printed, what we compute, and what follows.

    Raises
    ------
    InputError
        No such example, or a file that cannot be read or does not fit together.

    Examples
    --------
    >>> example("cat").stages[-1].from_inputs
    tensor([[0.3800, 0.4800]], dtype=torch.float64)
    """
    check_source(name, file)
    if file is not None:
        text, label = read_text(Path(file), "a JSON file", most=_MOST_BYTES), Path(file).name
        return replay(parse(text, label), label)
    label = str(name)
    text = files("attnviz").joinpath("analyses", "example", f"{label}.json").read_text("utf-8")
    return replay(parse(text, label), label)


def _check(good: object, expected: str, advice: str) -> None:
    if not good:
        raise InputError(f"Expected {expected}. {advice}")


def replay(lesson: Lesson, name: str) -> ExampleResult:
    """Compute every stage of an example twice and compare it with what is printed."""
    computed = _computed_stages(lesson)
    own, used = _compute(lesson, computed, {})
    printed = _printed(lesson, own)
    linked, linked_used = _compute(lesson, computed, printed)
    labels = _labels(lesson, used)
    stages: dict[Key, ReplayedStage] = {}
    for key in sorted(own, key=lambda key: (STAGES[key[0]].joined, key[1])):
        if key[0] == "scaled scores" and key not in printed and used["scale", 0] == 1:
            continue  # scores times 1 are the scores
        stage = _stage(lesson, key, own[key], linked[key], labels, used)
        inputs_follow = all(_all(stages[key].from_inputs_follows) for key in linked[key].sources)
        slips = not _all(stage.from_printed_follows) or (
            inputs_follow and not _all(stage.from_inputs_follows)
        )
        notes = tuple(_notes(lesson, stage, key, linked_used))
        stages[key] = replace(stage, slips=slips, notes=notes)
    given = tuple(
        GivenMatrix(
            name if len(matrices) == 1 else f"head {head} {name}",
            *_sides(name, matrix.values, labels),
            matrix.values,
            matrix.texts,
        )
        for name, matrices in lesson.given.items()
        for head, matrix in enumerate(matrices)
    )
    return ExampleResult(name, lesson.title or name, labels[1], given, tuple(stages.values()))


def _computed_stages(lesson: Lesson) -> list[str]:
    """Return the stages that follow from what is given; raise InputError for what does not fit."""
    given = lesson.given
    options = [name for name in ("scale", "mask") if getattr(lesson, name) is not None]
    known, computed = {*given, "scale", "mask"}, []
    for name, stage in STAGES.items():
        if known.issuperset(stage.needs):
            either = f"{name} or what it is computed from, got both"
            _check(name not in given, either, 'Put what a book prints under "printed".')
            known.add(name)
            computed.append(name)
    scaled = lesson.scale != 0 and ("scores" not in given or lesson.scale is not None)
    _check(scaled, "a scale beside scores, and not 0", "Give 1 where there is none, or 1/√d_k.")
    _check(computed, "something to compute with, got too little", _BEGIN)
    needed = {need for name in computed for need in STAGES[name].needs}
    for name in [*given, *options]:
        advice = f"Give what is missing, or leave {name} out."
        _check(name in needed, f"a use for {name}, but nothing is computed with it", advice)
    for kind in ("printed", "notes"):
        for name in getattr(lesson, kind):
            expected = f"only computed stages under {kind} ({', '.join(computed)}), got {name!r}"
            _check(name in computed, expected, did_you_mean(name, computed) or "Remove it.")
    if lesson.heads == 1 and not {"W_o", "concatenated"} & {*given, *lesson.printed}:
        computed = [name for name in computed if name != "concatenated"]  # it is the head's output
    return computed


def _inputs(lesson: Lesson) -> dict[Key, Any]:
    """Return the matrices that are given, one for each head."""
    inputs: dict[Key, Any] = {}
    heads = int(lesson.heads)
    for name, matrices in lesson.given.items():
        values = [matrix.values for matrix in matrices]
        if len(values) == 1 and name in ("X", "W_o"):
            values *= heads
        elif len(values) == 1 and heads > 1 and name not in ("scores", "weights"):
            split = values[0].shape[1] % heads == 0
            _check(split, f"heads that divide the columns of {name}", "They stand side by side.")
            values = list(values[0].chunk(heads, dim=1))
        alike = len(values) == heads and len({value.shape for value in values}) == 1
        _check(alike, f"{name} as {heads} matrices of one shape", "Give one for each head.")
        for head, value in enumerate(values):
            inputs[name, head] = Rounded(value, torch.zeros_like(value))
    return inputs


def _compute(
    lesson: Lesson, computed: list[str], printed: dict[Key, Rounded]
) -> tuple[dict[Key, Rounded], dict[Key, Any]]:
    """Return our stages, and what later stages are computed from: the printed one, if any."""
    own: dict[Key, Rounded] = {}
    used = _inputs(lesson)
    heads = range(int(lesson.heads))
    for name in computed:
        stage = STAGES[name]
        for head in heads[:1] if stage.joined else heads:
            if name == "scaled scores":
                scale = lesson.scale
                if scale is None:
                    scale = used["Q", 0].value.shape[1] ** -0.5
                used["scale", head] = float(scale)
            elif name == "weights":
                used["mask", head] = _mask(lesson, used["scaled scores", 0].value)
            operands = [used[need, head] for need in stage.needs]
            if name == "concatenated":
                operands = [used["head output", head] for head in heads]
            try:
                own[name, head] = stage.compute(*operands)
            except RuntimeError:
                shapes = " and ".join(
                    f"{need} {tuple(operand.value.shape)}"
                    for need, operand in zip(stage.needs, operands, strict=False)
                )
                _check(
                    False,
                    f"matrices that fit for {name}, got {shapes}",
                    "Perhaps one is transposed.",
                )
            used[name, head] = printed.get((name, head), own[name, head])
    return own, used


def _mask(lesson: Lesson, scores: Tensor) -> Tensor | None:
    if lesson.mask is None:
        return None
    m, n = scores.shape
    causal = torch.ones(m, m, dtype=torch.bool).tril()
    visible = lesson.mask.values == 1 if lesson.mask else causal
    fits = visible.shape == (m, n) and {cell for row in lesson.mask for cell in row} <= {0, 1}
    expected = f"a mask of 0 and 1 in the shape of the scores, {(m, n)}"
    _check(fits, expected, "1 is visible, 0 is hidden.")
    return hide(~visible)


def _printed(lesson: Lesson, own: dict[Key, Rounded]) -> dict[Key, Rounded]:
    """Return the printed stages without the columns of heads of which nothing is given."""
    printed = {}
    for name, matrices in lesson.printed.items():
        count = 1 if STAGES[name].joined else int(lesson.heads)
        _check(len(matrices) == count, f"{count} matrices under printed {name}", "One per head.")
        for head, matrix in enumerate(matrices):
            if matrix is None:
                continue
            m, n = own[name, head].value.shape
            values = matrix.values
            wider = name == "concatenated" and values.shape[1] > n
            fits = len(values) == m and (values.shape[1] == n or wider)
            _check(fits, f"printed {name} of shape {(m, n)}, as computed", "Rows are tokens.")
            slack = torch.full_like(values[:, :n], _half_unit(matrix))
            printed[name, head] = Rounded(values[:, :n], slack, frozenset({(name, head)}))
    return printed


def _half_unit(matrix: Matrix) -> float:
    return 0.5 * 10.0**-matrix.decimals


def _stage(
    lesson: Lesson,
    key: Key,
    own: Rounded,
    linked: Rounded,
    labels: tuple[Labels, Labels],
    used: dict[Key, Any],
) -> ReplayedStage:
    """Compare one stage of one head with what is printed."""
    name, head = key
    stage = STAGES[name]
    printed = lesson.printed[name][head] if name in lesson.printed else None
    sources = {source for source, _ in linked.sources}
    scale = used.get(("scale", 0), 1.0)
    unscaled = lesson.scale is None and ("Q", 0) in used
    formula = stage.formula.format(
        scale=f"/ √{used['Q', 0].value.shape[1]}" if unscaled else f"· {scale:.4g}",
        scaled="scores" if scale == 1 else "scaled scores",
        mask="" if lesson.mask is None else " + mask",
        heads="A of all heads" if lesson.heads == 1 else f"[A_0, …, A_{lesson.heads - 1}]",
    )

    def slack(ours: Rounded) -> Tensor | None:
        if printed is None:
            return None
        binary = _BINARY * (1.0 + float(ours.value.abs().max()))
        return ours.slack + _half_unit(printed) + binary

    return ReplayedStage(
        name=name,
        title=stage.title,
        formula=formula,
        head=head if lesson.heads > 1 and not stage.joined else None,
        rows=_sides(name, own.value, labels)[0],
        columns=_sides(name, own.value if printed is None else printed.values, labels)[1],
        printed=None if printed is None else printed.values,
        texts=() if printed is None else printed.texts,
        decimals=None if printed is None else printed.decimals,
        from_inputs=own.value,
        from_printed=linked.value if sources else None,
        sources=tuple(source for source in STAGES if source in sources),
        slack_from_inputs=slack(own),
        slack_from_printed=slack(linked) if sources else None,
    )


def _notes(lesson: Lesson, stage: ReplayedStage, key: Key, used: dict[Key, Any]) -> list[str]:
    """Return what is known of a stage beyond its numbers."""
    name, head = key
    notes = [lesson.notes[name]] if name in lesson.notes else []
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
    if name == "head output" and "weights" in lesson.given:
        rounding = _half_unit(lesson.given["weights"][head]) * used["weights", head].value.shape[1]
        totals = used["weights", head].value.sum(1).tolist()
        notes += [
            f"The weights of “{row}” sum to {total:.4g}, not to 1"
            for row, total in zip(stage.rows, totals, strict=True)
            if abs(total - 1) > rounding + 1e-9
        ]
    if name == "weights":
        mask = used["mask", head]
        hidden = [] if mask is None else mask.isinf().all(1).tolist()
        notes += [
            f"“{row}” sees no token: its weights are 0"
            for row, is_hidden in zip(stage.rows, hidden, strict=False)
            if is_hidden
        ]
        notes += _scale_note(stage, used["scaled scores", head], mask, used["scale", head])
    return notes


def _scale_note(
    stage: ReplayedStage, scaled: Rounded, mask: Tensor | None, scale: float
) -> list[str]:
    """Return at which scale weights that do not follow would follow, or that none exists.

    In a softmax, log(w_ij / w_ik) = scale · (s_ij - s_ik) for every pair of cells of a row. Each
    pair leaves an interval of scales, as wide as rounding makes it; where two intervals are
    disjoint, no scale gives the weights.
    """
    follows = stage.from_printed_follows if stage.sources else stage.from_inputs_follows
    if follows is None or stage.printed is None or stage.decimals is None or follows.all():
        return []
    unit, scores = 0.5 * 10.0**-stage.decimals, scaled * (1 / scale)
    intervals = []
    for i, weights in enumerate(stage.printed.tolist()):
        for j, k in combinations(range(len(weights)), 2):
            gap = float(scores.value[i, j] - scores.value[i, k])
            loose = float(scores.slack[i, j] + scores.slack[i, k])
            hidden = mask is not None and bool(mask[i, [j, k]].any())
            # A weight that is printed as 0 may be as small as it likes.
            if hidden or min(weights[j], weights[k]) <= unit or abs(gap) <= loose + 1e-12:
                continue
            ends = [
                math.log((weights[j] + sign * unit) / (weights[k] - sign * unit)) / (gap + shift)
                for sign in (-1, 1)
                for shift in (-loose, loose)
            ]
            pair = f"“{stage.columns[j]}” and “{stage.columns[k]}” in row “{stage.rows[i]}”"
            intervals.append((min(ends), max(ends), pair))
    if not intervals:
        return []
    least, most = max(intervals), min(intervals, key=lambda interval: interval[1])
    if least[0] > most[1]:
        return [
            f"No scale makes these weights from the scores: {least[2]} ask for {least[0]:.2f} or "
            f"more, {most[2]} for {most[1]:.2f} or less"
        ]
    for other in (1.0, (least[0] + most[1]) / 2):  # a forgotten scale is the most common error
        ours = (scores * other).softmax(mask)
        if ((ours.value - stage.printed).abs() <= unit + ours.slack + _BINARY).all():
            return [f"They would follow with the scale {other:.4g} instead of {scale:.4g}"]
    return []


def _labels(lesson: Lesson, used: dict[Key, Any]) -> tuple[Labels, Labels]:
    """Return the labels of what attends and of what is attended to."""
    name = next(name for name in ("weights", "Q", "K", "V") if (name, 0) in used)
    m, n = used[name, 0].value.shape
    n = n if name == "weights" else m
    tokens = tuple(lesson.tokens or map(str, range(n)))
    queries = tuple(lesson.queries or (tokens if m == n else map(str, range(m))))
    _check(len(tokens) == n, f"{n} tokens, got {len(tokens)}", "Name each key once.")
    _check(len(queries) == m, f"{m} queries, got {len(queries)}", "Name each row once.")
    return queries, tokens


def _sides(name: str, values: Tensor, labels: tuple[Labels, Labels]) -> tuple[Labels, Labels]:
    """Return the labels of rows and columns: tokens, or features, which are counted from 0."""
    rows, columns = (tuple(map(str, range(count))) for count in values.shape)
    queries, tokens = labels
    if not name.startswith("W_"):
        rows = tokens if name in ("K", "V") else queries
    return rows, tokens if name in ("scores", "scaled scores", "weights") else columns


def _all(follows: Tensor | None) -> bool:
    return follows is None or bool(follows.all())
