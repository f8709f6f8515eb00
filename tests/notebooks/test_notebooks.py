"""The notebooks of the gallery run from top to bottom, with no workaround, and show what they say.

One kernel runs all of them, each with no variables and in a folder of its own.
"""

import json
import re

import nbformat
import pytest

from tests.notebooks.executing import GALLERY, check_stored, execute_all, streams

NOTEBOOKS = {file.stem: file for file in sorted((GALLERY / "notebooks").glob("*.ipynb"))}
LESSONS = [name for name in NOTEBOOKS if name.startswith("lesson_")]
RUN = "quickstart", "formula", "researcher", *LESSONS
CELLS = [
    "import attnviz\nweights = [[[[0.5, 0.5], [0.3, 0.7]]] * 2]\n"
    "result = attnviz.from_weights(weights, ['the', 'train'])",
    "axes = attnviz.plot.heatmap(result)",
    "axes = attnviz.plot.heatmap(result)",
    "attnviz.plot.heads(result)",
    "import matplotlib.pyplot as plt\nfigure, ax = plt.subplots()\nax.plot([0, 1]);",
    "result",
    "attnviz.attention_map(result, layer=0, head=0)",
    "figure, (left, right) = plt.subplots(1, 2)\nattnviz.plot.heatmap(result, ax=left);",
]


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """Run a notebook of CELLS and those of RUN; return each with its folder, by name."""
    books = {"figures": nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, CELLS)])}
    books |= {name: nbformat.read(NOTEBOOKS[name], as_version=4) for name in RUN}
    return execute_all(books, tmp_path_factory.mktemp("notebooks"))


@pytest.fixture
def quickstart(executed):
    return executed["quickstart"]


@pytest.fixture
def researcher(executed):
    return executed["researcher"]


def outputs(book, kind):
    """Return the outputs of one kind, in cell order."""
    every = [output for cell in book.cells for output in cell.get("outputs", [])]
    return [output.data[kind] for output in every if kind in output.get("data", {})]


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


def test_each_figure_is_shown_once(executed):
    book, _ = executed["figures"]
    data = [[output.get("data", {}) for output in cell.outputs] for cell in book.cells]
    images = [  # drawn by the notebook or inside HTML
        sum(("image/png" in one) + one.get("text/html", "").count("<img") for one in of_cell)
        for of_cell in data
    ]
    assert images == [0, *[1] * (len(CELLS) - 1)]


@pytest.mark.parametrize("file", NOTEBOOKS.values(), ids=NOTEBOOKS)
def test_it_is_stored_without_outputs_and_the_first_cell_installs_attnviz(file):
    check_stored(file)
    first = next(
        cell for cell in nbformat.read(file, as_version=4).cells if "code" in cell.cell_type
    )
    assert 'if find_spec("attnviz") is None:' in first.source
    assert first.source.endswith("%pip install -q attnviz")


def test_the_numbers_computed_by_hand_are_those_of_the_model(executed):
    book, _ = executed["formula"]
    printed = "".join(output.text for output in streams(book))
    assert float(printed.partition("largest difference: ")[2].split()[0]) < 1e-5
    assert "verified: 72 heads" in printed
    flat, sharp = map(
        float, next(line for line in printed.splitlines() if line[0].isdigit()).split()
    )
    assert sharp < flat


@pytest.mark.parametrize("name", LESSONS)
def test_each_exercise_of_a_lesson_checks_its_answer(executed, name):
    cells = executed[name][0].cells  # it ran, so every answer is right
    asked = [n for n, cell in enumerate(cells) if cell.source.startswith("**Exercise")]
    asked += [n for n, cell in enumerate(cells) if "\n**Exercise" in cell.source]
    assert len(asked) >= 3
    assert all("assert " in cells[n + 1].source for n in asked)
    printed = [output for output in streams(executed[name][0]) if output.name == "stderr"]
    assert not printed


@pytest.mark.parametrize("name", LESSONS)
def test_each_figure_of_a_lesson_is_shown(executed, name):
    cells = [one for one in executed[name][0].cells if one.cell_type == "code"]
    drawing = [one for one in cells if re.search(r"\.plot(\.|\()", one.source)]
    assert drawing
    for one in drawing:
        assert any("image/png" in output.get("data", {}) for output in one.outputs), one.source


def test_the_course_has_five_lessons_that_the_page_of_lessons_names():
    page = (GALLERY / "lessons.md").read_text("utf-8")
    assert [name for name in NOTEBOOKS if f"notebooks/{name}.ipynb" in page] == LESSONS
    assert len(LESSONS) == 5
    figures = re.findall(r"\((fig\w+\.py)\)", page)
    assert figures
    assert all((GALLERY / figure).is_file() for figure in figures)


def test_the_page_of_lessons_names_sections_that_exist():
    page = (GALLERY / "lessons.md").read_text("utf-8")
    named = set(re.findall(r"\| \[(\d) §(\d)\]\(", page))
    assert len(named) > 15
    for lesson, section in named:
        text = NOTEBOOKS[f"lesson_{lesson}"].read_text("utf-8")
        assert f"## {section}. " in text, (lesson, section)


@pytest.mark.parametrize("name", LESSONS)
def test_links_of_a_lesson_lead_to_files(name):
    file = NOTEBOOKS[name]
    links = re.findall(r"\]\((\.\./[^)#]+)\)", file.read_text("utf-8"))
    assert links
    assert all((file.parent / link).is_file() for link in links)


def test_it_draws_figures_and_shows_the_view(quickstart):
    book, _ = quickstart
    assert len(outputs(book, "image/png")) == 3
    one, two = (html for html in outputs(book, "text/html") if "<iframe" in html)
    assert "the train left the station on time" in one
    assert "We sat on the bank of the river." in two
    assert all('<iframe sandbox="allow-scripts' in html for html in (one, two))


def test_the_cells_of_the_quickstart_give_no_warnings(quickstart):
    book, _ = quickstart
    printed = streams(book)
    assert [output.name for output in printed] == ["stdout"]
    assert printed[0].text.startswith("verified: 72 heads recomputed in float64")


def test_its_saved_files_exist(quickstart):
    _, folder = quickstart
    assert {path.name for path in folder.iterdir() if path.is_file()} == {
        "train.pdf", "train.html", "train.npz"
    }  # fmt: skip


def test_a_result_is_shown_once_with_its_figure(researcher):
    book, _ = researcher
    (outputs,) = [cell(book, 'result = model.attend("We sat').outputs]
    assert [output.output_type for output in outputs] == ["execute_result"]
    html = outputs[0].data["text/html"]
    assert html.count("<img") == 1
    assert html.count("verified") == 1  # in the text for those who do not see the figure


def test_its_figures_are_drawn(researcher):
    book, _ = researcher
    starts = ("apart =", "best = list(ranking)", "given = attnviz.from_weights")
    assert all(len(shown(book, start, "image/png")) == 1 for start in starts)
    (animation,) = shown(book, "animation = FuncAnimation")
    assert animation.count("data:image/png;base64") == 6


def test_the_check_finds_the_planted_fault(researcher):
    book, folder = researcher
    (confirmed,) = shown(book, "attnviz.check(attentions, encoding, model)")
    assert "agrees: 72 heads" in confirmed
    (found,) = shown(book, "report = attnviz.check(faulty")
    assert "heads 1 and 5 of layer 2 are swapped" in found
    report = json.loads((folder / "report.json").read_text())
    assert (report["first"]["layer"], report["first"]["head"]) == (2, 1)
    assert (folder / "sinks.csv").read_text().startswith("layer,0,1,2")


def test_the_cells_of_the_researcher_give_no_warnings(researcher):
    book, _ = researcher
    printed = streams(book)
    assert {output.name for output in printed} == {"stdout"}
    assert "verified: 12 heads" in printed[-1].text
