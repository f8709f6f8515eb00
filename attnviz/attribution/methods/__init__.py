"""Attribution methods: which words of a text explain a number of the model's output.

A method, decorated with `@method("its-name")`, takes a `Score` and returns one number for each
token, (T,): how much the token raised the score.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor

from attnviz.attribution.target import Score
from attnviz.errors import ModelError, expect_names, first_line

T = TypeVar("T")
Method: TypeAlias = Callable[[Score], Tensor]
METHODS: dict[str, Method] = {}


def method(name: str) -> Callable[[Method], Method]:
    """Register an attribution method under a name. It is computed once for each score."""

    def register(function: Method) -> Method:
        @wraps(function)
        def once(score: Score) -> Tensor:
            if name not in score.computed:
                score.computed[name] = function(score)
            return score.computed[name]

        METHODS[name] = once
        return once

    return register


def check_methods(names: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of methods, each once; raise InputError for an unknown one."""
    is_one = isinstance(names, str) or not isinstance(names, Iterable)
    listed: tuple[Any, ...] = (names,) if is_one else tuple(dict.fromkeys(names))
    expect_names(listed, METHODS, "an attribution method")
    return listed


def attempt(compute: Callable[[], T]) -> tuple[T | None, str]:
    """Return what a function computes, or None and why the model does not support it."""
    try:
        return compute(), ""
    except torch.OutOfMemoryError:
        raise
    except (ModelError, RuntimeError, TypeError, ValueError, IndexError) as error:
        return None, first_line(error)


def compute_methods(names: Sequence[str], score: Score) -> tuple[dict[str, Tensor], list[str]]:
    """Return attributions by method, (T,) each, and notes on the methods that are left out."""
    attributions, notes = {}, []
    for name in names:
        attribution, reason = attempt(lambda: METHODS[name](score).detach().double().cpu())  # noqa: B023
        if attribution is None:
            notes.append(f"{name} is left out: {score.model.name} does not support it ({reason})")
        elif attribution.isfinite().all():
            attributions[name] = attribution
        else:
            notes.append(f"{name} is left out: it is nan or infinite for {score.model.name}")
    return attributions, notes


for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
for _name in sorted(METHODS):  # in the order in which messages list them
    METHODS[_name] = METHODS.pop(_name)
