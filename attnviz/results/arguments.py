"""Refuse arguments of other types than a function names, in one line."""

from __future__ import annotations

import inspect
import numbers
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, wraps
from types import NoneType, UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

from attnviz.errors import InputError, did_you_mean, expect_unicode
from attnviz.results.attention_result import AttentionResult, one_result
from attnviz.results.base import Savable
from attnviz.runtime import notebook_bar

P = ParamSpec("P")
R = TypeVar("R")

_NAMES = {
    "bool": "True or False",
    "int": "a whole number",
    "float": "a number",
    "str": "a string",
    "slice": "a slice of whole numbers, such as slice(0, 5)",
    "Figure": "a figure of matplotlib (of axes: ax.figure)",
    "Axes": "axes of matplotlib",
    "Normalize": "a norm of matplotlib",
    "Colormap": "a colormap",
}
# What figures of several axes have in place of words that matplotlib and seaborn use.
_OF_FIGURES = {
    "figsize": "Give the width in mm (width=); the height follows from what is drawn.",
    "ax": "It draws several axes: give a figure or a subfigure (figure=).",
    "cmap": 'One color means the same in all figures. attnviz.plot.style(theme="dark") has others.',
}
_SCALARS = {bool, int, float, str, os.PathLike}
_UNIONS = (Union, UnionType)


def checked(function: Callable[P, R], *, scalars: bool = False) -> Callable[P, R]:
    """Let a function raise InputError for an argument that is not of the type it names.

    Scalars of numpy become those of Python.

    scalars : check only numbers, flags, choices, strings and paths.
    """
    signature = inspect.signature(function)
    takes_more = any(one.kind is one.VAR_KEYWORD for one in signature.parameters.values())

    @wraps(function)
    def call(*args: P.args, **keywords: P.kwargs) -> R:
        if unknown := [] if takes_more else keywords.keys() - signature.parameters.keys():
            name, known = min(unknown), signature.parameters
            hint = _OF_FIGURES.get(name) if "width" in known else None
            hint = did_you_mean(name, known) if hint is None else hint
            raise TypeError(f"{function.__name__}() has no argument {name!r}. {hint}".rstrip())
        hints, bound = _hints(function), signature.bind(*args, **keywords)
        for name, value in bound.arguments.items():
            hint = hints.get(name, Any)
            options = _options(hint)
            kinds = {get_origin(one) or one for one in options}
            if kinds == {Literal} and not fits(value, hint):
                *others, last = get_args(options[0])
                choices = f"{', '.join(others)} or {last}"
                raise InputError(f"{name} must be {choices}, not {value!r:.60}.")
            if scalars and not kinds <= _SCALARS:
                continue
            if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
                bound.arguments[name] = value = value.item()  # of numpy or torch
            if Literal not in kinds and not fits(value, hint):
                if name == next(iter(signature.parameters)):
                    _refuse_result(value, options, function.__name__)
                listed = " or ".join(dict.fromkeys(map(_name, options)))
                raise InputError(f"{name} must be {listed}, not {value!r:.60}.")
            if os.PathLike not in kinds:  # whose bytes may be anything
                for text in value if isinstance(value, list | tuple) else [value]:
                    if isinstance(text, str):
                        expect_unicode(text, name)
        with notebook_bar(function.__name__):
            return function(*bound.args, **bound.kwargs)

    return call


def checked_scalars(function: Callable[P, R]) -> Callable[P, R]:
    """Check the numbers, flags, strings and paths of a function, as `checked` does."""
    return checked(function, scalars=True)


@cache
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of the parameters; without those that are only there for a type checker."""
    function, hints = inspect.unwrap(function), {}
    for name, hint in function.__annotations__.items():
        with suppress(NameError, TypeError):
            hints[name] = eval(hint, vars(sys.modules[function.__module__]))
    return {name: hint for name, hint in hints.items() if not isinstance(hint, str)}


def fits(value: object, hint: Any) -> bool:
    """Return whether a value is of a type; numbers of numpy are numbers, flags are none."""
    origin, options = get_origin(hint), get_args(hint)
    if origin in _UNIONS:
        return any(fits(value, option) for option in options)
    if origin is Literal:
        return value in options
    is_bool = type(value).__name__ in ("bool", "bool_")  # the second: numpy
    if hint in (bool, Any):
        return is_bool or hint is Any
    if hint in (int, float):
        return not is_bool and isinstance(value, numbers.Integral if hint is int else numbers.Real)
    if origin is tuple and options[-1] is not Ellipsis and isinstance(value, tuple | list):
        return len(value) == len(options) and all(map(fits, value, options))
    if not isinstance(value, origin or hint):
        return False
    if options and isinstance(value, Mapping):
        return all(fits(key, options[0]) and fits(value[key], options[1]) for key in value)
    if not options or not isinstance(value, Sequence):
        return True
    return str in options if isinstance(value, str) else all(fits(v, options[0]) for v in value)


def _refuse_result(value: object, options: Sequence[Any], function: str) -> None:
    if AttentionResult in options:
        one_result(value, streamed=True)  # raises
    kinds = [one.__name__ for one in options if inspect.isclass(one) and issubclass(one, Savable)]
    if kinds:
        one = f"{function}. Make one: attnviz.{function}(…)."
        many = f"the kind that {function} draws. Give {' or '.join(kinds)}."
        raise InputError(f"{type(value).__name__} is not a result of {many if kinds[1:] else one}")


def _options(hint: Any) -> list[Any]:
    """Return the types of a union; None is what leaving the argument out means."""
    options = get_args(hint) if get_origin(hint) in _UNIONS else [hint]  # which are no unions
    return [option for option in options if option is not NoneType]


def _name(hint: Any) -> str:
    """Return a type in words: "a number", "a list of pairs of whole numbers"."""
    if get_origin(hint) is os.PathLike:
        return "a path"
    if options := get_args(hint):
        what = _name(options[0]).removeprefix("a ")
        several = f"{what}s" if " of " not in what else what.replace(" of ", "s of ", 1)
        return f"a {'pair' if get_origin(hint) is tuple else 'list'} of {several}"
    return str(_NAMES.get(hint.__name__, hint.__name__))
