"""The one way in which the package writes a file, and the one in which it reads a user's text.

A file appears whole, or not at all: it is written beside its place under a name of its own, and
then moved there.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from attnviz.errors import InputError, OutputError

FIGURE_SUFFIXES = (".png", ".svg", ".pdf")
PAGE_SUFFIXES = (".html", ".htm")
DATA_SUFFIXES = (".json", ".npz", ".safetensors", ".parquet")


def read_text(path: Path, kind: str, *, most: int) -> str:
    """Return the text of a user's file, in UTF-8; `kind` is what errors call it.

    Raises
    ------
    InputError : it is missing, no plain file, no text, or has more than `most` bytes.
    """
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            what = "a folder" if stat.S_ISDIR(found.st_mode) else "no plain file"
            raise InputError(f"Expected {path} to be {kind}, got {what}. Name another.")
        if found.st_size > most:
            raise InputError(
                f"Expected {path} with at most {most:,} bytes, got {found.st_size:,}. Shorten it."
            )
        return path.read_text("utf-8-sig")
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(
            f"Expected {kind} to read, but there is no file {path}. Check its name."
        ) from None
    except UnicodeDecodeError:
        raise InputError(f"Expected text in UTF-8, but {path} is none. Save it as UTF-8.") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"Expected to read {path}, but: {reason}. Name another file.") from None


def check_output(
    path: str | os.PathLike[str], allowed: Sequence[str] = FIGURE_SUFFIXES + DATA_SUFFIXES
) -> Path:
    """Return the path if a figure or data can be written there; write nothing.

    Raises
    ------
    InputError : the ending names no format of these, or one that needs pyarrow.
    OutputError : the folder is missing or read-only, or the path is a folder.
    """
    path = Path(path)
    if len(os.fsencode(path.name)) > 255:
        raise OutputError(f"Expected a shorter file name than {path.name[:20]}…. Shorten it.")
    if path.is_dir():
        raise OutputError(f"Expected a file to write, but {path} is a folder. Add a file name.")
    if path.suffix.lower() not in allowed:
        raise InputError(
            f"Expected a file name that ends in {', '.join(allowed)}, got {path.name!r}. "
            "The ending chooses the format."
        )
    if path.suffix.lower() == ".parquet" and find_spec("pyarrow") is None:
        raise InputError(
            "Expected pyarrow, which writes .parquet, but it is not installed. Install it "
            "(pip install 'attnviz[parquet]'), or choose another format."
        )
    path = path.resolve() if path.is_symlink() else path  # write what it points to
    if path.exists() and not path.is_file():
        raise OutputError(f"Expected a file to write, but {path} is a device. Name a file.")
    if not path.parent.is_dir():
        raise OutputError(f"Expected the folder {path.parent} to exist. Create it first.")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise OutputError(f"Expected to write in {path.parent}, but it is read-only. Use another.")
    return path


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`, which becomes `path` if all goes well.

    Raises
    ------
    OutputError : it could not be written; what was there before is still there.
    """
    temporary = None
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".attnviz-", suffix=path.suffix)
        os.close(handle)
        temporary = Path(name)
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_umask())  # temporary files are private; this one no longer is
        temporary.replace(path)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise OutputError(f"Expected to write {path}, but: {reason}. Nothing changed.") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
