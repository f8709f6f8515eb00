"""The researcher's notebook runs from top to bottom, with no workaround, and shows what it says."""

import json

import pytest

from tests.notebooks.executing import GALLERY, check_stored, execute, streams

FILE = GALLERY / "notebooks" / "researcher.ipynb"


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """Run all cells of the notebook in a separate folder."""
    return execute(FILE, tmp_path_factory.mktemp("researcher"))


def cell(book, start):
    """Return the cell with a line that starts so."""
    (found,) = (
        cell
        for cell in book.cells
        if cell.cell_type == "code" and f"\n{start}" in f"\n{cell.source}"
    )
    return found


def shown(book, start, kind="text/html"):
    return [
        output.data[kind] for output in cell(book, start).outputs if kind in output.get("data", {})
    ]


def test_it_is_stored_without_outputs_and_valid():
    check_stored(FILE)


def test_a_result_is_shown_once_with_its_figure(executed):
    book, _ = executed
    (outputs,) = [cell(book, 'result = model.attend("We sat').outputs]
    assert [output.output_type for output in outputs] == ["execute_result"]
    html = outputs[0].data["text/html"]
    assert html.count("<img") == 1
    assert html.count("verified") == 1  # in the text for those who do not see the figure


def test_its_figures_are_drawn(executed):
    book, _ = executed
    starts = ("apart =", "best = list(ranking)", "given = attnviz.from_weights")
    assert all(len(shown(book, start, "image/png")) == 1 for start in starts)
    (animation,) = shown(book, "animation = FuncAnimation")
    assert animation.count("data:image/png;base64") == 6


def test_the_check_finds_the_planted_fault(executed):
    book, folder = executed
    (confirmed,) = shown(book, "attnviz.check(attentions, encoding, model)")
    assert "agrees: 72 heads" in confirmed
    (found,) = shown(book, "report = attnviz.check(faulty")
    assert "heads 1 and 5 of layer 2 are swapped" in found
    report = json.loads((folder / "report.json").read_text())
    assert (report["first"]["layer"], report["first"]["head"]) == (2, 1)
    assert (folder / "sinks.csv").read_text().startswith("layer,0,1,2")


def test_the_cells_give_no_warnings(executed):
    book, _ = executed
    printed = streams(book)
    assert {output.name for output in printed} == {"stdout"}
    assert "verified: 12 heads" in printed[-1].text
