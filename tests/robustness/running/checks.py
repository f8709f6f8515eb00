"""What is checked of every run, whatever its case."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from PIL import Image
from safetensors import safe_open

from robustness.catalogue.case import Case
from robustness.running.scene import SECONDS, Outcome

LONGEST = 400  # characters of a line that says what is wrong
FAILED = (2, 3, 4)
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LIBRARIES = re.compile(r"Traceback|Warning\b|site-packages|Exception ignored|\bINFO\b|%\|")


def check(case: Case, ended: Outcome, *, called: bool) -> None:
    """Check one run: its code, what it said, and the files that it left."""
    told = f"{ended.code}\n{ended.out[-2000:]}\n{ended.err[-4000:]}"
    assert ended.code is not None, f"it hung for {SECONDS} s\n{told}"
    assert not _LIBRARIES.search(ended.err), told
    assert not _CONTROL.search(ended.err), told
    out = _COLOUR.sub("", ended.out) if "a terminal" in case.within else ended.out
    assert not _CONTROL.search(out), told
    assert ended.code == case.code, told
    if ended.code in FAILED:
        _check_line(case, ended, told)
        assert len(ended.err) <= LONGEST, f"{len(ended.err)} characters\n{told}"
    else:
        assert called or case.said in ended.out + ended.err, told
    printed = not called and "stdout" not in case.within
    if ended.code in (0, 5) and "--json" in (case.typed or "") and printed:
        json.loads(ended.out)
    assert ended.written == set(case.leaves), told
    assert not ended.lost, ended.lost
    for name in case.leaves:
        opens(ended.folder / name)


def _check_line(case: Case, ended: Outcome, told: str) -> None:
    """Check the one line of a failure; there is none where nobody could read it."""
    assert ended.out == "", told
    if "stderr" in case.within:
        return
    assert ended.err.startswith("attnviz: "), told
    assert ended.err.count("\n") == 1, told
    assert ended.err.endswith("\n"), told
    assert case.said in ended.err, told


def opens(path: Path) -> None:
    """Check that a file is whole, by a reader of its format."""
    assert path.stat().st_size, path
    {
        ".png": _open_image, ".svg": ET.parse, ".pdf": _open_pdf, ".html": _open_page,
        ".htm": _open_page, ".json": _open_json, ".npz": _open_arrays,
        ".safetensors": _open_tensors, ".parquet": pq.read_table,
    }[path.suffix.lower()](path)  # fmt: skip


def _open_image(path: Path) -> None:
    with Image.open(path) as image:
        image.load()


def _open_pdf(path: Path) -> None:
    data = path.read_bytes()
    assert data.startswith(b"%PDF-")
    assert data.rstrip().endswith(b"%%EOF")


class _Page(HTMLParser):
    """Which elements are open."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.elements.append(tag)


def _open_page(path: Path) -> None:
    text = path.read_text("utf-8")
    page = _Page()
    page.feed(text)
    page.close()
    assert text.rstrip().endswith("</html>")
    assert page.elements[:2] == ["html", "head"]


def _open_json(path: Path) -> None:
    assert isinstance(json.loads(path.read_text("utf-8")), dict)


def _open_arrays(path: Path) -> None:
    with np.load(path, allow_pickle=False) as arrays:
        for name in arrays.files:
            assert arrays[name] is not None


def _open_tensors(path: Path) -> None:
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118
            file.get_tensor(name)
