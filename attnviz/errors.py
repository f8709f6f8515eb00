"""The exceptions that users meet. Each message says what was expected, what came, what to do next.

Each class carries the exit code with which the command line ends.
"""

import difflib
import operator
from collections.abc import Iterable

_HEAD, _TAIL = 270, 110  # characters of a long message that are said: what was typed lies between


class AttnvizError(Exception):
    """What a user can mend: base of every exception that attnviz raises on purpose.

    Its message is one line that can be printed, whatever was typed or found in a file.
    """

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class InputError(AttnvizError, ValueError):
    """The text, the selection or an option cannot be used."""

    exit_code = 2


class ModelError(AttnvizError):
    """The model cannot be found, is refused, or has no attention that attnviz can see."""

    exit_code = 3


class OutputError(AttnvizError, OSError):
    """The result cannot be written where it was asked for."""

    exit_code = 4


class AttnvizWarning(UserWarning):
    """What a user should know and no library says; the command line shows no other warning."""


def whole_number(value: object, what: str) -> int:
    """Return a whole number of any kind as int; raise InputError for anything else."""
    if not isinstance(value, bool):
        try:
            return operator.index(value)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            pass
    raise InputError(f"Expected {what} as a whole number, got {value!r}. Write 3, for example.")


def expect_words(text: str, what: str) -> str:
    """Return a text that has at least one word; raise InputError for one that is blank."""
    if not text.strip():
        raise InputError(
            f"Expected a {what} with at least one word, got an empty one. Type a sentence."
        )
    return text


def did_you_mean(text: str, known: Iterable[str]) -> str:
    """Return "Did you mean …?" with the names that come near, or nothing."""
    by_case = {name.casefold(): name for name in known}
    near = difflib.get_close_matches(text.casefold()[:40], by_case, n=3, cutoff=0.5)
    return f"Did you mean {' or '.join(by_case[name] for name in near)}?" if near else ""


def is_panic(error: BaseException) -> bool:
    """Tell whether a library in Rust (tokenizers) gave up, which raises what is no Exception."""
    return type(error).__module__ == "pyo3_runtime"


def one_line(error: BaseException) -> str:
    """Return what went wrong, without the rest of a long message."""
    return printable(f"{type(error).__name__}: {' '.join(str(error).split())[:160]}")


def first_line(error: BaseException) -> str:
    """Return the beginning of what a library says, without the stop at its end."""
    return str(error).partition("\n")[0][:120].rstrip(".")


def printable(text: str) -> str:
    r"""Return a text as one line that fits a screen, in which nothing can steer a terminal.

    >>> printable("two\nlines\x1b[2J")
    'two lines�[2J'
    """
    line = " ".join(text.split())
    if len(line) > _HEAD + _TAIL:
        line = f"{line[:_HEAD]} … {line[-_TAIL:]}"
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)
