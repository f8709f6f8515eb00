"""The options of `attend`, checked as far as possible without a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from attnviz.errors import InputError, whole_number

Mode: TypeAlias = Literal["auto", "full", "streamed"]
_MOST_TOP_KEYS = 1024  # of each query


@dataclass(frozen=True)
class AttendOptions:
    """How a model runs, and what is stored of a text whose maps are reduced while it runs.

    Attributes
    ----------
    truncate : bool
        Cut an input that is longer than the model can read; otherwise it is an error.
    mode : "auto", "full" or "streamed"
        Whether maps are stored whole or reduced.
    layers, heads : tuple of int or None
        Of a streamed text, the layers and heads to store; None for all.
    cells : int or None
        The most rows and columns of a pooled map; None for as many as fit in a budget.
    top : int
        The number of keys whose weights are stored exactly for each query.
    exact : tuple of int or None
        The layers whose Q, K and V are stored.
    """

    truncate: bool = False
    mode: Mode = "auto"
    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    cells: int | None = None
    top: int = 0
    exact: tuple[int, ...] | None = None

    @classmethod
    def parse(
        cls,
        *,
        truncate: bool = False,
        mode: Mode = "auto",
        layers: int | Sequence[int] | None = None,
        heads: int | Sequence[int] | None = None,
        cells: int | None = None,
        top: int = 0,
        exact: int | Sequence[int] | None = None,
    ) -> AttendOptions:
        """Return checked options.

        Raises
        ------
        InputError
            An option has the wrong type, or a value that no model allows.
        """
        if mode not in ("auto", "full", "streamed"):
            raise InputError(f"Expected mode to be auto, full or streamed, got {mode!r}.")
        if cells is not None and whole_number(cells, "cells") < 1:
            raise InputError(f"Expected cells to be 1 or more, got {cells}.")
        if not 0 <= whole_number(top, "top") <= _MOST_TOP_KEYS:
            raise InputError(f"Expected top to be from 0 to {_MOST_TOP_KEYS} keys, got {top}.")
        stored, exact_layers = _indices(layers, "a layer"), _indices(exact, "a layer")
        if stored and exact_layers and (others := [n for n in exact_layers if n not in stored]):
            raise InputError(
                f"Expected exact layers among those that are kept, {', '.join(map(str, stored))}, "
                f"got {others[0]}. Name it in layers too."
            )
        exact_layers = stored if exact is None else exact_layers
        return cls(truncate, mode, stored, _indices(heads, "a head"), cells, top, exact_layers)

    @property
    def are_for_reduced_maps(self) -> bool:
        """Whether an option is set that only reduced maps have."""
        return self.cells is not None or self.top > 0


def _indices(value: Any, what: str) -> tuple[int, ...] | None:
    if value is None:
        return None
    items = (value,) if isinstance(value, int) else value
    if isinstance(items, str) or not isinstance(items, Iterable):
        raise InputError(f"Expected {what}, or a list of them, got {value!r}.")
    indices = tuple(dict.fromkeys(whole_number(item, what) for item in items))
    if not indices:
        raise InputError(f"Expected {what}, counted from 0, or a list of them, got {value!r}.")
    return indices
