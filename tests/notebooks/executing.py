"""Run notebooks, and check how those of the gallery are stored."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

GALLERY = Path(__file__).parents[2] / "gallery"
ONE_MODEL = f"""
import sys
sys.path.insert(0, {str(GALLERY.parent / "tests")!r})
from attnviz.analyses.survey import corpus
from attnviz.attribution import reference
from attnviz.pipeline import attend
from one_model import load_once
from one_run import Runs
attend.load_checkpoint = load_once
attend.run = corpus.run = reference.run = Runs()
%config InlineBackend.print_figure_kwargs = {{"dpi": 40, "bbox_inches": None}}
"""


def execute_all(books, folder):
    """Run notebooks in one kernel, each in a folder; return each by name, and its folder.

    The kernel reads each model from the disk once, runs it on each text once, and draws small.
    """
    whole, places = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(ONE_MODEL)]), {}
    for name, book in books.items():
        places[name] = folder / name
        places[name].mkdir()
        start = f"%reset -f\nimport os\nos.chdir({str(places[name])!r})\ndel os"
        whole.cells += [nbformat.v4.new_code_cell(start), *book.cells]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IPYTHONDIR", str(folder / "ipython"))
        patch.setenv("JUPYTER_RUNTIME_DIR", str(folder / "runtime"))
        patch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        where = {"metadata": {"path": str(folder)}}
        NotebookClient(whole, timeout=300, resources=where).execute()  # raises on an error
    return {name: (book, places[name]) for name, book in books.items()}  # with its outputs


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
