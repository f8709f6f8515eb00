"""Save figures: the same image everywhere, with text that stays text."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager

from matplotlib.figure import Figure

from attnviz.figures.style import style
from attnviz.io.files import FIGURE_SUFFIXES, GENERATOR, atomic, check_output

_METADATA = {
    ".png": {"Software": GENERATOR},
    ".svg": {"Creator": GENERATOR, "Date": None},
    ".pdf": {"Creator": GENERATOR, "CreationDate": None},
}


def save(figure: Figure, path: str | os.PathLike[str], *, force: bool = False) -> None:
    """Save a figure; the suffix of `path` chooses the format.

    Text stays text in svg and pdf. The file is written atomically and overwritten if it exists.

    Parameters
    ----------
    figure : Figure
        The figure.
    path : str or PathLike
        A file name that ends in .png, .svg or .pdf.
    force : bool
        Overwrite also a read-only file.

    Raises
    ------
    InputError, OutputError
        As `attnviz.io.files.check_output`.
    """
    path = check_output(path, FIGURE_SUFFIXES, force=force)
    image = render(figure, path.suffix.lower())
    with atomic(path) as temporary:
        temporary.write_bytes(image)


def render(figure: Figure, suffix: str) -> bytes:
    """Return the bytes of the file of a figure, in the format of a suffix such as ".png"."""
    buffer = io.BytesIO()  # matplotlib hides the error of a full disk behind one of its own
    with style(), _no_date():
        figure.savefig(buffer, format=suffix[1:], metadata=_METADATA[suffix])
    return buffer.getvalue()


@contextmanager
def _no_date() -> Iterator[None]:
    """Hide SOURCE_DATE_EPOCH, which matplotlib reads and refuses if it is malformed."""
    date = os.environ.pop("SOURCE_DATE_EPOCH", None)
    try:
        yield
    finally:
        if date is not None:
            os.environ["SOURCE_DATE_EPOCH"] = date
