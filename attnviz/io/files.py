"""Atomic writes, and checked reads of a user's text files.

A file is written under a temporary name beside its place, then renamed: it appears whole or not at
all. Figures and pages are overwritten; data are overwritten only where the caller says so.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from attnviz.errors import InputError, OutputError

GENERATOR = "attnviz"  # what each file names as the program that wrote it
FIGURE_SUFFIXES = (".png", ".svg", ".pdf")
PAGE_SUFFIXES = (".html", ".htm")
DATA_SUFFIXES = (".json", ".npz", ".safetensors", ".parquet")

# Hidden, with a suffix of its own: what a killed run leaves is not mistaken for a result.
_PREFIX, _SUFFIX = ".attnviz-", ".tmp"


def read_text(path: Path, kind: str, *, most: int) -> str:
    """Return the text of a UTF-8 file.

    Parameters
    ----------
    path : Path
        The file.
    kind : str
        What error messages call it, such as "a JSON file".
    most : int
        The largest size in bytes.

    Raises
    ------
    InputError
        The file is missing, is not a plain file, is not UTF-8, or is too large.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            what = "a folder" if stat.S_ISDIR(status.st_mode) else "not a plain file"
            raise InputError(f"Expected {path} to be {kind}, but it is {what}. Name another.")
        if status.st_size > most:
            raise InputError(
                f"Expected {path} with at most {most:,} bytes, got {status.st_size:,}. Shorten it."
            )
        return path.read_text("utf-8-sig")
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(
            f"Expected {kind} to read, but there is no file {path}. Check its name."
        ) from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text. Save it as UTF-8.") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{path} cannot be read: {reason}. Name another file.") from None


def is_file(path: str | os.PathLike[str]) -> bool:
    """Return whether `path`, which may be any text, names a plain file.

    Raises
    ------
    InputError
        The folder may not be searched.
    """
    try:
        return stat.S_ISREG(os.stat(path).st_mode)  # noqa: PTH116  any text at all
    except PermissionError:
        raise InputError(f"{path} cannot be read: Permission denied. Name another file.") from None
    except (OSError, ValueError):
        return False


def check_output(
    path: str | os.PathLike[str],
    allowed: Sequence[str] = FIGURE_SUFFIXES + DATA_SUFFIXES,
    *,
    force: bool = False,
) -> Path:
    """Return `path` as a Path if a file can be written there; write nothing.

    Parameters
    ----------
    path : str or PathLike
        The file to write. If it is a link, the file it points to is written.
    allowed : sequence of str
        The suffixes that name a format.
    force : bool
        Overwrite existing data, and read-only files.

    Raises
    ------
    InputError
        The suffix names no allowed format, or one that needs pyarrow.
    OutputError
        The folder is missing or read-only, the path is a folder or a device, or the file holds data
        or is read-only and `force` is not set.
    """
    path = Path(path)
    try:
        _check_name(path, allowed)
        _check_place(_link_target(path))
        if path.exists() and not force:
            _check_overwrite(path)
    except OutputError:
        raise
    except (OSError, UnicodeEncodeError) as error:
        reason = getattr(error, "strerror", None) or "not a valid file name"
        raise OutputError(f"{path} cannot be written: {reason}. Name another file.") from None
    return path


def _check_name(path: Path, allowed: Sequence[str]) -> None:
    if b"\0" in os.fsencode(path):
        raise OutputError(f"The file name {str(path)!r} contains a NUL character. Remove it.")
    if len(os.fsencode(path.name)) > 255:
        raise OutputError(f"The file name {path.name[:20]}… is too long. Shorten it.")
    if path.is_dir():
        raise OutputError(f"Expected a file to write, but {path} is a folder. Add a file name.")
    if path.suffix.lower() not in allowed:
        raise InputError(
            f"Expected a file name that ends in {', '.join(allowed)}, got {path.name!r}. "
            "The ending chooses the format."
        )
    if path.suffix.lower() == ".parquet" and find_spec("pyarrow") is None:
        raise InputError(
            "Writing .parquet needs pyarrow, which is not installed. Install it "
            "(pip install 'attnviz[parquet]'), or choose another format."
        )


def _link_target(path: Path) -> Path:
    """Return the file that a link points to; any other path as it is."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _check_place(path: Path) -> None:
    if path.is_symlink():
        raise OutputError(f"{path} is a link to itself. Remove it.")
    if path.exists() and not path.is_file():
        raise OutputError(f"Expected a file to write, but {path} is a device. Name a file.")
    if not path.parent.is_dir():
        raise OutputError(f"Expected the folder {path.parent} to exist. Create it first.")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise OutputError(f"Expected to write in {path.parent}, but it is read-only. Use another.")


def _check_overwrite(path: Path) -> None:
    if not os.access(path, os.W_OK):
        reason = "is read-only"
    elif path.suffix.lower() in DATA_SUFFIXES and path.stat().st_size:
        reason = "exists, and data are not overwritten by default"
    else:
        return
    raise OutputError(
        f"{path} {reason}. Name another file, or overwrite it: --force, in Python force=True."
    )


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`, which becomes `path` when the block ends well.

    The file keeps the permissions of the one it replaces.

    Raises
    ------
    OutputError
        The file cannot be written; what was at `path` is unchanged.
    """
    path = _link_target(path)
    # The name is chosen before the file is made, so that an interrupt in between leaves nothing.
    temporary = path.parent / f"{_PREFIX}{secrets.token_hex(8)}{_SUFFIX}"
    try:
        mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else None
        # Never readable for more users than the file will be.
        temporary.touch(0o666 if mode is None else mode | stat.S_IWUSR, exist_ok=False)
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        if mode is not None:
            temporary.chmod(mode)
        temporary.replace(path)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise OutputError(
            f"{path} cannot be written: {reason}. Nothing changed. Free some space, or name another"
            " file."
        ) from error
    finally:
        with contextlib.suppress(OSError):  # the first error is the one to report
            temporary.unlink()
