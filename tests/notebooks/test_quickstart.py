"""The gallery notebook runs from top to bottom, and is stored without changes."""

import pytest

from tests.notebooks.executing import GALLERY, check_stored, execute, streams

FILE = GALLERY / "notebooks" / "quickstart.ipynb"


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """Run all cells of the notebook in a separate folder."""
    return execute(FILE, tmp_path_factory.mktemp("quickstart"))


def outputs(book, kind):
    """Return the outputs of one kind, in cell order."""
    every = [output for cell in book.cells for output in cell.get("outputs", [])]
    return [output.data[kind] for output in every if kind in output.get("data", {})]


def test_it_is_stored_without_outputs_and_valid():
    check_stored(FILE)


def test_it_draws_figures_and_shows_the_view(executed):
    book, _ = executed
    assert len(outputs(book, "image/png")) == 3
    one, two = (html for html in outputs(book, "text/html") if "<iframe" in html)
    assert "the train left the station on time" in one
    assert "We sat on the bank of the river." in two
    assert all('<iframe sandbox="allow-scripts' in html for html in (one, two))


def test_the_cells_give_no_warnings(executed):
    book, _ = executed
    printed = streams(book)
    assert [output.name for output in printed] == ["stdout"]
    assert printed[0].text.startswith("verified: 72 heads recomputed in float64")


def test_its_saved_files_exist(executed):
    _, folder = executed
    assert {path.name for path in folder.iterdir() if path.is_file()} == {
        "train.pdf", "train.html", "train.npz"
    }  # fmt: skip
