"""The notebook of the formula computes by hand what attnviz has. All install attnviz in Colab."""

import nbformat
import pytest

from tests.notebooks.executing import GALLERY, check_stored, execute, streams

NOTEBOOKS = sorted((GALLERY / "notebooks").glob("*.ipynb"))
FILE = GALLERY / "notebooks" / "formula.ipynb"


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_the_first_cell_installs_attnviz_where_it_is_not(file):
    check_stored(file)
    first = next(
        cell for cell in nbformat.read(file, as_version=4).cells if "code" in cell.cell_type
    )
    assert 'if find_spec("attnviz") is None:' in first.source
    assert first.source.endswith("%pip install -q attnviz")


def test_the_numbers_computed_by_hand_are_those_of_the_model(tmp_path):
    book, _ = execute(FILE, tmp_path)
    printed = "".join(output.text for output in streams(book))
    assert float(printed.partition("largest difference: ")[2].split()[0]) < 1e-5
    assert "verified: 72 heads" in printed
    flat, sharp = map(
        float, next(line for line in printed.splitlines() if line[0].isdigit()).split()
    )
    assert sharp < flat
