"""A case of the catalogue: a command line or call, and its expected outcome."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """One use of the package, and its outcome.

    All files and models in the case are prepared (`running.prepared` maps their names).

    typed : the command line without "attnviz", quoted as for a shell, or None.
    called : a Python expression, or None.
    code : the exit code; for a call, the code of its exception.
    said : a part of the error line, or of the output on success.
    leaves : the files that are created or overwritten.
    within : settings from `running.scene`, or NAME=value for the environment, separated by commas.
    cold : run in a new process with fresh imports instead of a forked one.
    """

    typed: str | None
    called: str | None
    code: int = 0
    said: str = ""
    leaves: tuple[str, ...] = ()
    within: str = ""
    cold: bool = False


def typed(
    line: str,
    code: int = 0,
    said: str = "",
    *,
    leaves: str | tuple[str, ...] = (),
    within: str = "",
    cold: bool = False,
) -> Case:
    """Return a case of the command line."""
    files = tuple(leaves.split()) if isinstance(leaves, str) else leaves
    return Case(line, None, code, said, files, within, cold)


def called(expression: str, code: int = 0, said: str = "") -> Case:
    """Return a case of Python."""
    return Case(None, expression, code, said)
