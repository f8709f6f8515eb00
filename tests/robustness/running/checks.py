"""Checks that apply to every run."""

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

LONGEST = 400  # maximum length of an error line
FAILED = (2, 3, 4)
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_LIBRARIES = re.compile(r"Traceback|Warning\b|site-packages|Exception ignored|\bINFO\b|%\|")


def check(case: Case, outcome: Outcome) -> None:
    """Check one run: its exit code, its output, and its files."""
    details = f"{outcome.code}\n{outcome.out[-2000:]}\n{outcome.err[-4000:]}"
    assert outcome.code is not None, f"it hung for {SECONDS} s\n{details}"
    assert not _LIBRARIES.search(outcome.err), details
    assert not _CONTROL.search(outcome.err), details
    out = _COLOR.sub("", outcome.out) if "a terminal" in case.within else outcome.out
    assert not _CONTROL.search(out), details
    assert outcome.code == case.code, details
    if outcome.code in FAILED:
        _check_line(case, outcome, details)
        assert len(outcome.err) <= LONGEST, f"{len(outcome.err)} characters\n{details}"
    else:
        assert case.said in outcome.out + outcome.err, details
    printed = case.typed is not None and "stdout" not in case.within
    if outcome.code in (0, 5) and "--json" in (case.typed or "") and printed:
        json.loads(outcome.out)
    assert outcome.written == set(case.leaves), details
    assert not outcome.lost, outcome.lost
    for name in case.leaves:
        check_file(outcome.folder / name)


def _check_line(case: Case, outcome: Outcome, details: str) -> None:
    """Check the single error line; there is none if stderr is broken."""
    assert outcome.out == "", details
    if "stderr" in case.within:
        return
    assert outcome.err.startswith("attnviz: "), details
    assert outcome.err.count("\n") == 1, details
    assert outcome.err.endswith("\n"), details
    assert case.said in outcome.err, details


def check_file(path: Path) -> None:
    """Check that a file is complete by opening it with a reader of its format."""
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
    """Collect the elements of a page."""

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
