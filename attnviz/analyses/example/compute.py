"""Replay a worked example: what a book prints, computed again stage by stage from its numbers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from attnviz.analyses.example import check_source
from attnviz.analyses.example.result import ExampleResult, GivenMatrix, Labels, ReplayedStage
from attnviz.errors import InputError, expect_names, first_line
from attnviz.formula.attention import causal_mask, softmax
from attnviz.io import read_text
from attnviz.results.arguments import checked_scalars

_MATRICES = ("X", "W_q", "W_k", "W_v", "Q", "K", "V", "scores", "weights")
FIELDS = (*_MATRICES, "scale", "mask", "printed", "title", "tokens", "queries", "notes")
_MOST_BYTES, _MOST_ROWS, _LARGEST = 1_000_000, 32, 10**9
_BINARY = 1e-12  # of the largest number: the error of decimal fractions in float64
_EXACT = 1e-9  # of a source that is not rounded; its numbers have at most nine digits
_COARSE = 10  # rounding that moves a cell by more of its half units hides visible errors
_MOST_SLACK = 300.0  # of a score, whose weight is then known; its exponential is finite
Operands: TypeAlias = "dict[str, Operand]"  # by name, also the scale and the mask
_START = "Give X with W_q, W_k and W_v; or Q and K; or scores with a scale; or weights and V."


class Written(NamedTuple):
    """A matrix (m, n) as it is written in the file."""

    values: Tensor
    texts: tuple[Labels, ...]
    decimals: int  # the digits after the point, in the cell that has most
    half_unit: float  # of the last digit: the largest error of a rounded cell


class Operand(NamedTuple):
    """A matrix (m, n), the largest error of each cell, and the printed stages behind it."""

    values: Tensor
    slack: Tensor = torch.zeros((), device="cpu")
    sources: frozenset[str] = frozenset()


class Lesson:
    """The fields of a worked example."""

    def __init__(self, name: str, data: dict[str, Any]) -> None:
        """Read the fields, with decimal numbers; raise InputError for one that is wrong."""
        expect_names(data, FIELDS, f"a field of {name}")
        _check(data.get("mask", "causal") == "causal", 'mask must be "causal". Or leave it out.')
        self.title = str(data.get("title") or name)
        self.tokens: Labels = tuple(map(str, data.get("tokens", ())))
        self.queries: Labels = tuple(map(str, data.get("queries", self.tokens)))
        given = {key: _written(data[key], key) for key in _MATRICES if key in data}
        printed, notes = (data.get(field, {}).items() for field in ("printed", "notes"))
        self.printed = {key: _written(value, f"printed {key}") for key, value in printed}
        self.notes = {key: str(note) for key, note in notes}
        self.given = tuple(
            GivenMatrix(key, *self.sides(key, one.values), one.values, one.texts)
            for key, one in given.items()
        )
        inputs = {key: one.values for key, one in given.items()}
        self.scale, written = 1.0, ""  # of a score, and in formulas
        if "scale" in data:
            self.scale = float(_written([[data["scale"]]], "scale").values)
            written = f"· {self.scale:.4g}"
        elif queries := inputs.keys() & {"Q", "W_q"}:
            d_k = inputs[queries.pop()].shape[1]
            self.scale, written = d_k**-0.5, f"/ √{d_k}"
        if written:
            inputs["scale"] = torch.tensor(self.scale, dtype=torch.float64, device="cpu")
        inputs["mask"] = torch.tensor("mask" in data, device="cpu")
        scaled = "scores" if self.scale == 1 else "scaled scores"
        self.words = {"scale": written, "scaled": scaled, "mask": " + mask" * ("mask" in data)}
        self.inputs = {key: Operand(values) for key, values in inputs.items()}
        self.unused = data.keys() & {*_MATRICES, "scale", "mask"}

    def sides(self, name: str, matrix: Tensor) -> tuple[Labels, Labels]:
        """Return the labels of rows and columns: tokens, or positions."""
        rows = self.tokens if name in ("K", "V") else self.queries
        rows = () if name.startswith("W_") else rows
        columns = self.tokens if name in ("scores", "scaled scores", "weights") else ()
        m, n = matrix.shape
        for labels, count in (rows, m), (columns, n):
            problem = f"tokens or queries has {len(labels)} labels, and {name} needs {count}."
            _check(len(labels) in (0, count), f"{problem} Give a label for each.")
        return rows or tuple(map(str, range(m))), columns or tuple(map(str, range(n)))


def parse(text: str, name: str) -> Lesson:
    """Return the example in a JSON text; raise InputError if it is not one."""
    try:
        data = json.loads(text, parse_float=Decimal, parse_int=Decimal)
        if isinstance(data, dict):
            return Lesson(name, data)
    except InputError:
        raise
    except (TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
        problem = f"{name} is not a worked example in JSON: {first_line(error)}."
        raise InputError(f"{problem} Write it as in the guide on steps.") from None
    raise InputError(f'{name} is not a JSON object. Write {{"X": [[…]], "W_q": [[…]], …}}.')


def _check(good: bool, message: str) -> None:
    if not good:
        raise InputError(message)


def _written(value: Any, name: str) -> Written:
    cells = np.array(value, dtype=object)
    good = cells.ndim == 2 and cells.size > 0 and max(cells.shape) <= _MOST_ROWS
    good = good and all(isinstance(n, Decimal) and -_LARGEST <= n <= _LARGEST for n in cells.flat)
    size = f"at most {_MOST_ROWS} × {_MOST_ROWS} numbers up to {_LARGEST:,}"
    _check(good, f"{name} must have rows of equal length, {size}, such as [[1, 2], [3, 4]].")
    texts = tuple(tuple(map(str, row)) for row in cells)
    decimals = max(0, *(-cell.as_tuple().exponent for cell in cells.flat))
    values = torch.from_numpy(cells.astype(np.float64))
    return Written(values, texts, decimals, 0.5 * 10.0**-decimals)


def _weights(scores: Tensor, is_causal: Tensor) -> Tensor:
    m, n = scores.shape
    _check(m == n or not is_causal, f"A causal mask needs a square of scores, not {(m, n)}.")
    return softmax(scores + causal_mask(m, n).to(scores) if is_causal else scores)


# The title, the formula, the operands, and the function of each stage.
STAGES: dict[str, tuple[str, str, tuple[str, ...], Callable[..., Tensor]]] = {
    "Q": ("Queries Q", "Q = X W_q", ("X", "W_q"), torch.matmul),
    "K": ("Keys K", "K = X W_k", ("X", "W_k"), torch.matmul),
    "V": ("Values V", "V = X W_v", ("X", "W_v"), torch.matmul),
    "scores": ("Scores", "QKᵀ", ("Q", "K"), lambda Q, K: Q @ K.mT),
    "scaled scores": ("Scaled scores", "QKᵀ {scale}", ("scores", "scale"), torch.mul),
    "weights": ("Weights W", "W = softmax({scaled}{mask})", ("scaled scores", "mask"), _weights),
    "head output": ("Attention vectors A", "A = W V", ("weights", "V"), torch.matmul),
    "concatenated": ("All heads, side by side", "A of all heads", ("head output",), torch.clone),
}


def _compute(name: str, operands: Operands) -> Operand:
    """Compute a stage, and the largest error that the errors of its operands can cause.

    All stages but the softmax are sums of products: |(a ± δ)(b ± ε) - ab| is at most
    (|a| + δ)(|b| + ε) - |a||b|. A softmax weight is largest where its own score is largest and all
    others are smallest.
    """
    _, _, needs, compute = STAGES[name]
    inputs = [operands[need] for need in needs]
    try:
        values = compute(*(operand.values for operand in inputs))
    except RuntimeError:
        shapes = " and ".join(f"{need} {tuple(operands[need].values.shape)}" for need in needs)
        problem = f"The shapes do not fit for {name}: {shapes}."
        raise InputError(f"{problem} Perhaps one is transposed.") from None
    if name == "weights":
        change = inputs[0].slack.exp()
        more, less = values * change, values / change
        others = 1 - torch.eye(values.shape[1], dtype=torch.float64, device="cpu")
        highest, lowest = more / (more + less @ others), less / (less + more @ others)
        is_small = inputs[0].slack.max() < _MOST_SLACK
        slack = torch.where(is_small, torch.maximum(highest - values, values - lowest), 1.0)
    else:
        largest = compute(*(operand.values.abs() + operand.slack for operand in inputs))
        slack = largest - compute(*(operand.values.abs() for operand in inputs))
    binary = _BINARY * (1.0 + values.abs().max())
    sources = frozenset[str]().union(*(operand.sources for operand in inputs))
    return Operand(values, slack + binary, sources)


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

        It gives `X` (T, d_model), `W_q`, `W_k` (d_model, d_k) and `W_v` (d_model, d_v), with
        `scale` (1/√d_k) and `mask` ("causal", or none); or a later stage: `Q` and `K`, `scores` or
        `weights`, and `V`. `printed` holds matrices by stage: Q, K, V, scores, scaled scores,
        weights, head output, concatenated. `title`, `tokens`, `queries` (labels of the rows, if
        they are not the tokens) and `notes` (a sentence by stage) describe it.

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
    path = Path(__file__).with_name(f"{name}.json") if file is None else Path(file)
    name = name or path.name
    lesson = parse(read_text(path, most=_MOST_BYTES), name)
    return ExampleResult(name, lesson.title, lesson.tokens, lesson.given, _replay(lesson))


def _replay(lesson: Lesson) -> tuple[ReplayedStage, ...]:
    """Return the stages that follow from what is given; raise InputError for what does not fit."""
    from_inputs, from_printed = dict(lesson.inputs), dict(lesson.inputs)
    unused, stages = lesson.unused, dict[str, ReplayedStage]()
    for name, (_, _, needs, _) in STAGES.items():
        if from_inputs.keys() >= {*needs}:
            problem = f"{name} is given, and so is what it is computed from."
            _check(name not in from_inputs, f'{problem} Put what a book prints under "printed".')
            unused = unused.difference(needs)
            stage = _compare(lesson, name, from_inputs, from_printed)
            # An error begins where no printed stage before it has one.
            inherits = any(_differs(stages[source].from_inputs_follows) for source in stage.sources)
            begins = _differs(stage.from_inputs_follows) and not inherits
            slips = begins or _differs(stage.from_printed_follows)
            notes = tuple(_notes(lesson, stage, from_printed))
            stages[name] = replace(stage, slips=slips, notes=notes)
    useless = ", ".join(sorted(unused)) or "an empty example"
    _check(bool(stages) and not unused, f"Nothing can be computed from {useless}. {_START}")
    expect_names([*lesson.printed, *lesson.notes], stages, "a stage that is computed")
    # One head alone is the output of all, and scores times 1 are the scores.
    same = {"concatenated"} if lesson.scale != 1 else {"concatenated", "scaled scores"}
    return tuple(stages[name] for name in stages if name in lesson.printed or name not in same)


def _compare(
    lesson: Lesson, name: str, from_inputs: Operands, from_printed: Operands
) -> ReplayedStage:
    """Compute a stage beside what is printed; those after it see it as printed, if it is."""
    title, formula, _, _ = STAGES[name]
    ours, linked = _compute(name, from_inputs), _compute(name, from_printed)
    from_inputs[name], from_printed[name] = ours, linked
    printed, half = lesson.printed.get(name), None
    if printed is not None:
        (m, n), half = ours.values.shape, printed.half_unit
        # Of all heads, only the columns of the given one can be computed.
        values = printed.values[:, :n] if name == "concatenated" else printed.values
        fits = values.shape == (m, n)
        _check(fits, f"printed {name} must have the shape {(m, n)}, as computed.")
        is_exact = ((values - ours.values).abs() <= ours.slack).all()  # then it is not rounded
        slack = ours.slack if is_exact else torch.full_like(values, half)
        from_printed[name] = Operand(values, slack, frozenset({name}))
    labels = lesson.sides(name, (printed or ours).values)
    is_linked = bool(linked.sources)
    return ReplayedStage(
        name=name,
        title=title,
        formula=formula.format(**lesson.words),
        head=None,
        rows=labels[0],
        columns=labels[1],
        printed=printed and printed.values,
        texts=printed.texts if printed else (),
        decimals=printed and printed.decimals,
        from_inputs=ours.values,
        from_printed=linked.values if is_linked else None,
        sources=tuple(source for source in STAGES if source in linked.sources),
        slack_from_inputs=None if half is None else ours.slack + half,
        slack_from_printed=linked.slack + half if is_linked and half is not None else None,
    )


def _differs(follows: Tensor | None) -> bool:
    return follows is not None and not follows.all()


def _notes(lesson: Lesson, stage: ReplayedStage, operands: Operands) -> Iterator[str]:
    note, printed = lesson.notes.get(stage.name), lesson.printed.get(stage.name)
    n = stage.from_inputs.shape[1]
    if printed and (untold := printed.values[:, n:].numel()):
        reason = note or f"what is given makes {n} of its columns"
        yield f"{untold} printed cells cannot be checked: {reason}"
    elif note:
        yield note
    if printed and stage.slack_from_printed is not None:
        if (error := float(stage.slack_from_printed.max())) > _COARSE * printed.half_unit:
            coarse = " and ".join(s for s in stage.sources if operands[s].slack.max() > _EXACT)
            problem = f"Too coarse for a closer check: the rounding of printed {coarse}"
            yield f"{problem} can move a cell by {error:.2g}"
    elif printed and stage.name == "weights" and _differs(stage.from_inputs_follows):
        yield from _scale_note(lesson, stage, operands)


def _scale_note(lesson: Lesson, stage: ReplayedStage, operands: Operands) -> Iterator[str]:
    """Yield at which scale weights would follow from the scores, or that none exists.

    In a softmax, log(w_ij / w_ik) = scale · (s_ij - s_ik) for every pair of cells of a row. Each
    pair leaves an interval of scales, as wide as rounding makes it; where two intervals are
    disjoint, no scale gives the weights.
    """
    scores, printed = operands["scores"].values, lesson.printed["weights"]
    weights, half = printed.values, printed.half_unit
    gaps = scores.unsqueeze(2) - scores.unsqueeze(1)
    # A weight that is printed as 0 may be arbitrarily small.
    is_clear = (gaps > _BINARY) & (weights > half).unsqueeze(2) & (weights > half).unsqueeze(1)
    low, high = (
        torch.log((weights + sign * half).unsqueeze(2) / (weights - sign * half).unsqueeze(1))
        for sign in (-1, 1)
    )
    least = torch.where(is_clear, low / gaps, -torch.inf)
    most = torch.where(is_clear, high / gaps, torch.inf)
    if least.max() > most.min():
        places = (np.unravel_index(int(at), gaps.shape) for at in (least.argmax(), most.argmin()))
        first, second = (
            f"“{stage.columns[j]}” and “{stage.columns[k]}” (row “{stage.rows[i]}”) need"
            for i, j, k in places
        )
        yield (
            f"No scale of the scores gives these weights: {first} a scale of at least "
            f"{least.max():.2f}, {second} one of at most {most.min():.2f}"
        )
        return
    for scale in (1.0, float(least.max() + most.min()) / 2):  # a forgotten one is most common
        ours = _weights(scores * scale, operands["mask"].values)
        if ((ours - weights).abs() <= half + _EXACT).all():
            yield f"They would follow with the scale {scale:.4g} instead of {lesson.scale:.4g}"
            return
