"""The gallery notebook runs from top to bottom, and is stored without changes."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FILE = Path(__file__).parents[2] / "gallery" / "quickstart.ipynb"


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """Run all cells of the notebook in a separate folder."""
    folder = tmp_path_factory.mktemp("quickstart")
    book = nbformat.read(FILE, as_version=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IPYTHONDIR", str(folder / "ipython"))
        patch.setenv("JUPYTER_RUNTIME_DIR", str(folder / "runtime"))
        where = {"metadata": {"path": str(folder)}}
        NotebookClient(book, timeout=300, resources=where).execute()  # raises on an error
    return book, folder


def outputs(book, kind):
    """Return the outputs of one kind, in cell order."""
    every = [output for cell in book.cells for output in cell.get("outputs", [])]
    return [output.data[kind] for output in every if kind in output.get("data", {})]


def test_it_is_stored_without_outputs_and_valid():
    book = nbformat.read(FILE, as_version=4)
    nbformat.validate(book)
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert code
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)


def test_it_draws_figures_and_shows_the_view(executed):
    book, _ = executed
    assert len(outputs(book, "image/png")) == 3
    one, two = (html for html in outputs(book, "text/html") if "<iframe" in html)
    assert "the train left the station on time" in one
    assert "We sat on the bank of the river." in two
    assert all('<iframe sandbox="allow-scripts' in html for html in (one, two))


def test_the_cells_give_no_warnings(executed):
    book, _ = executed
    streams = [
        output
        for cell in book.cells
        for output in cell.get("outputs", [])
        if output.output_type == "stream"
    ]
    assert [output.name for output in streams] == ["stdout"]
    assert streams[0].text.startswith("verified: 72 heads recomputed in float64")


def test_its_saved_files_exist(executed):
    _, folder = executed
    assert {path.name for path in folder.iterdir() if path.is_file()} == {
        "train.pdf", "train.html", "train.npz"
    }  # fmt: skip
