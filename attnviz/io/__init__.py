"""Files: atomic writes, and checked reads of a user's text files and weights."""

from __future__ import annotations

import base64
import contextlib
import io
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from attnviz.errors import AttnvizError, InputError, OutputError, require

SCHEMA = "attnviz/{}/1"  # the type that JSON holds, and the version of its form
GENERATOR = "attnviz"  # the program that files name as their writer
FIGURE_SUFFIXES = (".png", ".svg", ".pdf")
PAGE_SUFFIXES = (".html", ".htm")
WEIGHT_SUFFIXES = (".npy", ".npz", ".safetensors")
DATA_SUFFIXES = (".json", ".npz", ".safetensors", ".parquet")

# Hidden and with a special suffix, so that the file of a killed run is not mistaken for a result.
_PREFIX, _SUFFIX = ".attnviz-", ".tmp"


def data_uri(picture: Any, kind: str, side: int | None = None, **options: Any) -> str:
    """Return a picture of Pillow, of at most `side` pixels a side, as a data URI.

    kind : "png" or "jpeg". options : of its writer.
    """
    file = io.BytesIO()
    if side is not None:
        picture = picture.copy()
        picture.thumbnail((side, side))
    picture.save(file, kind, **options)
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"


@contextlib.contextmanager
def translated(path: Path, what: str, advice: str = "Name another file.") -> Iterator[None]:
    """Raise InputError where a file cannot be `what` = "read", OutputError if it is "written"."""
    try:
        yield
    except AttnvizError:
        raise
    except OSError as error:
        reason = error.strerror or str(error) or type(error).__name__
        if isinstance(error, FileNotFoundError) and what == "read":
            reason = "there is no such file"
        kind = InputError if what == "read" else OutputError
        raise kind(f"{path} cannot be {what}: {reason}. {advice}") from error


def expect_plain(path: Path, *others: Callable[[int], bool]) -> int:
    """Return the size of a plain file, or of one of other kinds; OSError for anything else."""
    try:
        status = path.stat()
    except ValueError as error:  # a name that no file can have
        raise OSError(0, str(error)) from None
    if not any(is_kind(status.st_mode) for is_kind in (stat.S_ISREG, *others)):
        is_folder = stat.S_ISDIR(status.st_mode)
        raise OSError(0, "it is a folder" if is_folder else "it is not a plain file")
    return status.st_size


def read_text(path: Path, *, most: int) -> str:
    """Return the text of a UTF-8 file, or pipe, of at most `most` bytes; "-" is standard input."""
    path = Path("/dev/stdin") if str(path) == "-" else path
    with translated(path, "read"):
        expect_plain(path, stat.S_ISFIFO)
        with path.open("rb") as file:
            data = file.read(most + 1)
        if len(data) > most:
            raise OSError(0, f"it has more than {most:,} bytes")
    try:
        return io.TextIOWrapper(io.BytesIO(data), "utf-8-sig").read()
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text. Save it as UTF-8.") from None


def is_file(path: str | os.PathLike[str]) -> bool:
    """Return whether `path`, which may be any text, names a plain file."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)  # noqa: PTH116  any text at all
    except PermissionError:
        raise InputError(f"{path} cannot be read: Permission denied. Name another file.") from None
    except (OSError, ValueError):
        return False


def read_weights(path: Path) -> Any:
    """Return the array of a file, or its arrays by name, for `attnviz.check`: see `read_arrays`."""
    if path.suffix.lower() not in WEIGHT_SUFFIXES:
        raise InputError(
            f"{str(path)!r:.60} does not end in {', '.join(WEIGHT_SUFFIXES)}. Save the weights as "
            "one of these, for example with numpy.savez."
        )
    if not is_file(path):
        raise InputError(f"There is no file {path}: check the path.")

    arrays = read_arrays(path)
    of_all_layers = [array for array in arrays.values() if len(array.shape) != 3]
    return of_all_layers[0] if len(arrays) == len(of_all_layers) == 1 else arrays


def read_arrays(path: Path) -> dict[str, Any]:
    """Return the arrays of a .safetensors, .npz or .npy file by name.

    InputError: the file cannot be read, or holds pickled objects, which could run code.
    """
    import numpy as np
    from safetensors.torch import load_file

    try:
        if path.suffix.lower() == ".safetensors":
            arrays: dict[str, Any] = dict(load_file(path))
        else:
            content = np.load(path, allow_pickle=False)
            arrays = {"0": content} if isinstance(content, np.ndarray) else dict(content)
    except Exception as error:  # a damaged file can raise anything, in either library
        raise InputError(
            f"{path} cannot be read: it is damaged, or of another format, or holds pickled "
            "objects, which could run code. Save the arrays again, as numbers."
        ) from error
    return arrays


def check_output(
    path: str | os.PathLike[str],
    allowed: Sequence[str] = FIGURE_SUFFIXES + DATA_SUFFIXES,
    *,
    force: bool = False,
) -> Path:
    """Return `path` as a Path if a file can be written there; write nothing.

    allowed : the suffixes that name a format. force : overwrite data, and read-only files.

    InputError: the suffix names no allowed format, or one that needs pyarrow. OutputError: the
    folder is missing or read-only, the path is a folder or a device, or the file holds data or is
    read-only and `force` is not set.
    """
    path = Path(os.path.expanduser(path))  # noqa: PTH111  leaves ~nobody as it is
    suffix = path.suffix.lower()
    with translated(path, "written"):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            expect_plain(path)
        if suffix not in allowed:
            endings = ", ".join(allowed)
            raise InputError(f"{path.name!r} must end in {endings}: the ending chooses the format.")
        if suffix == ".parquet":
            require("pyarrow", "parquet", "Writing .parquet needs")
        target = _link_target(path)
        if not target.parent.is_dir():
            raise OutputError(f"The folder {target.parent} does not exist. Create it first.")
        if not os.access(target.parent, os.W_OK | os.X_OK):
            raise OutputError(f"The folder {target.parent} is read-only. Use another.")
        if target.exists() and not force:
            reason = "" if os.access(path, os.W_OK) else "is read-only"
            if not reason and suffix in DATA_SUFFIXES and path.stat().st_size:
                reason = "exists, and data are not overwritten by default"
            if reason:
                raise OutputError(
                    f"{path} {reason}. Name another file, or overwrite it: --force, in Python "
                    "force=True."
                )
    return path


def check_folder(path: str | os.PathLike[str]) -> None:
    """Raise OutputError unless files can be written in this folder; it may be missing as yet."""
    if not os.fspath(path):
        raise InputError("The folder has no name. Name one.")
    path = Path(path)
    with translated(path, "written", "Choose another folder."):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            expect_plain(path, stat.S_ISDIR)
        existing = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
        if not existing.is_dir():
            raise OSError(0, f"{existing} is not a folder")
        if not os.access(existing, os.W_OK | os.X_OK):
            raise OSError(0, f"{existing} is read-only")


def _link_target(path: Path) -> Path:
    return Path(os.path.realpath(path)) if path.is_symlink() else path


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`, which becomes `path` when the block ends well.

    So a file appears whole or not at all, with the permissions of the one it replaces. OutputError:
    the file cannot be written; what was at `path` is unchanged.
    """
    path = _link_target(path)
    # The name is chosen before the file is made, so that an interrupt in between leaves nothing.
    temporary = path.parent / f"{_PREFIX}{secrets.token_hex(8)}{_SUFFIX}"
    advice = "Nothing changed. Free some space, or name another file."
    try:
        with translated(path, "written", advice):
            mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else None
            # Never readable for more users than the file will be.
            temporary.touch(0o666 if mode is None else mode | stat.S_IWUSR, exist_ok=False)
            yield temporary
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())
            if mode is not None:
                temporary.chmod(mode)
            temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):  # the first error is the one to report
            temporary.unlink()
