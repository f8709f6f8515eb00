"""A worked example, replayed. This file imports nothing heavy: a wrong name is refused at once."""

from attnviz.errors import InputError, expect_names

NAMES = ("cat", "likes", "phones")


def check_source(name: object, file: object) -> None:
    """Raise InputError unless either a bundled example or a file is named."""
    if (name is None) == (file is None):
        raise InputError(f"Name one example ({', '.join(NAMES)}), or one file.")
    if file is None:
        expect_names([str(name)], NAMES, "an example")
