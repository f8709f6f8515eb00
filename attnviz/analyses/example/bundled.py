"""The bundled worked examples. This file imports nothing heavy: a wrong name is refused at once."""

from __future__ import annotations

from attnviz.errors import InputError, did_you_mean

NAMES = ("cat", "likes", "phones")


def check_source(name: object, file: object) -> None:
    """Raise InputError unless either a bundled example or a file is named."""
    names = ", ".join(NAMES)
    if (name is None) == (file is None):
        raise InputError(f"Name one example ({names}), or one file.")
    if file is None and name not in NAMES:
        hint = did_you_mean(str(name), NAMES) or f"Use {names}, or --file for a file."
        raise InputError(f"There is no example {str(name)!r:.40}. {hint}")
