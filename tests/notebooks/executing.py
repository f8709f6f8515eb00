"""Run a notebook of the gallery, and check how it is stored."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

GALLERY = Path(__file__).parents[2] / "gallery"


def execute(file, folder):
    """Run all cells of a notebook in a folder; return the notebook and the folder."""
    book = nbformat.read(file, as_version=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IPYTHONDIR", str(folder / "ipython"))
        patch.setenv("JUPYTER_RUNTIME_DIR", str(folder / "runtime"))
        where = {"metadata": {"path": str(folder)}}
        NotebookClient(book, timeout=300, resources=where).execute()  # raises on an error
    return book, folder


def streams(book):
    """Return what the cells print, and their warnings, in cell order."""
    every = [output for cell in book.cells for output in cell.get("outputs", [])]
    return [output for output in every if output.output_type == "stream"]


def check_stored(file):
    """Check that a notebook is valid and stored without outputs."""
    book = nbformat.read(file, as_version=4)
    nbformat.validate(book)
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert code
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)
