"""Every command and every expression of the cheat sheet works as written."""

import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import typer
from docs.cheatsheet import draw, rows
from one_model import one_model, one_run  # noqa: F401

import attnviz
from attnviz.app import app, run
from attnviz.models import NAMED
from tests.docs.test_readme import COMMANDS, MODEL, ROOT, to_run

PAGE = ROOT / "gallery" / "cheat-sheet.md"
ROWS = [row for row in rows(PAGE.read_text(encoding="utf-8")) if len(row) == 3]
# The guides, the docstrings and the tests of the command line run these, too.
TAKES_LONG = ("explain", "senses", "survey", "explore", "compare", "doctor")
LONG = {row[1] for row in ROWS if shlex.split(row[1])[1] in TAKES_LONG}
KEPT = {case.values[0] for case in to_run([*COMMANDS, *(row[1] for row in ROWS)]) if not case.marks}


def lines(column, kept):
    """Return each command, and what a column has beside it; what is not kept is long."""
    return [
        pytest.param(row[1], row[column], marks=[] if kept(row[1]) else pytest.mark.long, id=row[0])
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


@pytest.mark.parametrize("command", [*COMMANDS, *(row[1] for row in ROWS)])
def test_every_command_can_be_read(command):
    _, name, *words = shlex.split(command)
    typer.main.get_command(app).commands[name].make_context(name, words)


@pytest.mark.parametrize(("command", "task"), lines(0, (KEPT - LONG).__contains__))
def test_a_command_works(command, task, folder):
    """A command whose options the README, the guides or other lines have, too, is long."""
    skip_without_model(command)
    if "-o run.safetensors" in command:
        Path("run.safetensors").unlink()
    assert run(shlex.split(command)[1:]) == 0
    if "-o " in command:
        assert Path(shlex.split(command)[-1]).exists()


@pytest.mark.parametrize(("command", "function"), lines(2, lambda command: command not in LONG))
def test_an_expression_works(command, function, folder):
    skip_without_model(command)
    exec(function, {"attnviz": attnviz, "result": folder, "weights": folder.weights()})


def skip_without_model(command):
    if "smollm2" in command and not NAMED["smollm2"].is_here:
        pytest.skip("run 'python scripts/fetch_models.py smollm2'")


def test_every_command_has_a_line():
    commands = typer.main.get_command(app).commands
    assert {shlex.split(command)[1] for _, command, _ in ROWS} == set(commands) - {"serve"}


def test_it_is_one_page(tmp_path):
    draw(PAGE, tmp_path / "sheet.pdf")
    assert b"/Count 1 " in (tmp_path / "sheet.pdf").read_bytes()
