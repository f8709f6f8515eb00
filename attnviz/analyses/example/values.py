"""What a field of an example may hold, each kind checked in one place."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Any, Literal, TypeAlias

from attnviz.analyses.example.stages import STAGES
from attnviz.errors import InputError, did_you_mean

Matrix: TypeAlias = tuple[tuple[Decimal, ...], ...]
Mask: TypeAlias = tuple[tuple[bool, ...], ...]

_MOST_SIDE = 32  # rows or columns; what is larger cannot be read in a table
_MOST_HEADS = 16
_LARGEST = 10**9
_MOST_DECIMALS = 12  # more than that float64 cannot tell
_ONES = "Write 1 where a token is seen and 0 where it is hidden."


def expect(good: object, what: str, got: object, do: str) -> None:
    """Raise InputError unless all is good: what was expected, what came, and what to do."""
    if not good:
        raise InputError(f"Expected {what}, got {got}. {do}")


def to_matrix(value: Any, name: str) -> Matrix:
    """Return rows of equal length; raise InputError with the place of what is wrong."""
    rows = isinstance(value, list) and value and all(isinstance(row, list) for row in value)
    expect(rows, f"{name} to be a matrix, a list of rows", kind(value), "Write [[1, 2], [3, 4]].")
    width = len(value[0])
    for i, row in enumerate(value):
        got = f"{len(row)} in row {i} and {width} in row 0"
        alike = row and len(row) == width
        expect(alike, f"rows of {name} with equally many numbers", got, "Complete the rows.")
    most = f"{name} with at most {_MOST_SIDE} rows and columns"
    small = max(shape(value)) <= _MOST_SIDE
    expect(small, most, shape(value), "Keep to an example that can be read.")
    for i, row in enumerate(value):
        for j, cell in enumerate(row):
            to_number(cell, f"{name}, row {i}, column {j}")
    return tuple(map(tuple, value))


def to_number(cell: Any, place: str) -> Decimal:
    """Return a number that is not too large."""
    expect(isinstance(cell, Decimal), f"a number in {place}", kind(cell), "Write it as 0.5.")
    if not -_LARGEST <= cell <= _LARGEST:  # abs() itself overflows on 1e999999999
        expect(False, f"a number up to {_LARGEST:,} in {place}", f"{cell:.3g}", "Make it smaller.")
    number: Decimal = cell
    return number


def shape(matrix: Matrix) -> tuple[int, int]:
    """Return (rows, columns)."""
    return len(matrix), len(matrix[0])


def decimals(matrix: Matrix) -> int:
    """Return how many digits stand behind the point, in the cell that has most."""
    return max(max(0, -int(cell.as_tuple().exponent)) for row in matrix for cell in row)


def half_unit(matrix: Matrix) -> float:
    """Return half a unit of a matrix's last digit."""
    return 0.5 * 10.0 ** -decimals(matrix)


def texts(matrix: Matrix) -> tuple[tuple[str, ...], ...]:
    """Return the numbers with the digits that each of them is given."""
    plain = range(-_MOST_DECIMALS, 1)  # else as 1E-30, or 1E+3
    return tuple(
        tuple(f"{x:f}" if x.as_tuple().exponent in plain else str(x) for x in row) for row in matrix
    )


def to_matrices(value: Any, name: str, heads: int, *, printed: bool = False) -> tuple[Matrix, ...]:
    """Return one matrix per head: a list of them, or the matrix itself where there is one head.

    What is printed may be null for some heads, and has no more digits than can be told.
    """
    found = {name: value}
    if heads > 1:
        count = f"a list of {len(value)}" if isinstance(value, list) else kind(value)
        each = isinstance(value, list) and len(value) == heads
        what = f"{name} to be a list of {heads} matrices, one per head"
        expect(each, what, count, "Write [[[…]], [[…]]].")
        found = {f"{name}, head {head}": one for head, one in enumerate(value)}
    optional = printed and heads > 1
    matrices = tuple(
        () if one is None and optional else to_matrix(one, place) for place, one in found.items()
    )
    most = max((decimals(one) for one in matrices if one), default=0)
    told = not printed or most <= _MOST_DECIMALS
    expect(told, f"at most {_MOST_DECIMALS} decimals in {name}", most, "Round the numbers.")
    return matrices


def to_side_by_side(value: Any, name: str, heads: int) -> Matrix:
    """Return one matrix; where each head has its own W_q, W_k or W_v, these side by side."""
    first = value[0] if isinstance(value, list) and value else None
    of_heads = isinstance(first, list) and bool(first) and isinstance(first[0], list)
    if not of_heads or heads == 1 or name in ("X", "W_o"):
        return to_matrix(value, name)
    matrices = to_matrices(value, name, heads)
    rows = {len(matrix) for matrix in matrices}
    what = f"{name} with equally many rows in all heads"
    expect(len(rows) == 1, what, " and ".join(map(str, sorted(rows))), "Complete the rows.")
    return tuple(sum(together, ()) for together in zip(*matrices, strict=True))


def to_heads(value: Any) -> int:
    """Return the number of heads."""
    number = isinstance(value, Decimal)
    got = value if number else kind(value)
    good = number and value in range(1, _MOST_HEADS + 1)
    expect(good, f"heads from 1 to {_MOST_HEADS}", got, "Write 2.")
    return int(value)


def to_scale(value: Any) -> Decimal:
    """Return what the scores are multiplied by."""
    scale = to_number(value, "scale")
    expect(scale, "a scale other than 0", 0, "Give 1 where there is none.")
    return scale


def to_mask(value: Any) -> Literal["causal"] | Mask:
    """Return "causal", or rows of booleans: true, or 1, where a token is seen."""
    if value == "causal":
        return "causal"
    expect(not isinstance(value, str), 'the mask "causal" or a matrix', shown(str(value)), _ONES)
    if isinstance(value, list) and all(isinstance(row, list) for row in value):
        value = [[Decimal(c) if isinstance(c, bool) else c for c in row] for row in value]
    matrix = to_matrix(value, "mask")
    ones = {cell for row in matrix for cell in row} <= {0, 1}
    expect(ones, "a mask of 0 and 1", "other numbers", _ONES)
    return tuple(tuple(cell == 1 for cell in row) for row in matrix)


def to_labels(value: Any, name: str) -> tuple[str, ...]:
    """Return a list of words."""
    words = isinstance(value, list) and value and all(isinstance(x, str) for x in value)
    expect(words, f"{name} to be a list of words", kind(value), 'Write ["a"].')
    return tuple(value)


def to_object(value: Any, name: str) -> dict[str, Any]:
    """Return an object of which every field is a stage."""
    fields = isinstance(value, dict)
    expect(fields, f"{name} to be an object", kind(value), 'Write {"V": …}.')
    only(value, STAGES, f"stages in {name}")
    stages: dict[str, Any] = value
    return stages


def to_text(value: Any, name: str) -> str:
    """Return a text on one line."""
    good = isinstance(value, str) and value.strip()
    expect(good, f"the {name} to be a text", kind(value), "Put it in quotes.")
    return " ".join(value.split())


def only(data: Iterable[str], known: Iterable[str], what: str) -> None:
    """Raise InputError for a field that nobody would read."""
    for name in data:
        if name not in known:
            hint = did_you_mean(name, known) or "Remove it."
            raise InputError(f"Expected {what} {', '.join(known)}; got {shown(name)}. {hint}")


def kind(value: Any) -> str:
    """Return what a value is, in a word."""
    if isinstance(value, str):
        return f"the text {shown(value)}" if value.strip() else "an empty text"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    named = {dict: "an object", bool: str(value).lower(), Decimal: "a number"}
    return named.get(type(value), "null")


def shown(text: str) -> str:
    """Return a text in quotes, a very long one clipped."""
    return repr(text if len(text) <= 40 else text[:39] + "…")
