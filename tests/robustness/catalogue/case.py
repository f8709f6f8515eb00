"""What a case of the catalogue says: what is typed or called, and what must come of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """One thing that a user may do, and its outcome.

    Every file and model that it names is prepared (`running.prepared` knows them by name).

    typed : the command line without "attnviz", quoted as for a shell; None if there is none.
    called : an expression in Python, None if there is none; "" for the public calls that do the
        same as the command line.
    code : the exit code; of a call, that of the exception. said : a part of the one line that says
        what is wrong, or of what success prints.
    leaves : the files that are there afterwards and were not before, or are written anew.
    within : what the run is put into, as `running.settings` knows it, or NAME=value of the
        environment; several are separated by commas.
    cold : a process of its own that imports everything anew, rather than one that is forked.
    """

    typed: str | None
    called: str | None
    code: int
    said: str
    leaves: tuple[str, ...]
    within: str
    cold: bool


def both(
    typed: str,
    code: int = 0,
    said: str = "",
    *,
    leaves: str | tuple[str, ...] = "",
    within: str = "",
    cold: bool = False,
) -> Case:
    """Typed on the command line, and through the public functions that do the same."""
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
    """Typed on the command line, where Python has nothing like it."""
    return Case(typed, None, code, said, _names(leaves), within, cold)


def called(called: str, code: int = 0, said: str = "", *, within: str = "") -> Case:
    """Called from Python, where the command line has nothing like it."""
    return Case(None, called, code, said, (), within, cold=False)


def _names(leaves: str | tuple[str, ...]) -> tuple[str, ...]:
    return tuple(leaves.split()) if isinstance(leaves, str) else leaves
