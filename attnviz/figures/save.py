"""Figures to files: the same picture everywhere, with text that stays text."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager

from matplotlib.figure import Figure

from attnviz.figures.style import style
from attnviz.io.files import FIGURE_SUFFIXES, atomic, check_output
from attnviz.io.marks import GENERATOR

_METADATA = {
    ".png": {"Software": GENERATOR},
    ".svg": {"Creator": GENERATOR, "Date": None},
    ".pdf": {"Creator": GENERATOR, "CreationDate": None},
}


def save(figure: Figure, path: str | os.PathLike[str], *, force: bool = False) -> None:
    """Write a figure as png, svg or pdf, by the suffix; in svg and pdf, text stays text.

    The file appears whole or not at all. `force` overwrites also what attnviz did not write.

    Raises
    ------
    InputError, OutputError : as `attnviz.io.files.check_output`.
    """
    path = check_output(path, FIGURE_SUFFIXES, force=force)
    drawn = drawn_as(figure, path.suffix.lower())
    with atomic(path) as temporary:
        temporary.write_bytes(drawn)


def drawn_as(figure: Figure, suffix: str) -> bytes:
    """Return what a file with this suffix holds of a figure."""
    drawn = io.BytesIO()  # matplotlib loses the error of a full disk under one of its own
    with style(), _undated():
        figure.savefig(drawn, format=suffix[1:], metadata=_METADATA[suffix])
    return drawn.getvalue()


@contextmanager
def _undated() -> Iterator[None]:
    """Hide a date that matplotlib would read, and fail if it is none: our files hold no date."""
    said = os.environ.pop("SOURCE_DATE_EPOCH", None)
    try:
        yield
    finally:
        if said is not None:
            os.environ["SOURCE_DATE_EPOCH"] = said
