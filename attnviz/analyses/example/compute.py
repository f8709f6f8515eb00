"""Replay a worked example: what a book prints, computed again stage by stage from its numbers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
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
_START = "Give X with W_q, W_k and W_v; or Q and K; or scores with a scale; or weights and V."


class Operand(NamedTuple):
    """A matrix (m, n), the largest error of each cell, and the printed stages behind it."""

    values: Tensor
    slack: Tensor = torch.zeros((), device="cpu")
    sources: frozenset[str] = frozenset()


Operands: TypeAlias = dict[str, Operand]  # by name, also the scale and the mask


class Lesson:
    """The fields of a worked example."""

    def __init__(self, name: str, data: dict[str, Any]) -> None:
        """Read the fields, with decimal numbers; raise InputError for one that is wrong."""
        problem = f"{name} is not a JSON object."
        _check(isinstance(data, dict), f'{problem} Write {{"X": [[…]], "W_q": [[…]], …}}.')
        expect_names(data, FIELDS, f"a field of {name}")
        _check(data.get("mask", "causal") == "causal", 'mask must be "causal". Or leave it out.')
        self.title = str(data.get("title") or name)
        self.tokens: Labels = tuple(map(str, data.get("tokens", ())))
        self.queries: Labels = tuple(map(str, data.get("queries", self.tokens)))
        self.notes = {key: str(note) for key, note in data.get("notes", {}).items()}
        printed = data.get("printed", {}).items()
        self.printed = {key: _written(value, f"printed {key}") for key, value in printed}
        given = {key: _written(data[key], key) for key in _MATRICES if key in data}
        self.given = tuple(
            GivenMatrix(key, *self.sides(key, values), values, texts)
            for key, (values, texts) in given.items()
        )
        inputs = {one.key: one.values for one in self.given}
        inputs["mask"] = torch.tensor("mask" in data, device="cpu")
        scale = ""
        if "scale" in data:
            inputs["scale"], _ = _written([[data["scale"]]], "scale")
            scale = f"· {float(inputs['scale']):.4g}"
        elif queries := inputs.keys() & {"Q", "W_q"}:
            d_k = inputs[queries.pop()].shape[1]
            inputs["scale"] = torch.tensor([[d_k**-0.5]], dtype=torch.float64, device="cpu")
            scale = f"/ √{d_k}"
        scaled = "scaled scores" if scale and float(inputs["scale"]) != 1 else "scores"
        self.words = {"scale": scale, "scaled": scaled, "mask": " + mask" * ("mask" in data)}
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


def _check(good: bool, message: str) -> None:
    if not good:
        raise InputError(message)


def _written(value: Any, name: str) -> tuple[Tensor, tuple[Labels, ...]]:
    """Return a matrix (m, n), and its numbers with the digits of the file."""
    cells = np.array(value, dtype=object)
    good = cells.ndim == 2 and cells.size > 0 and max(cells.shape) <= _MOST_ROWS
    good = good and all(isinstance(n, Decimal) and -_LARGEST <= n <= _LARGEST for n in cells.flat)
    size = f"at most {_MOST_ROWS} × {_MOST_ROWS} numbers up to {_LARGEST:,}"
    _check(good, f"{name} must have rows of equal length, {size}, such as [[1, 2], [3, 4]].")
    values = torch.from_numpy(cells.astype(np.float64))
    return values, tuple(tuple(map(str, row)) for row in cells)


def _weights(scores: Tensor, is_causal: Tensor) -> Tensor:
    m, n = scores.shape[-2:]
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
        scores, mask = inputs
        own = torch.eye(values.shape[1], dtype=torch.float64, device="cpu").unsqueeze(1)
        change = (2 * own - 1) * scores.slack  # (n, m, n), one matrix of scores for each key
        ends = torch.stack([scores.values + change, scores.values - change])
        slack = (compute(ends, mask.values).diagonal(dim1=1, dim2=3) - values).abs().amax(0)
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
    text = read_text(path, most=_MOST_BYTES)
    try:
        lesson = Lesson(name, json.loads(text, parse_float=Decimal, parse_int=Decimal))
    except InputError:
        raise
    except (TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as error:
        problem = f"{name} is not a worked example in JSON: {first_line(error)}."
        raise InputError(f"{problem} Write it as in the guide on steps.") from None
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
            stages[name] = replace(stage, slips=begins or _differs(stage.from_printed_follows))
    useless = ", ".join(sorted(unused)) or "an empty example"
    _check(bool(stages) and not unused, f"Nothing can be computed from {useless}. {_START}")
    expect_names([*lesson.printed, *lesson.notes], stages, "a stage that is computed")
    # One head alone is the output of all, and scores times 1 are the scores.
    same = {"concatenated", "scaled scores"} - {lesson.words["scaled"]}
    return tuple(stages[name] for name in stages if name in lesson.printed or name not in same)


def _compare(
    lesson: Lesson, name: str, from_inputs: Operands, from_printed: Operands
) -> ReplayedStage:
    """Compute a stage beside what is printed; those after it see it as printed, if it is."""
    title, formula, _, _ = STAGES[name]
    ours, linked = _compute(name, from_inputs), _compute(name, from_printed)
    from_inputs[name], from_printed[name] = ours, linked
    printed, texts = lesson.printed.get(name, (None, ()))
    decimals = half = None
    if printed is not None:
        decimals = max(0, *(-int(Decimal(x).as_tuple().exponent) for row in texts for x in row))
        half = 0.5 * 10.0**-decimals  # the largest error of a rounded cell
        m, n = ours.values.shape
        # Of all heads, only the columns of the given one can be computed.
        values = printed[:, :n] if name == "concatenated" else printed
        fits = values.shape == (m, n)
        _check(fits, f"printed {name} must have the shape {(m, n)}, as computed.")
        is_exact = ((values - ours.values).abs() <= ours.slack).all()  # then it is not rounded
        slack = ours.slack if is_exact else torch.full_like(values, half)
        from_printed[name] = Operand(values, slack, frozenset({name}))
    labels = lesson.sides(name, ours.values if printed is None else printed)
    is_linked = bool(linked.sources)
    return ReplayedStage(
        name=name,
        title=title,
        formula=formula.format(**lesson.words),
        head=None,
        rows=labels[0],
        columns=labels[1],
        printed=printed,
        texts=texts,
        decimals=decimals,
        from_inputs=ours.values,
        from_printed=linked.values if is_linked else None,
        sources=tuple(source for source in STAGES if source in linked.sources),
        slack_from_inputs=None if half is None else ours.slack + half,
        slack_from_printed=linked.slack + half if is_linked and half is not None else None,
        notes=(lesson.notes[name],) if name in lesson.notes else (),
    )


def _differs(follows: Tensor | None) -> bool:
    return follows is not None and not follows.all()
