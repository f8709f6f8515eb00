"""Runs a notebook, and writes it as a page."""

from __future__ import annotations

import base64
import html
import os
import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient

from docs.text import frame


def page(file: Path, folder: Path, address: str, *, run: bool = True) -> str:
    """Run a notebook; return it as Markdown. Pictures and pages go to `folder` (`address`)."""
    book = nbformat.read(file, as_version=4)
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"  # a bar would stay on the page
    with TemporaryDirectory() as scratch:
        if run:
            NotebookClient(book, timeout=600, resources={"metadata": {"path": scratch}}).execute()
    folder.mkdir(parents=True, exist_ok=True)
    parts = []
    for number, cell in enumerate(book.cells):
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        if "%pip" in cell.source:
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for index, output in enumerate(cell.outputs if run else []):
            parts.append(_output(output, folder, address, f"{number}-{index}"))
    return "\n\n".join(parts) + "\n"


def _output(output: nbformat.NotebookNode, folder: Path, address: str, name: str) -> str:
    if output.output_type == "stream":
        if output.name == "stderr":  # a warning, which would stand on the page
            sys.exit(f"A notebook writes to standard error: {output.text.rstrip()}")
        return _printed(output.text)
    data = output.data
    if "image/png" in data:
        return _picture(data["image/png"], folder, address, name)
    source = data.get("text/html", "")
    if match := re.search(r'srcdoc="([^"]*)"', source):
        (folder / f"{name}.html").write_text(html.unescape(match[1]), encoding="utf-8")
        return frame(f"{address}/{name}.html", "The interactive page", 760)
    if match := re.search(r"data:image/png;base64,([^\"']+)", source):
        return _picture(match[1], folder, address, name)
    return _printed(data.get("text/plain", ""))


def _printed(text: str) -> str:
    return f'```text {{ .output title="Output" }}\n{text.rstrip()}\n```'


def _picture(data: str, folder: Path, address: str, name: str) -> str:
    (folder / f"{name}.png").write_bytes(base64.b64decode(data))
    return f"![What the cell above draws]({address}/{name}.png)"
