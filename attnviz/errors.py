"""The exceptions that attnviz raises on purpose, and helpers for their messages.

A message is one line: what is wrong, then how to fix it. On the command line an exception becomes
that line and its exit code.
"""

import difflib
import operator
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from importlib.util import find_spec

_HEAD, _TAIL = 270, 110  # characters of a long message that are shown, from its start and its end


class AttnvizError(Exception):
    """Base class of all errors that a user can fix.

    Its message is one printable line, for any input.

    Examples
    --------
    >>> import attnviz
    >>> try:
    ...     attnviz.attend("")
    ... except attnviz.AttnvizError as error:
    ...     print(error, error.exit_code)
    The text is empty. Type at least one word. 2
    """

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class InputError(AttnvizError, ValueError):
    """The text, the selection or an option cannot be used.

    Examples
    --------
    >>> import attnviz
    >>> result = attnviz.attend("the train left")
    >>> attnviz.attention_map(result, layer=7, head=0)
    Traceback (most recent call last):
        ...
    attnviz.errors.InputError: layer 7 is out of range: all-MiniLM-L6-v2 has layers 0–5.
    """

    exit_code = 2


class ModelError(AttnvizError):
    """The model cannot be found, is refused, or has no attention that attnviz can record.

    Examples
    --------
    >>> import attnviz
    >>> attnviz.explain("the train left the station")
    Traceback (most recent call last):
        ...
    attnviz.errors.ModelError: all-MiniLM-L6-v2 has no head that predicts a token or a class. ...
    """

    exit_code = 3


class OutputError(AttnvizError, OSError):
    """The result cannot be written to its file.

    Examples
    --------
    >>> import attnviz
    >>> figure = attnviz.plot.example("cat")
    >>> attnviz.plot.save(figure, "/no-such-folder/cat.png")
    Traceback (most recent call last):
        ...
    attnviz.errors.OutputError: The folder /no-such-folder does not exist. Create it first.
    """

    exit_code = 4


class AttnvizWarning(UserWarning):
    """What a user should know; the command line shows no other warnings.

    Examples
    --------
    >>> import warnings
    >>> import attnviz
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("error", attnviz.AttnvizWarning)  # stop at a warning of attnviz
    ...     result = attnviz.attend("the train left")
    """


def whole_number(value: object, what: str) -> int:
    """Return a whole number of any type as int; raise InputError for anything else."""
    with suppress(TypeError, ValueError):
        if not isinstance(value, bool):
            return operator.index(value)  # type: ignore[arg-type]
    name = what[0].upper() + what[1:]
    raise InputError(f"{name} must be a whole number, not {value!r}. Write 3, for example.")


def from_end(number: int, existing: Sequence[int]) -> int:
    """Return the number that a negative one means: -1 is the last of those that exist."""
    return existing[number] if -len(existing) <= number < 0 else number


def whole_numbers(value: object, what: str) -> tuple[int, ...]:
    """Return one whole number, or several, each once; `what` one is, for InputError."""
    is_one = isinstance(value, str) or getattr(value, "ndim", 1) == 0
    items = value if isinstance(value, Iterable) and not is_one else (value,)
    numbers = tuple(dict.fromkeys(whole_number(item, f"the {what}") for item in items))
    if not numbers:
        raise InputError(f"The list of {what}s is empty. Name one, or several.")
    return numbers


def positive_number(value: object, what: str) -> int:
    """Return a whole number from 1 on, of any type, as int; raise InputError for anything else."""
    number = whole_number(value, what)
    if number < 1:
        raise InputError(f"{what[0].upper()}{what[1:]} must be 1 or more, not {number}.")
    return number


def true_or_false(value: object, what: str) -> bool:
    """Return a truth value of any type as bool; raise InputError for anything else."""
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):  # the second: numpy
        return bool(value)
    raise InputError(f"{what} must be True or False, not {value!r:.60}.")


def refuse_given(why: str, **arguments: object) -> None:
    """Raise InputError, with `why`, if an argument is given; None and False are not given."""
    given = [name for name, value in arguments.items() if value is not None and value is not False]
    if given:
        raise InputError(f"{joined(given)} cannot be used: {why}")


def require(package: str, extra: str, what: str) -> None:
    """Raise InputError unless a package is installed; `what` needs it, as in "The widget needs"."""
    if find_spec(package.lower()) is None:
        raise InputError(
            f"{what} {package}, which is not installed. Install it: pip install 'attnviz[{extra}]'."
        )


def joined(names: Iterable[str]) -> str:
    """Return names as a list in words: "a, b and c"."""
    *others, last = [*names] or [""]
    return f"{', '.join(others)} and {last}" if others else last


def expect_words(text: object, subject: str) -> str:
    """Return a text that has at least one word; raise InputError for anything else."""
    if not isinstance(text, str):
        raise InputError(f"{subject} must be a string, not {type(text).__name__}.")
    expect_unicode(text, subject)
    if not text.strip():
        raise InputError(f"{subject} is empty. Type at least one word.")
    return text


def is_unicode(text: str) -> bool:
    """Return whether a text has no surrogates, which stand for bytes that could not be decoded."""
    return text.encode(errors="replace").decode() == text


def expect_unicode(text: str, subject: str) -> None:
    """Raise InputError for a text with surrogates; say where."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        invalid = text[error.start : error.start + 20]
        raise InputError(
            f"{subject} is not valid Unicode: remove {invalid!a} at character {error.start:,}."
        ) from None


def did_you_mean(text: str, known: Iterable[str]) -> str:
    """Return "Did you mean …?" with the similar names, or nothing."""
    by_case = {name.casefold(): name for name in known}
    similar = difflib.get_close_matches(text.casefold()[:40], by_case, n=3, cutoff=0.5)
    return f"Did you mean {' or '.join(by_case[name] for name in similar)}?" if similar else ""


def expect_names(names: Iterable[str], known: Collection[str], what: str) -> None:
    """Raise InputError for the first name that is not known."""
    for name in names:
        if name not in known:
            hint = did_you_mean(str(name), known) or f"Use {', '.join(known)}."
            raise InputError(f"{name!r:.60} is not {what}. {hint}")


def is_panic(error: BaseException) -> bool:
    """Return whether a library in Rust (tokenizers) panicked, which raises no `Exception`."""
    return type(error).__module__ == "pyo3_runtime"


def one_line(error: BaseException) -> str:
    """Return the type and the start of the message of an error, as one line."""
    return printable(f"{type(error).__name__}: {' '.join(str(error).split())[:160]}")


def first_line(error: BaseException) -> str:
    """Return the first sentences of a message that fit on a line, without the final period."""
    line = str(error).partition("\n")[0]
    return line[: line.rfind(". ", 0, 160)].rstrip(".") if len(line) > 160 else line.rstrip(".")


def printable(text: str) -> str:
    """Return a text as one short line without control characters."""
    line = " ".join(text.split())
    if len(line) > _HEAD + _TAIL:
        line = f"{line[:_HEAD]} … {line[-_TAIL:]}"
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)
