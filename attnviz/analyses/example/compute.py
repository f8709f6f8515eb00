"""Replay a worked example: what a book prints, computed again stage by stage from its numbers.

Every stage is computed twice: from the inputs, and from the printed stages before it. In the second
pass a printed stage replaces ours, and the largest error that its rounding can cause is carried
along. A printed stage that the inputs give exactly is not rounded.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from importlib.resources import files
from itertools import combinations
from operator import itemgetter, matmul, mul
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from attnviz.analyses.example import check_source
from attnviz.analyses.example.result import ExampleResult, GivenMatrix, ReplayedStage
from attnviz.errors import InputError, expect_names, first_line
from attnviz.formula.attention import hide, masked_scores, merge_heads, softmax
from attnviz.io.files import read_text
from attnviz.results.arguments import checked_scalars

_MATRICES = ("X", "W_q", "W_k", "W_v", "W_o", "Q", "K", "V", "scores", "weights")
FIELDS = (*_MATRICES, "heads", "scale", "mask", "printed", "title", "tokens", "queries", "notes")
_MOST_BYTES, _MOST_ROWS, _MOST_HEADS, _LARGEST = 1_000_000, 32, 16, 10**9
_BINARY = 1e-12  # of the largest number: the error of decimal fractions in float64
_EXACT = 1e-9  # of a source that is not rounded; its numbers have at most nine digits
_COARSE = 10  # rounding that moves a cell by more of its half units hides visible errors
_START = "Give X with W_q, W_k and W_v; or Q and K; or scores with a scale; or weights and V."

Labels = tuple[str, ...]


class Matrices(NamedTuple):
    """Matrices (heads, m, n), the largest error of each cell, and the printed stages behind it."""

    values: Tensor
    slack: Tensor = torch.zeros((), device="cpu")
    sources: frozenset[str] = frozenset()
    texts: tuple[tuple[Labels, ...], ...] = ()  # of each head, with the digits of the file
    decimals: tuple[int, ...] = ()  # the digits after the point, of each head


@dataclass(frozen=True, eq=False)
class Lesson:
    """The fields of a worked example."""

    title: str
    tokens: Labels
    queries: Labels
    given: dict[str, Matrices]
    heads: int
    scale: float | None
    mask: Tensor | str | None  # "causal", or 1 for visible and 0 for hidden
    printed: dict[str, Matrices]
    notes: dict[str, str]


def parse(text: str, name: str) -> Lesson:
    """Return the example in a JSON text; raise InputError if it is not one."""
    try:
        data = json.loads(text, parse_float=Decimal, parse_int=Decimal)
        is_object = isinstance(data, dict)
        _check(is_object, f'{name} is not a JSON object. Write {{"X": [[…]], "W_q": [[…]], …}}.')
        expect_names(data, FIELDS, f"a field of {name}")
        heads, scale, mask = data.get("heads", 1), data.get("scale"), data.get("mask")
        is_count = heads in range(1, _MOST_HEADS + 1)
        _check(is_count, f"heads must be a whole number from 1 to {_MOST_HEADS}.")
        _check(scale != 0, "scale must not be 0. Give 1 for none, or 1/√d_k.")
        printed, notes = (data.get(field, {}).items() for field in ("printed", "notes"))
        return Lesson(
            title=str(data.get("title", "")) or name,
            tokens=tuple(map(str, data.get("tokens") or ())),
            queries=tuple(map(str, data.get("queries") or ())),
            given={key: _matrices(data[key], key) for key in _MATRICES if key in data},
            heads=int(heads),
            scale=None if scale is None else float(_matrices([[scale]], "scale").values),
            mask=mask if mask is None or mask == "causal" else _matrices(mask, "mask").values,
            printed={key: _matrices(value, f"printed {key}") for key, value in printed},
            notes={key: str(note) for key, note in notes},
        )
    except InputError:
        raise
    except (TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
        problem = f"{name} is not a worked example in JSON: {first_line(error)}."
        raise InputError(f"{problem} Write it as in the guide on steps.") from None


def _check(good: bool, message: str) -> None:
    if not good:
        raise InputError(message)


def _matrices(value: Any, name: str) -> Matrices:
    """Return one matrix, or one for each head, with half a unit of the last digit as error."""
    cells = np.array(value, dtype=object)
    cells = cells[None] if cells.ndim == 2 else cells
    good = cells.ndim == 3 and cells.size > 0 and max(cells.shape[1:]) <= _MOST_ROWS
    for cell in cells.flat:
        good = good and isinstance(cell, Decimal | bool) and -_LARGEST <= cell <= _LARGEST
    size = f"at most {_MOST_ROWS} × {_MOST_ROWS} numbers up to {_LARGEST:,}"
    _check(good, f"{name} must have rows of equal length, {size}, such as [[1, 2], [3, 4]].")
    cells[...] = np.vectorize(Decimal, otypes=[object])(cells)  # true and false are 1 and 0
    values = torch.from_numpy(cells.astype(np.float64))
    exponents = [[-cell.as_tuple().exponent for cell in matrix.flat] for matrix in cells]
    decimals = tuple(max(0, *digits) for digits in exponents)
    halves = 0.5 * 10.0 ** -torch.tensor(decimals, dtype=torch.float64, device="cpu")
    texts = tuple(tuple(tuple(map(str, row)) for row in matrix) for matrix in cells)
    return Matrices(values, halves[:, None, None].expand_as(values), texts=texts, decimals=decimals)


class Stage(NamedTuple):
    """How a stage is computed; `joined` if it is one matrix of all heads."""

    title: str
    formula: str
    needs: tuple[str, ...]
    compute: Callable[..., Tensor]
    joined: bool = False


STAGES = {
    "Q": Stage("Queries Q", "Q = X W_q", ("X", "W_q"), matmul),
    "K": Stage("Keys K", "K = X W_k", ("X", "W_k"), matmul),
    "V": Stage("Values V", "V = X W_v", ("X", "W_v"), matmul),
    "scores": Stage("Scores", "QKᵀ", ("Q", "K"), lambda Q, K: Q @ K.mT),
    "scaled scores": Stage("Scaled scores", "QKᵀ {scale}", ("scores", "scale"), mul),
    "weights": Stage(
        "Weights W",
        "W = softmax({scaled}{mask})",
        ("scaled scores", "mask"),
        lambda scores, mask: softmax(masked_scores(scores, mask)),
    ),
    "head output": Stage("Attention vectors A", "A = W V", ("weights", "V"), matmul),
    "concatenated": Stage(
        "All heads, side by side",
        "A of all heads",
        ("head output",),
        lambda heads: merge_heads(heads).unsqueeze(0),
        joined=True,
    ),
    "output": Stage("Output", "heads W_o", ("concatenated", "W_o"), matmul, joined=True),
}


def _compute(name: str, operands: dict[str, Matrices]) -> Matrices:
    """Compute a stage, and the largest error that the errors of its operands can cause.

    All stages but the softmax are sums of products: |(a ± δ)(b ± ε) - ab| is at most
    (|a| + δ)(|b| + ε) - |a||b|. A softmax weight is largest where its own score is largest and all
    others are smallest.
    """
    _, _, needs, compute, _ = STAGES[name]
    inputs = [operands[need] for need in needs]
    try:
        values = compute(*(matrices.values for matrices in inputs))
    except RuntimeError:
        shapes = " and ".join(f"{need} {tuple(operands[need].values.shape[1:])}" for need in needs)
        problem = f"The shapes do not fit for {name}: {shapes}."
        raise InputError(f"{problem} Perhaps one is transposed.") from None
    if name == "weights":
        scores, mask = (matrices.values.unsqueeze(-2) for matrices in inputs)
        # 1 for the score of the weight, -1 for others.
        own = 2 * torch.eye(scores.shape[-1], device="cpu") - 1
        errors = own * inputs[0].slack.unsqueeze(-2)
        extremes = torch.stack([compute(scores + sign * errors, mask) for sign in (-1, 1)])
        slack = (extremes.diagonal(dim1=-2, dim2=-1) - values).abs().amax(0)
    else:
        largest = compute(*(matrices.values.abs() + matrices.slack for matrices in inputs))
        slack = largest - compute(*(matrices.values.abs() for matrices in inputs))
    binary = _BINARY * (1.0 + values.abs().amax((-2, -1), keepdim=True))
    sources = frozenset[str]().union(*(matrices.sources for matrices in inputs))
    return Matrices(values, slack + binary, sources)


@checked_scalars
def example(
    name: str | None = None, *, file: str | os.PathLike[str] | None = None
) -> ExampleResult:
    """Replay a worked example: every stage from the inputs, and from the printed stages before it.

    A printed cell follows exactly if it differs from our float64 number by at most half a unit of
    the matrix's last digit. It follows within rounding if it differs by no more than that plus the
    largest error that the rounding of the printed cells before it can cause. A printed matrix that
    the inputs give exactly is not rounded. A stage has a slip if a cell does not follow from the
    nearest printed stages, or does not follow from the inputs although those stages do.

    Parameters
    ----------
    name : str, optional
        A bundled example: "cat", "likes" or "phones".
    file : path, optional
        JSON file with your own matrices and the printed results.

        It gives `X` (T, d_model), `W_q`, `W_k` (d_model, h·d_k), `W_v` (d_model, h·d_v), `W_o`
        (h·d_v, d_out), with `heads` (1), `scale` (1/√d_k) and `mask` ("causal", or (T, T) of 1 for
        visible and 0 for hidden); or a later stage: `Q` and `K`, `scores` or `weights`, and `V`.
        With several heads, a matrix may be a list of one per head. `printed` holds matrices by
        stage: Q, K, V, scores, scaled scores, weights, head output, concatenated, output. `title`,
        `tokens`, `queries` (labels of the rows, if they are not the tokens) and `notes` (a sentence
        by stage) describe it.

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
    >>> import attnviz
    >>> attnviz.example("cat").stages[-1].from_inputs
    tensor([[0.3800, 0.4800]], dtype=torch.float64)
    """
    check_source(name, file)
    if file is not None:
        name, text = Path(file).name, read_text(Path(file), most=_MOST_BYTES)
    else:
        text = files("attnviz").joinpath("analyses", "example", f"{name}.json").read_text("utf-8")
    lesson = parse(text, str(name))
    computed = _computed_stages(lesson)
    lesson = _with_labels(lesson)
    ours = _inputs(lesson)
    linked = dict(ours)  # the same, with printed stages in place of ours
    stages: list[ReplayedStage] = []
    for key in computed:
        ours[key], recomputed = _compute(key, ours), _compute(key, linked)
        linked[key] = _printed(lesson, key, ours[key]) if key in lesson.printed else recomputed
        if key == "scaled scores" and key not in lesson.printed and ours["scale"].values == 1:
            continue  # scores times 1 are the scores
        for head in range(len(ours[key].values)):
            stage = _compare(lesson, key, head, ours, recomputed)
            slips = not _all(stage.from_printed_follows)
            if not slips and not _all(stage.from_inputs_follows):
                sources = [source for source in stages if source.name in stage.sources]
                same_head = [s for s in sources if stage.head in (None, s.head)]
                slips = all(_all(source.from_inputs_follows) for source in same_head)
            notes = tuple(_notes(lesson, stage, head, linked))
            stages.append(replace(stage, slips=slips, notes=notes))
    stages.sort(key=lambda stage: (STAGES[stage.name].joined, stage.head or 0))
    given: list[GivenMatrix] = []
    for key, matrices in lesson.given.items():
        for head, (values, texts) in enumerate(zip(matrices.values, matrices.texts, strict=True)):
            title = key if len(matrices.values) == 1 else f"head {head} {key}"
            given.append(GivenMatrix(title, *_sides(lesson, key, values), values, texts))
    return ExampleResult(str(name), lesson.title, lesson.tokens, tuple(given), tuple(stages))


def _computed_stages(lesson: Lesson) -> list[str]:
    """Return the stages that follow from what is given; raise InputError for what does not fit."""
    options = {"scale": lesson.scale, "mask": lesson.mask}
    given = {*lesson.given, *(name for name in options if options[name] is not None)}
    unused, computed = set(given), []
    known = given | ({"mask"} if "scores" in given else {"mask", "scale"})  # 1/√d_k by default
    for name, stage in STAGES.items():
        if known.issuperset(stage.needs):
            problem = f"{name} is given, and so is what it is computed from."
            _check(name not in given, f'{problem} Put what a book prints under "printed".')
            known.add(name)
            unused.difference_update(stage.needs)
            computed.append(name)
    useless = ", ".join(sorted(unused)) or "an empty example"
    _check(bool(computed) and not unused, f"Nothing can be computed from {useless}. {_START}")
    expect_names([*lesson.printed, *lesson.notes], computed, "a stage that is computed")
    if lesson.heads == 1 and not {"W_o", "concatenated"} & {*given, *lesson.printed}:
        return [name for name in computed if name != "concatenated"]  # it is the head's output
    return computed


def _with_labels(lesson: Lesson) -> Lesson:
    """Return the example with labels of the queries and of the keys, by default their positions."""
    shapes = {name: matrices.values.shape for name, matrices in lesson.given.items()}
    heights = [shapes[name][1] for name in ("weights", "scores", "Q", "X", "V") if name in shapes]
    widths = [shapes[name][2] for name in ("weights", "scores") if name in shapes]
    widths += [shapes[name][1] for name in ("K", "X", "Q", "V") if name in shapes]
    rows, columns = heights[0], widths[0]
    tokens = lesson.tokens or tuple(map(str, range(columns)))
    queries = lesson.queries or (tokens if rows == columns else tuple(map(str, range(rows))))
    fits = len(tokens) == columns and len(queries) == rows
    _check(fits, f"tokens must have {columns} labels, and queries {rows}.")
    return replace(lesson, tokens=tokens, queries=queries)


def _inputs(lesson: Lesson) -> dict[str, Matrices]:
    """Return the given matrices, (heads, m, n), but X and W_o (1, m, n), the scale and the mask."""
    inputs = {}
    for name, (values, *_) in lesson.given.items():
        heads = 1 if name in ("X", "W_o") else lesson.heads
        is_whole = len(values) == 1 and name not in ("scores", "weights")
        if is_whole and values.shape[2] % heads == 0:
            values = torch.stack(values[0].chunk(heads, dim=1))
        problem = f"{name} must have {heads} matrices of one shape"
        _check(len(values) == heads, f"{problem}, or columns that {heads} heads can share.")
        inputs[name] = values
    d_k = [inputs[name].shape[2] for name in ("Q", "W_q") if name in inputs]
    scale = d_k[0] ** -0.5 if lesson.scale is None and d_k else lesson.scale or 1.0
    inputs["scale"] = torch.tensor(scale, dtype=torch.float64, device="cpu")
    m, n = len(lesson.queries), len(lesson.tokens)
    mask = torch.ones(1, m, n, device="cpu") if lesson.mask is None else lesson.mask
    visible = torch.ones(1, m, m, device="cpu").tril() if isinstance(mask, str) else mask
    fits = visible.shape == (1, m, n) and bool(((visible == 0) | (visible == 1)).all())
    _check(fits, f"mask must have 1 (visible) or 0 (hidden) for each of the scores, {(m, n)}.")
    inputs["mask"] = hide(visible == 0)
    return {name: Matrices(values) for name, values in inputs.items()}


def _printed(lesson: Lesson, name: str, ours: Matrices) -> Matrices:
    """Return a printed stage, only of given heads; where it is exactly ours, it is not rounded."""
    heads, m, n = ours.values.shape
    values, slack, *_ = lesson.printed[name]
    columns = max(n, values.shape[2]) if name == "concatenated" else n
    shape = f"{(m, n)}" if heads == 1 else f"{(m, n)} for each of {heads} heads"
    fits = values.shape == (heads, m, columns)
    _check(fits, f"printed {name} must have the shape {shape}, as computed.")
    values, slack = values[:, :, :n], slack[:, :, :n]
    is_exact = ((values - ours.values).abs() <= ours.slack).all(2).all(1)[:, None, None]
    return Matrices(values, torch.where(is_exact, ours.slack, slack), frozenset({name}))


def _compare(
    lesson: Lesson, name: str, head: int, operands: dict[str, Matrices], recomputed: Matrices
) -> ReplayedStage:
    """Compare one stage of one head with what is printed."""
    stage, ours, printed = STAGES[name], operands[name], lesson.printed.get(name)
    scale, is_default = float(operands["scale"].values), lesson.scale is None and "Q" in operands
    is_linked = bool(recomputed.sources)
    half_unit = printed.slack[head, 0, 0] if printed else 0.0
    rows, columns = _sides(lesson, name, (printed or ours).values[head])
    return ReplayedStage(
        name=name,
        title=stage.title,
        formula=stage.formula.format(
            scale=f"/ √{operands['Q'].values.shape[2]}" if is_default else f"· {scale:.4g}",
            scaled="scores" if scale == 1 else "scaled scores",
            mask="" if lesson.mask is None else " + mask",
        ),
        head=head if lesson.heads > 1 and not stage.joined else None,
        rows=rows,
        columns=columns,
        printed=printed.values[head] if printed else None,
        texts=printed.texts[head] if printed else (),
        decimals=printed.decimals[head] if printed else None,
        from_inputs=ours.values[head],
        from_printed=recomputed.values[head] if is_linked else None,
        sources=tuple(source for source in STAGES if source in recomputed.sources),
        slack_from_inputs=ours.slack[head] + half_unit if printed else None,
        slack_from_printed=recomputed.slack[head] + half_unit if printed and is_linked else None,
    )


def _sides(lesson: Lesson, name: str, matrix: Tensor) -> tuple[Labels, Labels]:
    """Return the labels of rows and columns: tokens, or positions of features."""
    rows, columns = (tuple(map(str, range(count))) for count in matrix.shape)
    if not name.startswith("W_"):
        rows = lesson.tokens if name in ("K", "V") else lesson.queries
    return rows, lesson.tokens if name in ("scores", "scaled scores", "weights") else columns


def _all(follows: Tensor | None) -> bool:
    return follows is None or bool(follows.all())


def _notes(
    lesson: Lesson, stage: ReplayedStage, head: int, operands: dict[str, Matrices]
) -> Iterator[str]:
    """Yield the sentences about a stage beyond its numbers."""
    if stage.untold:
        columns = f"what is given makes {stage.from_inputs.shape[1]} of its columns"
        reason = lesson.notes.get(stage.name, columns)
        yield f"{stage.untold} printed cells cannot be checked: {reason}"
    elif stage.name in lesson.notes:
        yield lesson.notes[stage.name]
    if stage.slack_from_printed is not None and stage.decimals is not None:
        error = float(stage.slack_from_printed.max())
        if error > _COARSE * 0.5 * 10.0**-stage.decimals:
            coarse = " and ".join(s for s in stage.sources if operands[s].slack.max() > _EXACT)
            yield (
                f"Too coarse for a closer check: the rounding of printed {coarse} can move a cell "
                f"by {error:.2g}"
            )
    follows = stage.from_printed_follows if stage.sources else stage.from_inputs_follows
    if stage.name == "weights" and not _all(follows):
        scaled, scale, mask = (operands[name] for name in ("scaled scores", "scale", "mask"))
        values, slack = scaled.values[head] / scale.values, scaled.slack[head] / scale.values.abs()
        scores = Matrices(values, slack)
        yield from _scale_notes(stage, scores, float(scale.values), mask.values[0])


def _scale_notes(stage: ReplayedStage, scores: Matrices, scale: float, mask: Tensor) -> list[str]:
    """Return at which scale weights that do not follow would follow, or that none exists.

    In a softmax, log(w_ij / w_ik) = scale · (s_ij - s_ik) for every pair of cells of a row. Each
    pair leaves an interval of scales, as wide as rounding makes it; where two intervals are
    disjoint, no scale gives the weights.
    """
    if stage.printed is None or stage.decimals is None:
        return []
    half_unit, intervals = 0.5 * 10.0**-stage.decimals, []
    for i, weights in enumerate(stage.printed.tolist()):
        for j, k in combinations(range(len(weights)), 2):
            gap = scores.values[i, j] - scores.values[i, k]
            error = scores.slack[i, j] + scores.slack[i, k]
            # A weight that is printed as 0 may be arbitrarily small.
            is_clear = min(weights[j], weights[k]) > half_unit and gap.abs() > error + 1e-12
            if is_clear and not mask[i, [j, k]].any():
                ends = [
                    math.log((weights[j] + sign) / (weights[k] - sign)) / float(gap + shift)
                    for sign in (-half_unit, half_unit)
                    for shift in (-error, error)
                ]
                pair = f"“{stage.columns[j]}” and “{stage.columns[k]}” in row “{stage.rows[i]}”"
                intervals.append((min(ends), max(ends), pair))
    if not intervals:
        return []
    least, _, high_pair = max(intervals)
    _, most, low_pair = min(intervals, key=itemgetter(1))
    if least > most:
        return [
            f"No scale makes these weights from the scores: {high_pair} ask for {least:.2f} or "
            f"more, {low_pair} for {most:.2f} or less"
        ]
    for other in (1.0, (least + most) / 2):  # a forgotten scale is the most common error
        scaled = Matrices(scores.values * other, scores.slack * abs(other))
        ours = _compute("weights", {"scaled scores": scaled, "mask": Matrices(mask)})
        if ((ours.values - stage.printed).abs() <= half_unit + ours.slack).all():
            return [f"They would follow with the scale {other:.4g} instead of {scale:.4g}"]
    return []
