"""Every command and every expression of the cheat sheet works as written."""

import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import typer
from one_model import one_model  # noqa: F401

import attnviz
from attnviz.app import app, run
from attnviz.models.named import NAMED
from tests.docs.test_readme import MODEL, ROOT

sys.path.insert(0, str(ROOT / "scripts"))
from docs.cheatsheet import draw, rows

PAGE = ROOT / "gallery" / "cheat-sheet.md"
ROWS = [row for row in rows(PAGE.read_text(encoding="utf-8")) if len(row) == 3]
# The guides, the docstrings and the tests of the command line run these, too.
TAKES_LONG = ("explain", "senses", "survey", "explore", "compare", "doctor")
LINES = [
    pytest.param(*row, marks=[pytest.mark.long] if shlex.split(row[1])[1] in TAKES_LONG else [])
    for row in ROWS
]


@pytest.fixture(scope="module")
def result(model, tmp_path_factory):
    """A result, only to read, and the file in which it is saved."""
    result = model.attend("the train left")
    path = tmp_path_factory.mktemp("saved") / "run.safetensors"
    result.save(path)
    return result, path


@pytest.fixture
def folder(tmp_path, monkeypatch, result):
    """A folder with the files that a reader has."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(result[1], tmp_path)
    np.save("weights.npy", result[0].weights())
    Path("corpus.txt").write_text("The train left.\nThe cat saw the dog.\n" * 3)
    for name in ("before", "after", "NAME"):
        Path(name).symlink_to(MODEL)
    return result[0]


@pytest.mark.parametrize(("task", "command", "function"), LINES, ids=[row[0] for row in ROWS])
def test_a_line_works(task, command, function, folder):
    if "smollm2" in command and not NAMED["smollm2"].is_here:
        pytest.skip("run 'python scripts/fetch_models.py smollm2'")
    if "-o run.safetensors" in command:
        Path("run.safetensors").unlink()
    assert run(shlex.split(command)[1:]) == 0
    if "-o " in command:
        assert Path(shlex.split(command)[-1]).exists()
    exec(function, {"attnviz": attnviz, "result": folder, "weights": folder.weights()})


def test_every_command_has_a_line():
    commands = typer.main.get_command(app).commands
    assert {shlex.split(command)[1] for _, command, _ in ROWS} == set(commands) - {"serve"}


def test_it_is_one_page(tmp_path):
    draw(PAGE, tmp_path / "sheet.pdf")
    assert b"/Count 1 " in (tmp_path / "sheet.pdf").read_bytes()
