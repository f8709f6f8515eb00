"""A case of the catalogue: a command line or call, and its expected outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pytest


@dataclass(frozen=True)
class Case:
    """One use of the package, and its outcome.

    All files and models in the case are prepared (`running.prepared` maps their names).

    typed : the command line without "attnviz", quoted as for a shell, or None.
    called : a Python expression, or None; "" for the public calls equivalent to the command line.
    code : the exit code; for a call, the code of its exception.
    said : a part of the error line, or of the output on success.
    leaves : the files that are created or overwritten.
    within : settings from `running.settings`, or NAME=value for the environment, separated by
        commas.
    cold : run in a new process with fresh imports instead of a forked one.
    """

    typed: str | None
    called: str | None
    code: int
    said: str
    leaves: tuple[str, ...]
    within: str
    cold: bool = False


def both(
    typed: str,
    code: int = 0,
    said: str = "",
    *,
    leaves: str | tuple[str, ...] = "",
    within: str = "",
    cold: bool = False,
) -> Case:
    """Return a case for the command line and the equivalent public functions."""
    return Case(typed, "", code, said, _names(leaves), within, cold)


def typed(
    typed: str,
    code: int = 0,
    said: str = "",
    *,
    leaves: str | tuple[str, ...] = "",
    within: str = "",
    cold: bool = False,
) -> Case:
    """Return a case for the command line only."""
    return Case(typed, None, code, said, _names(leaves), within, cold)


def called(called: str, code: int = 0, said: str = "", *, within: str = "") -> Case:
    """Return a case for Python only."""
    return Case(None, called, code, said, (), within)


def in_turn(groups: Mapping[str, Mapping[str, Case]], way: Literal["typed", "called"]) -> list[Any]:
    """Return the cases of one way as parameters; of those that go both ways, half are long."""
    cases = [(group, name, case) for group, some in groups.items() for name, case in some.items()]
    parameters = []
    for number, (group, name, case) in enumerate(cases):
        if getattr(case, way) is None:
            continue
        goes_both_ways = None not in (case.typed, case.called)
        rests = goes_both_ways and way != ("typed", "called")[number % 2]
        marks = pytest.mark.long if rests else ()
        parameters.append(pytest.param(group, name, case, id=f"{group}: {name}", marks=marks))
    return parameters


def _names(leaves: str | tuple[str, ...]) -> tuple[str, ...]:
    return tuple(leaves.split()) if isinstance(leaves, str) else leaves
