"""Notebooks show the view: JupyterLab, nbconvert output and the widget."""

import io
import json
import os
import subprocess
import sys
import time

import nbformat
import psutil
import pytest
from nbconvert import HTMLExporter
from PIL import Image
from playwright.sync_api import expect

TOKEN = "of-this-test-only"
SENTENCE = "the train left the station on time"
CELLS = [
    f"import attnviz\nview = attnviz.view(attnviz.attend('{SENTENCE}'))\nview",
    "widget = view.widget()\nwidget",
    "print('looked at', widget.selection['view'], widget.selection['heads'])\n"
    "widget.selection = {'view': 'head', 'layer': 5, 'heads': [3]}",
    "print('now at layer', widget.selection['layer'], 'of', widget.selection['stack'])",
]
# nbconvert's page requests these; the view does not need them.
CONVERTED = ["request: https://cdnjs", "console: .*ERR_FAILED"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("notebooks")


# Jupyter's settings, kernels and history are kept in a folder of the test.
PLACES = (
    "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR",
    "JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR",
)  # fmt: skip


@pytest.fixture(scope="module")
def lab(folder, light_path):
    """Start a JupyterLab for this test without network access; return its address."""
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root",
        "--ServerApp.ip=127.0.0.1", "--ServerApp.port=0", f"--ServerApp.root_dir={folder}",
        f"--IdentityProvider.token={TOKEN}", "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]  # fmt: skip
    places = {name: str(folder / name.lower()) for name in PLACES}
    environment = os.environ | places | {"PYTHONPATH": light_path}
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        yield _address(server, folder)
    finally:
        kernels = psutil.Process(server.pid).children(recursive=True)
        server.terminate()
        server.wait(20)
        _, left = psutil.wait_procs(kernels, 10)
        assert not left


def _address(server, folder):
    for _ in range(1200):
        for server_file in (folder / "jupyter_runtime_dir").glob("jpserver-*.json"):
            return json.loads(server_file.read_text())["url"]
        assert server.poll() is None, (folder / "log").read_text()
        time.sleep(0.1)
    raise AssertionError(
        "JupyterLab did not start within two minutes:\n" + (folder / "log").read_text()
    )


def expect_view(frame):
    """Expect what a reader sees first: maps, the verdict, and a tooltip under the pointer."""
    expect(frame.locator(".stage[aria-busy=false]")).to_be_visible(timeout=120_000)
    frame.locator("[data-control=verdict]").hover()  # a chip, which opens
    expect(frame.get_by_text("verified: 72 heads recomputed in float64")).to_be_visible()
    canvas = frame.locator("canvas")
    image = Image.open(io.BytesIO(canvas.screenshot())).convert("RGB")
    assert len(image.getcolors(image.width * image.height)) > 30, "the canvas is blank"
    expect(frame.get_by_role("tooltip")).to_be_hidden()
    canvas.hover(position={"x": 200, "y": 200})
    expect(frame.get_by_role("tooltip")).to_contain_text("Layer")


@pytest.mark.slow
def test_jupyterlab_shows_the_view_and_the_widget_and_nbconvert_keeps_the_view(
    open_page, lab, folder
):
    notebook = folder / "view.ipynb"
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(book, notebook)
    page = open_page(f"{lab}lab/tree/{notebook.name}?token={TOKEN}", height=2600)
    # JupyterLab discards the request to run a cell while it has no kernel yet.
    expect(page.get_by_text("Python 3 (ipykernel) | Idle")).to_be_visible(timeout=120_000)
    cells = page.locator(".jp-Notebook .jp-CodeCell")
    cells.nth(0).click()
    page.keyboard.press("Shift+Enter")
    expect_view(cells.nth(0).frame_locator("iframe"))

    cells.nth(1).locator(".jp-InputArea").click()
    page.keyboard.press("Shift+Enter")
    widget = cells.nth(1).locator(".attnviz")
    expect_view(widget)
    widget.get_by_role("button", name="Token").click()
    expect(widget).to_have_attribute("data-view", "token")
    page.keyboard.press("Escape")
    cells.nth(2).locator(".jp-InputArea").click()
    page.keyboard.press("Shift+Enter")
    expect(cells.nth(2)).to_contain_text("looked at token [4]")
    expect(widget).to_have_attribute("data-view", "head")  # as requested from Python
    page.keyboard.press("Shift+Enter")
    expect(cells.nth(3)).to_contain_text("now at layer 5 of encoder")

    page.keyboard.press("Control+s")
    expect(page.locator("li.jp-mod-dirty")).to_have_count(0)
    assert "srcdoc" in notebook.read_text()
    page.reload()  # outputs of this session are trusted when the notebook is opened again
    expect_view(cells.nth(0).frame_locator("iframe"))

    html, _ = HTMLExporter().from_filename(notebook)
    converted = open_page(html, expects=CONVERTED)
    expect_view(converted.frame_locator("iframe"))
    for each in (page, converted):  # JupyterLab would go on in its tab
        each.context.close()
