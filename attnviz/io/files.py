"""The one way in which the package writes a file, and the one in which it reads a user's text.

A file appears whole, or not at all: it is written beside its place under a name of its own, and
then moved there. Nothing that attnviz did not write is replaced unless that is asked for.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from attnviz.errors import InputError, OutputError
from attnviz.io.marks import is_ours, is_whole

FIGURE_SUFFIXES = (".png", ".svg", ".pdf")
PAGE_SUFFIXES = (".html", ".htm")
DATA_SUFFIXES = (".json", ".npz", ".safetensors", ".parquet")

# Hidden, and with an ending of its own: what a killed run leaves is not taken for a result.
_PREFIX, _SUFFIX = ".attnviz-", ".tmp"
_DAY = 24 * 60 * 60
_ASKING = threading.Lock()


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


def is_file(path: str | os.PathLike[str]) -> bool:
    """Tell whether there is such a file, of whatever is or is not a name of one.

    Raises
    ------
    InputError : nobody may look there.
    """
    try:
        return stat.S_ISREG(os.stat(path).st_mode)  # noqa: PTH116  of any name at all
    except PermissionError:
        raise InputError(
            f"Expected to read {path}, but: Permission denied. Name another file."
        ) from None
    except (OSError, ValueError):
        return False


def check_output(
    path: str | os.PathLike[str],
    allowed: Sequence[str] = FIGURE_SUFFIXES + DATA_SUFFIXES,
    *,
    force: bool = False,
    whole: bool = False,
) -> Path:
    """Return the path if a figure or data can be written there; write nothing.

    whole : whether a whole result is to be written, which may take the place of another.

    Raises
    ------
    InputError : the ending names no format of these, or one that needs pyarrow.
    OutputError : the folder is missing or read-only, the path is a folder, or a file is there that
        attnviz did not write, or a whole result; `force` overwrites such a one.
    """
    path = Path(path)
    try:
        _expect_place(path, allowed)
        _expect_folder(_target(path))
        if path.exists() and not force:
            _expect_replaceable(path, whole=whole)
    except OutputError:
        raise
    except (OSError, UnicodeEncodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no name of a file"
        raise OutputError(f"Expected to write {path}, but: {reason}. Name another file.") from None
    return path


def _expect_place(path: Path, allowed: Sequence[str]) -> None:
    """Raise InputError or OutputError where no such file can be."""
    if b"\0" in os.fsencode(path):
        raise OutputError(f"Expected the name of a file, got {str(path)!r}. Leave the NUL out.")
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


def _target(path: Path) -> Path:
    """Return where a link points, for that is where is written; of anything else the path."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _expect_folder(path: Path) -> None:
    """Raise OutputError where nothing can be written."""
    if path.is_symlink():
        raise OutputError(f"Expected a file to write, but {path} is a link to itself. Remove it.")
    if path.exists() and not path.is_file():
        raise OutputError(f"Expected a file to write, but {path} is a device. Name a file.")
    if not path.parent.is_dir():
        raise OutputError(f"Expected the folder {path.parent} to exist. Create it first.")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise OutputError(f"Expected to write in {path.parent}, but it is read-only. Use another.")


def _expect_replaceable(path: Path, *, whole: bool) -> None:
    """Raise OutputError where a file would be lost that somebody wants to keep."""
    several = {path, _target(path)}  # what a link is called, or what it points to, names the format
    if not os.access(path, os.W_OK):
        what = "it is read-only"
    elif path.stat().st_size and not any(map(is_ours, several)):  # of an empty one nothing is lost
        what = "what is there was not written by attnviz"
    elif not whole and any(map(is_whole, several)):
        what = "a whole result is kept there, which would be lost"
    else:
        return
    raise OutputError(
        f"Expected to write {path}, but {what}. Name another file, or overwrite this one: --force, "
        "in Python force=True."
    )


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`, which becomes `path` if all goes well.

    Until then nobody else can read it; then it has the permissions of the file that it replaces.

    Raises
    ------
    OutputError : it could not be written; what was there before is still there.
    """
    # Named before it is made: a signal in between leaves nothing that nobody knows of.
    path = _target(path)
    temporary = path.parent / f"{_PREFIX}{secrets.token_hex(8)}{_SUFFIX}"
    try:
        _remove_stale(path.parent)
        temporary.touch(0o600, exist_ok=False)
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.chmod(_mode(path))
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise OutputError(
            f"Expected to write {path}, but: {reason}. Nothing changed: make room, or name another "
            "file."
        ) from error
    finally:
        with contextlib.suppress(OSError):  # what went wrong before is the news
            temporary.unlink()


def _mode(path: Path) -> int:
    """Return the permissions of the file at `path`, or those that a new one is to have."""
    with contextlib.suppress(FileNotFoundError):
        return stat.S_IMODE(path.stat().st_mode)
    with _ASKING:  # two threads that ask at once would change it for good
        mask = os.umask(0o077)
        os.umask(mask)
    return 0o666 & ~mask


def _sync_folder(folder: Path) -> None:
    """Have the new name on the disk too, where the system knows how to."""
    with contextlib.suppress(OSError):  # the file is in its place already
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _remove_stale(folder: Path) -> None:
    """Remove what killed runs left a day ago.

    Age is the rule that holds for several machines that share a folder, where the id of a process
    says nothing. Should a run that slept for a day still write, it ends with an OutputError and
    the old file is left.
    """
    for left in folder.glob(f"{_PREFIX}{'?' * 16}{_SUFFIX}"):
        with contextlib.suppress(OSError):  # not ours to remove, or gone meanwhile
            if time.time() - left.lstat().st_mtime > _DAY:
                left.unlink()
