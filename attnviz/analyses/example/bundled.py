"""The worked examples that ship with the package."""

from __future__ import annotations

from attnviz.errors import InputError, did_you_mean

NAMES = ("cat", "likes", "phones")


def check_source(name: object, file: object) -> None:
    """Raise InputError unless exactly one of a bundled example and a file is named."""
    listed = ", ".join(NAMES)
    if (name is None) == (file is None):
        got = "neither" if name is None else "both"
        raise InputError(f"Expected the name of an example ({listed}) or a file, got {got}.")
    if file is None and name not in NAMES:
        hint = did_you_mean(str(name), NAMES) or "Use --file for one of your own."
        raise InputError(f"Expected one of {listed}, got {str(name)!r:.40}. {hint}")
