"""A case of the catalogue: a command line or call, and its expected outcome."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest


@dataclass(frozen=True)
class Case:
    """One use of the package, and its outcome.

    All files and models in the case are prepared (`running.prepared` maps their names).

    typed : the command line without "attnviz", quoted as for a shell, or None.
    called : a Python expression, or None.
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


def typed(
    typed: str,
    code: int = 0,
    said: str = "",
    *,
    leaves: str | tuple[str, ...] = "",
    within: str = "",
    cold: bool = False,
) -> Case:
    """Return a case of the command line."""
    return Case(typed, None, code, said, _names(leaves), within, cold)


def called(called: str, code: int = 0, said: str = "", *, within: str = "") -> Case:
    """Return a case of Python."""
    return Case(None, called, code, said, (), within)


def parameters(groups: Mapping[str, Mapping[str, Case]]) -> list[Any]:
    """Return all cases as parameters."""
    return [
        pytest.param(group, name, case, id=f"{group}: {name}")
        for group, some in groups.items()
        for name, case in some.items()
    ]


def _names(leaves: str | tuple[str, ...]) -> tuple[str, ...]:
    return tuple(leaves.split()) if isinstance(leaves, str) else leaves
