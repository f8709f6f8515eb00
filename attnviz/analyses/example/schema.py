"""The JSON format of a worked example; numbers keep the digits with which they are written."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from decimal import Decimal
from typing import Any

import cattrs
import torch
from cattrs.v import format_exception
from torch import Tensor

from attnviz.errors import InputError, did_you_mean

_MOST_ROWS, _MOST_HEADS, _LARGEST = 32, 16, 10**9


class Matrix(tuple[tuple[Decimal, ...], ...]):
    """Rows of decimal numbers, as printed."""

    @property
    def values(self) -> Tensor:
        """The numbers, (m, n) float64."""
        return torch.tensor([list(map(float, row)) for row in self], dtype=torch.float64)

    @property
    def decimals(self) -> int:
        """The digits behind the point, in the cell that has most."""
        return max(max(0, -int(cell.as_tuple().exponent)) for row in self for cell in row)

    @property
    def texts(self) -> tuple[tuple[str, ...], ...]:
        """The numbers with their own digits."""
        return tuple(tuple(map(str, row)) for row in self)


class Matrices(tuple[Matrix | None, ...]):
    """One matrix, or one for each head; None where nothing is printed of a head."""


_NOT_GIVEN = Matrices()


class Mask(Matrix):
    """Rows of 1 (visible) and 0; empty for a causal mask."""


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """The fields of a worked example, all optional."""

    title: str = ""
    tokens: list[str] | None = None
    queries: list[str] | None = None
    X: Matrices = _NOT_GIVEN
    W_q: Matrices = _NOT_GIVEN
    W_k: Matrices = _NOT_GIVEN
    W_v: Matrices = _NOT_GIVEN
    W_o: Matrices = _NOT_GIVEN
    Q: Matrices = _NOT_GIVEN
    K: Matrices = _NOT_GIVEN
    V: Matrices = _NOT_GIVEN
    scores: Matrices = _NOT_GIVEN
    weights: Matrices = _NOT_GIVEN
    heads: Decimal = Decimal(1)
    scale: Decimal | None = None
    mask: Mask | None = None
    printed: dict[str, Matrices] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def given(self) -> dict[str, list[Matrix]]:
        """The matrices that everything is computed from, by name."""
        names = [field.name for field in fields(self) if field.type == "Matrices"]
        return {name: [*filter(None, value)] for name in names if (value := getattr(self, name))}


def parse(text: str, name: str) -> Lesson:
    """Return the example in a JSON text; raise InputError where it is not one."""
    known = [field.name for field in fields(Lesson)]
    try:
        data = json.loads(text, parse_float=Decimal, parse_int=Decimal)
        if not isinstance(data, dict):
            raise ValueError('it is not an object. Write {"X": [[…]], "W_q": [[…]], …}.')
        for key in data:
            if key not in known:
                hint = did_you_mean(key, known) or f"Use {', '.join(known)}."
                raise ValueError(f"there is no field {key!r}. {hint}")
        if data.get("heads", 1) not in range(1, _MOST_HEADS + 1):
            raise ValueError(f"heads must be a number from 1 to {_MOST_HEADS}. Write 2.")
        lesson: Lesson = _CONVERTER.structure(data, Lesson)
    except cattrs.BaseValidationError as errors:
        first = cattrs.transform_error(errors, format_exception=_describe)[0]
        problem, _, place = first.rpartition(" @ $.")
        raise InputError(f"Expected an example in {name}, but in {place}, {problem}") from None
    except json.JSONDecodeError as error:
        raise InputError(f"Expected an example in {name}, but: {error}. Fix it there.") from None
    except ValueError as error:
        raise InputError(f"Expected an example in {name}, but {error}") from None
    except (RecursionError, ArithmeticError):
        raise InputError(
            f"Expected an example in {name}, but its lists are nested too deeply, or a number is "
            "too large. Write a matrix as a list of rows of numbers."
        ) from None
    return lesson


def _describe(error: BaseException, kind: type | None) -> str:
    own = type(error) is ValueError
    return str(error) if own else f"{format_exception(error, kind)}. See the README."


def _to_number(value: Any, _: Any = None) -> Decimal:
    value = Decimal(value) if isinstance(value, bool) else value  # in a mask
    if not isinstance(value, Decimal) or not -_LARGEST <= value <= _LARGEST:
        shown = f"{json.dumps(value, default='{:.3g}'.format):.40}"
        raise ValueError(f"{shown} is not a number up to {_LARGEST:,}. Write 0.5.")
    return value


def _to_matrix(value: Any) -> Matrix:
    rows = value if isinstance(value, list) else []
    if not rows or not all(isinstance(row, list) and 0 < len(row) == len(rows[0]) for row in rows):
        raise ValueError("rows of equal length are missing. Write [[1, 2], [3, 4]].")
    if max(len(rows), len(rows[0])) > _MOST_ROWS:
        raise ValueError(f"there are more than {_MOST_ROWS} rows or columns. Use fewer.")
    return Matrix(tuple(_to_number(cell) for cell in row) for row in rows)


def _to_matrices(value: Any, _: Any) -> Matrices:
    first = next(filter(None, value), None) if isinstance(value, list) else None
    by_head = isinstance(first, list) and isinstance(first[0], list)
    of_heads = value if by_head else [value]
    return Matrices(None if head is None and by_head else _to_matrix(head) for head in of_heads)


_CONVERTER = cattrs.Converter()
_CONVERTER.register_structure_hook(Decimal, _to_number)
_CONVERTER.register_structure_hook(Matrices, _to_matrices)
_CONVERTER.register_structure_hook(
    Mask, lambda value, _: Mask() if value == "causal" else Mask(_to_matrix(value))
)
