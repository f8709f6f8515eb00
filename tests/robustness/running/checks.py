"""Checks that apply to every run."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from PIL import Image
from safetensors.torch import load_file

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
    OPEN[path.suffix.lower()](path)


def _open_pdf(path: Path) -> None:
    data = path.read_bytes()
    assert data.startswith(b"%PDF-")
    assert data.rstrip().endswith(b"%%EOF")


def _open_page(path: Path) -> None:
    elements: list[str] = []
    page = HTMLParser()
    page.handle_starttag = lambda tag, attrs: elements.append(tag)  # type: ignore[method-assign]
    page.feed(text := path.read_text("utf-8"))
    page.close()
    assert text.rstrip().endswith("</html>")
    assert elements[:2] == ["html", "head"]


OPEN: dict[str, Callable[[Path], Any]] = {
    ".png": lambda path: Image.open(path).load(),
    ".svg": ET.parse,
    ".pdf": _open_pdf,
    ".html": _open_page,
    ".json": lambda path: dict(json.loads(path.read_text("utf-8"))),
    ".npz": lambda path: dict(np.load(path, allow_pickle=False)),
    ".safetensors": load_file,
    ".parquet": pq.read_table,
}
