"""Replay a worked example: what a book prints, computed again stage by stage from its numbers.

Every stage is computed twice: from the inputs, and from the printed stages before it. In the second
pass a printed stage replaces ours, and the largest error that its rounding can cause is carried
along.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from importlib.resources import files
from itertools import combinations
from operator import matmul, mul
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from attnviz.analyses.example.bundled import check_source
from attnviz.analyses.example.result import ExampleResult, GivenMatrix, ReplayedStage
from attnviz.errors import InputError, did_you_mean, first_line
from attnviz.formula.attention import hide, masked_scores, merge_heads, softmax
from attnviz.io.files import read_text

_MATRICES = ("X", "W_q", "W_k", "W_v", "W_o", "Q", "K", "V", "scores", "weights")
FIELDS = (*_MATRICES, "heads", "scale", "mask", "printed", "title", "tokens", "queries", "notes")
_MOST_BYTES, _MOST_ROWS, _MOST_HEADS, _LARGEST = 1_000_000, 32, 16, 10**9
_BINARY = 1e-12  # of the largest number: the error of decimal fractions in float64
_COARSE = 10  # rounding that moves a cell by more of its half units hides visible errors
Labels = tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Decimals:
    """Numbers with the digits of the file, (heads, m, n); heads is 1 for a single matrix."""

    cells: NDArray[Any]

    @property
    def values(self) -> Tensor:
        """The numbers in float64."""
        return torch.from_numpy(self.cells.astype(np.float64))

    def texts(self, head: int) -> tuple[tuple[str, ...], ...]:
        """Return the numbers of one head with their digits."""
        return tuple(tuple(map(str, row)) for row in self.cells[head])

    def digits(self, head: int) -> int:
        """Return the digits after the point, in the cell of one head that has most."""
        return max(max(0, -int(cell.as_tuple().exponent)) for cell in self.cells[head].flat)


@dataclass(frozen=True, eq=False)
class Lesson:
    """The fields of a worked example."""

    title: str
    tokens: Labels
    queries: Labels
    given: dict[str, Decimals]
    heads: int
    scale: float | None
    mask: Decimals | str | None  # "causal", or 1 for visible and 0 for hidden
    printed: dict[str, Decimals]
    notes: dict[str, str]


def parse(text: str, name: str) -> Lesson:
    """Return the example in a JSON text; raise InputError if it is not one."""
    try:
        data = json.loads(text, parse_float=Decimal, parse_int=Decimal)
        good = isinstance(data, dict)
        _check(good, f'{name} is not a JSON object. Write {{"X": [[…]], "W_q": [[…]], …}}.')
        for field in data:
            hint = did_you_mean(field, FIELDS) or f"Use {', '.join(FIELDS)}."
            _check(field in FIELDS, f"{name} has an unknown field {field!r}. {hint}")
        heads, scale, mask = data.get("heads", 1), data.get("scale"), data.get("mask")
        good = heads in range(1, _MOST_HEADS + 1)
        _check(good, f"heads must be a whole number from 1 to {_MOST_HEADS}.")
        for field in ("printed", "notes"):
            good = isinstance(data.get(field, {}), dict)
            _check(good, f'{field} must be an object, such as {{"weights": …}}.')
        printed = data.get("printed", {}).items()
        return Lesson(
            title=str(data.get("title", "")),
            tokens=tuple(map(str, data.get("tokens") or ())),
            queries=tuple(map(str, data.get("queries") or ())),
            given={key: _matrix(data[key], key) for key in _MATRICES if key in data},
            heads=int(heads),
            scale=None if scale is None else float(_number(scale, "scale")),
            mask=mask if mask is None or mask == "causal" else _matrix(mask, "mask"),
            printed={key: _matrix(value, f"printed {key}") for key, value in printed},
            notes={key: str(note) for key, note in data.get("notes", {}).items()},
        )
    except InputError:
        raise
    except (TypeError, ValueError, ArithmeticError, RecursionError) as error:
        problem = f"{name} is not a worked example in JSON: {first_line(error)}."
        raise InputError(f"{problem} Write it as in the guide on steps.") from None


def _check(good: bool, message: str) -> None:
    if not good:
        raise InputError(message)


def _number(value: Any, name: str) -> Decimal:
    good = isinstance(value, Decimal | bool) and -_LARGEST <= value <= _LARGEST
    shown = json.dumps(value, default="{:.3g}".format)
    _check(good, f"{shown:.40} in {name} is not a number up to {_LARGEST:,}. Write 0.5.")
    return Decimal(value)  # true and false in a mask are 1 and 0


def _matrix(value: Any, name: str) -> Decimals:
    """Return one matrix, or one for each head."""
    cells = np.array(value, dtype=object)
    if cells.ndim == 2:
        cells = cells[None]
    ragged = any(isinstance(cell, list) for cell in cells.flat)
    good = cells.ndim == 3 and cells.size > 0 and not ragged
    _check(good, f"{name} must have rows of equal length, such as [[1, 2], [3, 4]].")
    small = max(cells.shape[1:]) <= _MOST_ROWS
    _check(small, f"{name} has more than {_MOST_ROWS} rows or columns. Use fewer.")
    for index in np.ndindex(cells.shape):
        cells[index] = _number(cells[index], name)
    return Decimals(cells)


@dataclass(frozen=True, eq=False)
class Rounded:
    """Matrices (heads, m, n), the largest error of each cell, and the printed sources."""

    value: Tensor
    slack: Tensor
    sources: frozenset[str] = frozenset()

    def __matmul__(self, other: Rounded) -> Rounded:
        """|(a ± δ)(b ± ε) - ab| is at most |a| ε + δ (|b| + ε)."""
        slack = self.value.abs() @ other.slack + self.slack @ (other.value.abs() + other.slack)
        return Rounded(self.value @ other.value, slack, self.sources | other.sources)

    def __mul__(self, factor: float) -> Rounded:
        """Scale the numbers and their errors."""
        return Rounded(self.value * factor, self.slack * abs(factor), self.sources)

    def scores(self, keys: Rounded) -> Rounded:
        """Return QKᵀ."""
        return self @ Rounded(keys.value.mT, keys.slack.mT, keys.sources)

    def softmax(self, mask: Tensor | None = None) -> Rounded:
        """A weight is smallest where its own score is smallest and all others are largest."""
        low, value, high = (
            scores if mask is None else masked_scores(scores, mask)
            for scores in (self.value - self.slack, self.value, self.value + self.slack)
        )
        weights = softmax(value)
        slack = torch.maximum(weights - _softmax_of(low, high), _softmax_of(high, low) - weights)
        return Rounded(weights, slack.clamp(min=0), self.sources)

    def side_by_side(self) -> Rounded:
        """Return the heads as one matrix."""
        value, slack = merge_heads(self.value), merge_heads(self.slack)
        return Rounded(value[None], slack[None], self.sources)


def _softmax_of(cells: Tensor, others: Tensor) -> Tensor:
    """Return each cell's weight with its score from one matrix and the rest from another."""
    is_cell = torch.eye(cells.shape[-1], dtype=torch.bool)
    mixed = torch.where(is_cell, cells.unsqueeze(-2), others.unsqueeze(-2))
    return softmax(mixed).diagonal(dim1=-2, dim2=-1)


class Stage(NamedTuple):
    """How a stage is computed; `joined` if it is one matrix of all heads."""

    title: str
    formula: str
    needs: tuple[str, ...]
    compute: Callable[..., Rounded]
    joined: bool = False


STAGES = {
    "Q": Stage("Queries Q", "Q = X W_q", ("X", "W_q"), matmul),
    "K": Stage("Keys K", "K = X W_k", ("X", "W_k"), matmul),
    "V": Stage("Values V", "V = X W_v", ("X", "W_v"), matmul),
    "scores": Stage("Scores", "QKᵀ", ("Q", "K"), Rounded.scores),
    "scaled scores": Stage("Scaled scores", "QKᵀ {scale}", ("scores", "scale"), mul),
    "weights": Stage(
        "Weights W", "W = softmax({scaled}{mask})", ("scaled scores", "mask"), Rounded.softmax
    ),
    "head output": Stage("Attention vectors A", "A = W V", ("weights", "V"), matmul),
    "concatenated": Stage(
        "All heads, side by side", "{heads}", ("head output",), Rounded.side_by_side, joined=True
    ),
    "output": Stage("Output", "heads W_o", ("concatenated", "W_o"), matmul, joined=True),
}


def example(
    name: str | None = None, *, file: str | os.PathLike[str] | None = None
) -> ExampleResult:
    """Replay a worked example: every stage from the inputs, and from the printed stages before it.

    A printed cell follows if it differs from our float64 number by at most half a unit of the
    matrix's last digit, plus the largest error that the rounding of the printed cells before it can
    cause. A stage has a slip if a cell does not follow from the nearest printed stages, or does not
    follow from the inputs although those stages do.

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
        The stages in order, each with the printed numbers, ours, and which cells follow.

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
        text, label = read_text(Path(file), most=_MOST_BYTES), Path(file).name
        return replay(parse(text, label), label)
    text = files("attnviz").joinpath("analyses", "example", f"{name}.json").read_text("utf-8")
    return replay(parse(text, str(name)), str(name))


def replay(lesson: Lesson, name: str) -> ExampleResult:
    """Compute every stage of an example twice and compare it with the printed stage."""
    computed = _computed_stages(lesson)
    labels = _labels(lesson)
    ours: dict[str, Any] = {**_inputs(lesson), "mask": _mask(lesson, labels)}
    linked = dict(ours)  # the same, with printed stages in place of ours
    stages: list[ReplayedStage] = []
    for key in computed:
        if key == "scaled scores":
            ours["scale"] = lesson.scale or ours["Q"].value.shape[2] ** -0.5
            linked["scale"] = ours["scale"]
        ours[key], recomputed = _apply(key, ours), _apply(key, linked)
        linked[key] = _printed(lesson, key, ours[key]) if key in lesson.printed else recomputed
        if key == "scaled scores" and key not in lesson.printed and ours["scale"] == 1:
            continue  # scores times 1 are the scores
        for head in range(len(ours[key].value)):
            stage = _compare(lesson, key, head, ours, recomputed, labels)
            sources_follow = all(
                _all(source.from_inputs_follows)
                for source in stages
                if source.name in stage.sources and stage.head in (None, source.head)
            )
            slips = not _all(stage.from_printed_follows) or (
                sources_follow and not _all(stage.from_inputs_follows)
            )
            notes = tuple(_notes(lesson, stage, head, linked))
            stages.append(replace(stage, slips=slips, notes=notes))
    stages.sort(key=lambda stage: (STAGES[stage.name].joined, stage.head or 0))
    given = []
    for key, matrix in lesson.given.items():
        for head, values in enumerate(matrix.values):
            label = key if len(matrix.values) == 1 else f"head {head} {key}"
            sides = _sides(key, values, labels)
            given.append(GivenMatrix(label, *sides, values, matrix.texts(head)))
    return ExampleResult(name, lesson.title or name, labels[1], tuple(given), tuple(stages))


def _computed_stages(lesson: Lesson) -> list[str]:
    """Return the stages that follow from what is given; raise InputError for what does not fit."""
    given = lesson.given
    known, computed = {*given, "scale", "mask"}, []
    used: set[str] = set()
    for name, stage in STAGES.items():
        if known.issuperset(stage.needs):
            problem = f"{name} is given, and so is what it is computed from."
            _check(name not in given, f'{problem} Put what a book prints under "printed".')
            known.add(name)
            used.update(stage.needs)
            computed.append(name)
    start = "X with W_q, W_k and W_v; or Q and K; or scores with a scale; or weights and V"
    _check(bool(computed), f"Nothing can be computed from what is given. Give {start}.")
    has_scale = lesson.scale != 0 and ("scores" not in given or lesson.scale is not None)
    _check(has_scale, "scores need a scale that is not 0. Give 1 for none, or 1/√d_k.")
    options = {"scale": lesson.scale, "mask": lesson.mask}
    for name in [*given, *(name for name, value in options.items() if value is not None)]:
        problem = f"{name} is given, but nothing is computed with it."
        _check(name in used, f"{problem} Give what is missing, or remove {name}.")
    for name in [*lesson.printed, *lesson.notes]:
        hint = did_you_mean(name, computed) or f"Use {', '.join(computed)}."
        _check(name in computed, f"{name!r} under printed or notes is not computed. {hint}")
    if lesson.heads == 1 and not {"W_o", "concatenated"} & {*given, *lesson.printed}:
        return [name for name in computed if name != "concatenated"]  # it is the head's output
    return computed


def _inputs(lesson: Lesson) -> dict[str, Rounded]:
    """Return the given matrices, (heads, m, n), but X and W_o (1, m, n)."""
    inputs = {}
    for name, matrix in lesson.given.items():
        values = matrix.values
        heads = 1 if name in ("X", "W_o") else lesson.heads
        if len(values) == 1 < heads and name not in ("scores", "weights"):
            divides = values.shape[2] % heads == 0
            _check(divides, f"The columns of {name} cannot be divided among {heads} heads.")
            values = torch.stack(values[0].chunk(heads, dim=1))
        _check(len(values) == heads, f"{name} must have {heads} matrices of one shape.")
        inputs[name] = Rounded(values, torch.zeros_like(values))
    return inputs


def _labels(lesson: Lesson) -> tuple[Labels, Labels]:
    """Return the labels of the queries and of the keys."""
    shapes = {name: matrix.cells.shape[1:] for name, matrix in lesson.given.items()}
    squares = [shapes[name] for name in ("weights", "scores") if name in shapes]
    m = [shapes[name][0] for name in ("Q", "X", "K", "V") if name in shapes]
    n = [shapes[name][0] for name in ("K", "X", "Q", "V") if name in shapes]
    rows, columns = squares[0] if squares else (m[0], n[0])
    tokens = lesson.tokens or tuple(map(str, range(columns)))
    queries = lesson.queries or (tokens if rows == columns else tuple(map(str, range(rows))))
    for name, labels, count in (("tokens", tokens, columns), ("queries", queries, rows)):
        _check(len(labels) == count, f"{name} must have {count} labels, not {len(labels)}.")
    return queries, tokens


def _mask(lesson: Lesson, labels: tuple[Labels, Labels]) -> Tensor | None:
    m, n = map(len, labels)
    if lesson.mask is None:
        return None
    causal = torch.ones(1, m, m).tril()
    visible = causal if isinstance(lesson.mask, str) else lesson.mask.values
    fits = visible.shape == (1, m, n) and bool(((visible == 0) | (visible == 1)).all())
    _check(fits, f"mask must have 1 (visible) or 0 (hidden) for each of the scores, {(m, n)}.")
    return hide(visible[0] == 0)


def _apply(name: str, operands: dict[str, Any]) -> Rounded:
    """Return a stage computed from its operands; raise InputError if their shapes do not fit."""
    needs = STAGES[name].needs
    try:
        return STAGES[name].compute(*(operands[need] for need in needs))
    except RuntimeError:
        shapes = " and ".join(f"{need} {tuple(operands[need].value.shape[1:])}" for need in needs)
        raise InputError(
            f"The shapes do not fit for {name}: {shapes}. Perhaps one is transposed."
        ) from None


def _printed(lesson: Lesson, name: str, ours: Rounded) -> Rounded:
    """Return a printed stage, without columns of heads that are not given."""
    heads, m, n = ours.value.shape
    matrix = lesson.printed[name]
    values = matrix.values[:, :, :n]
    fits = values.shape == ours.value.shape
    if name != "concatenated":
        fits = fits and matrix.values.shape[2] == n
    shape = f"{(m, n)}" if heads == 1 else f"{(m, n)} for each of {heads} heads"
    _check(fits, f"printed {name} must have the shape {shape}, as computed.")
    half_units = [0.5 * 10.0 ** -matrix.digits(head) for head in range(heads)]
    slack = torch.tensor(half_units, dtype=torch.float64)[:, None, None].expand_as(values)
    return Rounded(values, slack, frozenset({name}))


def _compare(
    lesson: Lesson,
    name: str,
    head: int,
    operands: dict[str, Any],
    recomputed: Rounded,
    labels: tuple[Labels, Labels],
) -> ReplayedStage:
    """Compare one stage of one head with what is printed."""
    stage, ours, printed = STAGES[name], operands[name], lesson.printed.get(name)
    scale = operands.get("scale", 1)
    root = f"/ √{operands['Q'].value.shape[2]}" if lesson.scale is None and "Q" in operands else ""

    def slack(computed: Rounded) -> Tensor | None:
        if printed is None:
            return None
        binary = _BINARY * (1.0 + float(computed.value[head].abs().max()))
        return computed.slack[head] + 0.5 * 10.0 ** -printed.digits(head) + binary

    shown = ours.value[head] if printed is None else printed.values[head]
    return ReplayedStage(
        name=name,
        title=stage.title,
        formula=stage.formula.format(
            scale=root or f"· {scale:.4g}",
            scaled="scores" if scale == 1 else "scaled scores",
            mask="" if lesson.mask is None else " + mask",
            heads="A of all heads" if lesson.heads == 1 else f"[A_0, …, A_{lesson.heads - 1}]",
        ),
        head=head if lesson.heads > 1 and not stage.joined else None,
        rows=_sides(name, shown, labels)[0],
        columns=_sides(name, shown, labels)[1],
        printed=None if printed is None else shown,
        texts=() if printed is None else printed.texts(head),
        decimals=None if printed is None else printed.digits(head),
        from_inputs=ours.value[head],
        from_printed=recomputed.value[head] if recomputed.sources else None,
        sources=tuple(source for source in STAGES if source in recomputed.sources),
        slack_from_inputs=slack(ours),
        slack_from_printed=slack(recomputed) if recomputed.sources else None,
    )


def _sides(name: str, values: Tensor, labels: tuple[Labels, Labels]) -> tuple[Labels, Labels]:
    """Return the labels of rows and columns: tokens, or positions of features."""
    rows, columns = (tuple(map(str, range(count))) for count in values.shape)
    queries, tokens = labels
    if not name.startswith("W_"):
        rows = tokens if name in ("K", "V") else queries
    return rows, tokens if name in ("scores", "scaled scores", "weights") else columns


def _all(follows: Tensor | None) -> bool:
    return follows is None or bool(follows.all())


def _notes(lesson: Lesson, stage: ReplayedStage, head: int, operands: dict[str, Any]) -> list[str]:
    """Return the sentences about a stage beyond its numbers."""
    notes = [lesson.notes[stage.name]] if stage.name in lesson.notes else []
    if stage.untold:
        reason = notes or [f"what is given makes {stage.from_inputs.shape[1]} of its columns"]
        notes = [f"{stage.untold} printed cells cannot be checked: {reason[0]}"]
    if stage.slack_from_printed is not None and stage.decimals is not None:
        error = float(stage.slack_from_printed.max())
        if error > _COARSE * 0.5 * 10.0**-stage.decimals:
            notes.append(
                f"The printed {' and '.join(stage.sources)} are too coarse for a closer "
                f"check: their rounding can move a cell by {error:.2g}"
            )
    if stage.name == "head output" and "weights" in lesson.given:
        weights = operands["weights"].value[head]
        rounding = 0.5 * 10.0 ** -lesson.given["weights"].digits(head) * weights.shape[1]
        notes += [
            f"The weights of “{row}” sum to {total:.4g}, not to 1"
            for row, total in zip(stage.rows, weights.sum(1).tolist(), strict=True)
            if abs(total - 1) > rounding + 1e-9
        ]
    if stage.name == "weights" and operands["mask"] is not None:
        hidden = operands["mask"].isinf().all(-1).tolist()
        notes += [
            f"“{row}” has no visible key, so its weights are 0"
            for row, is_hidden in zip(stage.rows, hidden, strict=True)
            if is_hidden
        ]
    follows = stage.from_printed_follows if stage.sources else stage.from_inputs_follows
    if stage.name == "weights" and not _all(follows):
        scaled, scale = operands["scaled scores"], operands["scale"]
        scores = Rounded(scaled.value[head], scaled.slack[head]) * (1 / scale)
        notes += _scale_notes(stage, scores, scale, operands["mask"])
    return notes


def _scale_notes(
    stage: ReplayedStage, scores: Rounded, scale: float, mask: Tensor | None
) -> list[str]:
    """Return at which scale weights that do not follow would follow, or that none exists.

    In a softmax, log(w_ij / w_ik) = scale · (s_ij - s_ik) for every pair of cells of a row. Each
    pair leaves an interval of scales, as wide as rounding makes it; where two intervals are
    disjoint, no scale gives the weights.
    """
    if stage.printed is None or stage.decimals is None:
        return []
    unit, intervals = 0.5 * 10.0**-stage.decimals, []
    for i, weights in enumerate(stage.printed.tolist()):
        for j, k in combinations(range(len(weights)), 2):
            gap = float(scores.value[i, j] - scores.value[i, k])
            slack = float(scores.slack[i, j] + scores.slack[i, k])
            hidden = mask is not None and bool(mask[i, [j, k]].any())
            # A weight that is printed as 0 may be arbitrarily small.
            if hidden or min(weights[j], weights[k]) <= unit or abs(gap) <= slack + 1e-12:
                continue
            ends = [
                math.log((weights[j] + sign * unit) / (weights[k] - sign * unit)) / (gap + shift)
                for sign in (-1, 1)
                for shift in (-slack, slack)
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
