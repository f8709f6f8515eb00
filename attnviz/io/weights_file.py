"""Read the attention weights that another tool has written, without running code of the file."""

from __future__ import annotations

import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any

from attnviz.errors import InputError
from attnviz.io.files import is_file

WEIGHT_SUFFIXES = (".npy", ".npz", ".safetensors")


def check_weights_file(path: Path) -> None:
    """Raise InputError unless a file may hold weights; it is not read."""
    if path.suffix.lower() not in WEIGHT_SUFFIXES:
        raise InputError(
            f"{str(path)!r:.60} does not end in {', '.join(WEIGHT_SUFFIXES)}. Save the weights as "
            "one of these, for example with numpy.savez."
        )
    if not is_file(path):
        raise InputError(f"There is no file {path}: check the path.")


def read_weights(path: Path) -> Any:
    """Return the array of a file, or its arrays by name, for `attnviz.check`.

    Raises
    ------
    InputError
        The file cannot be read, or holds pickled objects, which could run code.
    """
    import numpy as np
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    check_weights_file(path)
    try:
        if path.suffix.lower() == ".safetensors":
            arrays: dict[str, Any] = dict(load_file(path))
        else:
            content = np.load(path, allow_pickle=False)
            arrays = {"0": content} if isinstance(content, np.ndarray) else dict(content)
    except MemoryError as error:
        raise InputError(f"{path} takes more memory than there is.") from error
    except (
        OSError, ValueError, EOFError, NotImplementedError, SyntaxError, zlib.error,
        tokenize.TokenError, zipfile.BadZipFile, SafetensorError,
    ) as error:  # fmt: skip
        with path.open("rb") as stream:
            start = stream.read(6)
        is_pickle = start.startswith((b"\x93NUMPY", b"PK", b"\x80")) and "pickle" in str(error)
        reason = (
            "it holds pickled objects, which could run code"
            if is_pickle
            else "it is damaged, or of another format"
        )
        raise InputError(
            f"{path} cannot be read: {reason}. Save the weights as arrays of numbers."
        ) from error
    return next(iter(arrays.values())) if len(arrays) == 1 and _is_of_model(arrays) else arrays


def _is_of_model(arrays: dict[str, Any]) -> bool:
    """Whether the only array is of all layers: (layers, heads, m, n)."""
    (array,) = arrays.values()
    return len(array.shape) != 3
