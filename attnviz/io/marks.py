"""The mark by which attnviz knows a file that it wrote: each format carries it in one place.

A file that merely mentions attnviz has none, and one that another program saved again loses it.
"""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

GENERATOR = "attnviz"
_MOST = 100_000_000  # bytes of a header, in safetensors; and of a footer


def is_ours(path: Path) -> bool:
    """Tell whether attnviz wrote a file, by the mark that its format keeps in one place.

    Little is read, nothing is run, and what cannot be read is not ours.
    """
    suffix = path.suffix.lower()
    try:
        with path.open("rb") as file:
            if suffix in _FIRST:
                return _FIRST[suffix].match(file.read(2048)) is not None
            return _FURTHER[suffix](file)
    except Exception:  # whatever a file does to us that only bears our ending
        return False


def is_whole(path: Path) -> bool:
    """Tell whether a file of ours keeps a whole result, which only a run could give again."""
    if path.suffix.lower() != ".safetensors":
        return False
    try:
        with path.open("rb") as file:
            return _metadata(file)["tree"].startswith('[{"AttentionResult":')
    except Exception:  # as above
        return False


def _tail(file: BinaryIO, size: int) -> bytes:
    file.seek(-min(size, file.seek(0, os.SEEK_END)), os.SEEK_END)
    return file.read(size)


def _pdf_is_ours(file: BinaryIO) -> bool:
    """Follow the trailer and the table of objects to the one that names the creator."""
    end = _tail(file, 1024)
    found = re.search(rb"/Info (\d+) 0 R.*startxref\s+(\d+)\s+%%EOF\s*\Z", end, re.S)
    if found is None:
        return False
    number, table = int(found[1]), int(found[2])
    file.seek(table)
    first = re.match(rb"xref\s+0 \d+\s*\n", file.read(64))
    file.seek(table + first.end() + 20 * number if first else 0)
    file.seek(int(file.read(10)))
    return re.match(rb"\d+ 0 obj\s*<< /Creator \(attnviz\)", file.read(64)) is not None


def _npz_is_ours(file: BinaryIO) -> bool:
    """Look at the comment of the archive, the last that is in it."""
    comment = GENERATOR.encode()
    end = _tail(file, 22 + len(comment))
    return end.startswith(b"PK\5\6") and end[20:] == struct.pack("<H", len(comment)) + comment


def _safetensors_is_ours(file: BinaryIO) -> bool:
    """Look for our key in the metadata of the header."""
    return "attnviz" in _metadata(file)


def _metadata(file: BinaryIO) -> dict[str, str]:
    """Return what the header of a safetensors file says beside its tensors."""
    (size,) = struct.unpack("<Q", file.read(8))
    said = json.loads(file.read(size))["__metadata__"] if size <= _MOST else None
    return said if isinstance(said, dict) else {}


def _parquet_is_ours(file: BinaryIO) -> bool:
    """Look for generator: attnviz among the pairs of the footer, as Thrift's compact protocol."""
    size, magic = struct.unpack("<I4s", _tail(file, 8))
    pair = b"\x18\x09generator\x18\x07attnviz"
    return magic == b"PAR1" and size <= _MOST and pair in _tail(file, size + 8)


_PAGE = re.compile(
    rb'<!doctype html>\s*<html lang="en">\s*<head>\s*<meta charset="utf-8">\s*'
    rb'<meta name="generator" content="attnviz">'
)
# The beginning of what matplotlib, the template of pages and `save_result` write.
_FIRST = {
    ".png": re.compile(rb"\x89PNG\r\n\x1a\n.{25}\0\0\0\x10tEXtSoftware\0attnviz", re.S),
    ".svg": re.compile(
        rb"<\?xml [^>]*>\s*<!DOCTYPE svg [^>]*>\s*<svg [^>]*>\s*<metadata>\s*<rdf:RDF [^>]*>"
        rb"\s*<cc:Work>\s*<dc:type [^>]*>\s*<dc:format>image/svg\+xml</dc:format>"
        rb"\s*<dc:creator>\s*<cc:Agent>\s*<dc:title>attnviz</dc:title>"
    ),
    **dict.fromkeys((".html", ".htm"), _PAGE),
    ".json": re.compile(rb'\{\s*"generator": "attnviz"[,}]'),
}
_FURTHER: dict[str, Callable[[BinaryIO], bool]] = {
    ".pdf": _pdf_is_ours,
    ".npz": _npz_is_ours,
    ".safetensors": _safetensors_is_ours,
    ".parquet": _parquet_is_ours,
}
