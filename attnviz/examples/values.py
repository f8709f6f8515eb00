"""What a field of an example may hold, each kind checked in one place."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Literal, TypeAlias

from attnviz.errors import InputError, did_you_mean

Matrix: TypeAlias = tuple[tuple[Decimal, ...], ...]
Mask: TypeAlias = tuple[tuple[bool, ...], ...]

_MOST_SIDE = 32  # rows or columns; what is larger cannot be read in a table
_MOST_HEADS = 16
_LARGEST = 10**9
_MOST_DECIMALS = 12  # more than that float64 cannot tell
_ONES = "Write 1 where a token is seen and 0 where it is hidden."


def to_matrix(value: Any, name: str) -> Matrix:
    """Return rows of equal length; raise InputError with the place of what is wrong."""
    if not isinstance(value, list) or not value or not all(isinstance(r, list) for r in value):
        raise InputError(
            f"Expected {name} to be a matrix, a list of rows, got {kind(value)}. "
            "Write [[1, 2], [3, 4]]."
        )
    width = len(value[0])
    for number, row in enumerate(value):
        if len(row) != width or not row:
            raise InputError(
                f"Expected rows of {name} with equally many numbers, got {len(row)} in row "
                f"{number} and {width} in row 0. Complete the rows."
            )
    if max(len(value), width) > _MOST_SIDE:
        raise InputError(
            f"Expected {name} with at most {_MOST_SIDE} rows and columns, got "
            f"({len(value)}, {width}). Keep to an example that can be read."
        )
    for i, row in enumerate(value):
        for j, cell in enumerate(row):
            _check_number(cell, f"{name}, row {i}, column {j}")
    return tuple(map(tuple, value))


def _check_number(cell: Any, place: str) -> None:
    if not isinstance(cell, Decimal):
        raise InputError(f"Expected a number in {place}, got {kind(cell)}. Write it as 0.5.")
    if not abs(cell) <= _LARGEST:
        raise InputError(
            f"Expected a number up to {_LARGEST:,} in {place}, got {cell:.3g}. Write a smaller one."
        )


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
    if heads == 1:
        found = {name: value}
    else:
        _check_heads(value, name, heads)
        found = {f"{name}, head {head}": one for head, one in enumerate(value)}
    optional = printed and heads > 1
    matrices = tuple(
        () if one is None and optional else to_matrix(one, place) for place, one in found.items()
    )
    most = max((decimals(one) for one in matrices if one), default=0)
    if printed and most > _MOST_DECIMALS:
        raise InputError(
            f"Expected at most {_MOST_DECIMALS} decimals in {name}, got {most}. Round the numbers."
        )
    return matrices


def _check_heads(value: Any, name: str, heads: int) -> None:
    if not isinstance(value, list) or len(value) != heads:
        got = f"a list of {len(value)}" if isinstance(value, list) else kind(value)
        raise InputError(
            f"Expected {name} to be a list of {heads} matrices, one per head, got {got}. "
            "Write [[[…]], [[…]]]."
        )


def to_heads(value: Any) -> int:
    """Return the number of heads."""
    possible = range(1, _MOST_HEADS + 1)
    if not isinstance(value, Decimal) or value not in possible:
        got = value if isinstance(value, Decimal) else kind(value)
        raise InputError(f"Expected heads from 1 to {_MOST_HEADS}, got {got}. Write 2.")
    return int(value)


def to_scale(value: Any) -> Decimal:
    """Return what the scores are multiplied by."""
    _check_number(value, "scale")
    scale: Decimal = value
    if not scale:
        raise InputError("Expected a scale other than 0, got 0. Give 1 where there is none.")
    return scale


def to_mask(value: Any) -> Literal["causal"] | Mask:
    """Return "causal", or rows of booleans: true, or 1, where a token is seen."""
    if value == "causal":
        return "causal"
    if isinstance(value, str):
        raise InputError(f'Expected the mask "causal" or a matrix, got {shown(value)}. {_ONES}')
    if isinstance(value, list) and all(isinstance(row, list) for row in value):
        value = [[Decimal(c) if isinstance(c, bool) else c for c in row] for row in value]
    matrix = to_matrix(value, "mask")
    if not {cell for row in matrix for cell in row} <= {0, 1}:
        raise InputError(f"Expected a mask of 0 and 1, got other numbers. {_ONES}")
    return tuple(tuple(cell == 1 for cell in row) for row in matrix)


def to_labels(data: dict[str, Any], name: str) -> tuple[str, ...] | None:
    """Return a list of words, None where the field is left out."""
    if name not in data:
        return None
    value = data[name]
    if not isinstance(value, list) or not value or not all(isinstance(x, str) for x in value):
        raise InputError(f'Expected {name} to be a list of words, got {kind(value)}. Write ["a"].')
    return tuple(value)


def to_object(data: dict[str, Any], name: str) -> dict[str, Any]:
    """Return an object, an empty one where the field is left out."""
    value = data.get(name, {})
    if not isinstance(value, dict):
        raise InputError(f'Expected {name} to be an object, got {kind(value)}. Write {{"V": …}}.')
    return value


def to_text(value: Any, name: str) -> str:
    """Return a text on one line."""
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"Expected the {name} to be a text, got {kind(value)}. Put it in quotes.")
    return " ".join(value.split())


def only(data: dict[str, Any], known: tuple[str, ...], what: str) -> None:
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
