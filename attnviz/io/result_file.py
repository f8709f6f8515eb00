"""Write a result to a safetensors file, and read it again.

The metadata of the file has `about`, for other programs, and for attnviz the `tree` of the result,
the `format` of that tree, the version of `attnviz` that wrote it, and `sha256`: the digest of the
whole file with zeros in place of the digest itself. A file that changed by one bit is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from importlib.metadata import version
from pathlib import Path

import torch
from safetensors.torch import load, save
from torch import Tensor

from attnviz.errors import InputError
from attnviz.io.serialize import decode, encode
from attnviz.results.base import Savable
from attnviz.runtime.memory import MemoryBudget, is_out_of_memory

FORMAT = 1  # the next where today's attnviz could not read what is written
_LARGEST = 100_000_000  # bytes of a header, in safetensors
_SHA256, _BLANK = b'"sha256":"', b"0" * 64


def write_result(path: Path, result: Savable, shown: dict[str, Tensor], about: str) -> None:
    """Write a result; the tensors in `shown` keep their names.

    Raises
    ------
    InputError : it is no result, or has more labels than a header may hold.
    """
    tree, tensors = encode(result, shown)
    metadata = {
        "about": about,
        "tree": json.dumps(tree, allow_nan=False, separators=(",", ":")),
        "format": str(FORMAT),
        "attnviz": version("attnviz"),
        "sha256": _BLANK.decode(),
    }
    # Copies, since several may be parts of one. As bytes: the library's own writer reports a full
    # disk by an exception of its own.
    copies = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    data = save(copies, metadata)
    if (length := int.from_bytes(data[:8], "little")) > _LARGEST:
        raise InputError(
            f"Expected labels of at most {_LARGEST:,} bytes, got {length:,}. Keep fewer layers, or "
            "save a map of the result."
        )
    at = data.index(_SHA256 + _BLANK) + len(_SHA256)
    with path.open("wb") as file:
        file.write(data[:at])
        file.write(hashlib.sha256(data).hexdigest().encode())
        file.write(memoryview(data)[at + len(_BLANK) :])


def load_result(path: str | os.PathLike[str]) -> Savable:
    """Read a result that `save_result` wrote as .safetensors: the same, bit for bit, on the CPU.

    Raises
    ------
    InputError : there is no such file, it holds no result, it changed since it was written, or
        there is too little memory for it.
    """
    path = Path(path)
    try:
        data, metadata = _read(path)
        return decode(json.loads(metadata["tree"]), load(data))
    except InputError:
        raise
    except OSError as error:
        raise _refused(path, f"it cannot be read: {error.strerror}") from error
    except Exception as error:  # a forged file can raise anything, in any library
        if is_out_of_memory(error):
            memory = MemoryBudget(
                f"the result in {path}", torch.device("cpu"), "Keep fewer layers of it."
            )
            raise memory.shortage(path.stat().st_size) from error
        what = str(error) if isinstance(error, ValueError) else type(error).__name__
        raise _refused(path, f"it makes no sense: {what}") from error


def _read(path: Path) -> tuple[bytes, dict[str, str]]:
    """Return the bytes and the metadata of a file, which must be as it was written."""
    try:
        found = path.stat()
    except FileNotFoundError:
        raise _refused(path, "there is no such file") from None
    mode, size = found.st_mode, found.st_size
    if not stat.S_ISREG(mode):
        raise _refused(path, "it is a folder" if stat.S_ISDIR(mode) else "it is no plain file")
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > _LARGEST:
            raise _refused(path, "it is no safetensors file" if size else "it is empty")
        if 8 + length > size:
            raise _refused(path, "it was cut short")
        header = json.loads(file.read(length))
        metadata: dict[str, str] = header.pop("__metadata__", {})
        if not metadata.keys() >= {"tree", "format", "attnviz", "sha256"}:
            raise _refused(path, "it is of another kind, such as the weights of a model")
        whole = 8 + length + max((each["data_offsets"][1] for each in header.values()), default=0)
        if whole != size:
            raise _refused(path, "it was cut short, or more was put into it")
        file.seek(0)
        data = file.read(whole)
    known = metadata["sha256"].encode()
    digest = hashlib.sha256(data[: 8 + length].replace(_SHA256 + known, _SHA256 + _BLANK))
    digest.update(memoryview(data)[8 + length :])
    if digest.hexdigest().encode() != known:
        raise _refused(path, "it was changed after it was written, as its SHA-256 shows")
    if metadata["format"] != str(FORMAT):
        raise InputError(
            f"Expected a result in format {FORMAT}, got {path} in format "
            f"{metadata['format']!r:.20}, written by attnviz {metadata['attnviz']!r:.20}. "
            "Upgrade attnviz."
        )
    return data, metadata


def _refused(path: Path, why: str) -> InputError:
    said = f"Expected a result that was saved as .safetensors in {path}, but {why}"
    return InputError(f"{' '.join(said.split())}. Name another file, or save the result anew.")
