"""A notebook shows every figure once, whatever was drawn before it."""

import nbformat
import pytest
from nbclient import NotebookClient

CELLS = [
    "import attnviz\nresult = attnviz.attend('the train left')",
    "axes = attnviz.plot.heatmap(result)",
    "axes = attnviz.plot.heatmap(result)",
    "attnviz.plot.heads(result)",
    "import matplotlib.pyplot as plt\nfigure, ax = plt.subplots()\nax.plot([0, 1]);",
    "result",
    "attnviz.attention_map(result, layer=0, head=0)",
    "figure, (left, right) = plt.subplots(1, 2)\nattnviz.plot.heatmap(result, ax=left);",
]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """How many images each cell shows, drawn by the notebook or inside HTML."""
    folder = tmp_path_factory.mktemp("figures")
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IPYTHONDIR", str(folder / "ipython"))
        patch.setenv("JUPYTER_RUNTIME_DIR", str(folder / "runtime"))
        NotebookClient(book, timeout=300, resources={"metadata": {"path": folder}}).execute()
    data = [[output.get("data", {}) for output in cell.outputs] for cell in book.cells]
    return [
        sum(("image/png" in one) + one.get("text/html", "").count("<img") for one in of_cell)
        for of_cell in data
    ]


def test_each_figure_is_shown_once(images):
    assert images == [0, *[1] * (len(CELLS) - 1)]
