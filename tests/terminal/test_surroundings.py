"""The environment of a run: a deleted working folder, settings."""

import subprocess
import sys

from tests.terminal.conftest import in_terminal

# The program with its commands replaced.
PROGRAM = """
import hashlib, os, sys
import attnviz.app
from attnviz import __main__ as program

def run(arguments):
    {run}
    return 0

attnviz.app.run = run
sys.exit(program.main())
"""


def program(run):
    return [sys.executable, "-c", PROGRAM.format(run=run)]


def test_a_deleted_working_folder(tmp_path):
    (gone := tmp_path / "gone").mkdir()
    leave = f"import os; os.rmdir({str(gone)!r}); os.execv({sys.executable!r}, {{}})"
    command = [sys.executable, "-P", "-m", "attnviz", "verify", "the train"]
    done = subprocess.run(
        [sys.executable, "-c", leave.format(command)],
        cwd=gone, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 4
    assert done.stderr == ("attnviz: the current folder is gone. Go to another one: cd.\n")


def test_torch_logs_are_shown_only_with_debug(monkeypatch):
    monkeypatch.setenv("TORCH_LOGS", "nonesuch")
    said = "print(os.environ.get('TORCH_LOGS'))"
    for more, expected in ([], "None\n"), (["--debug"], "nonesuch\n"):
        assert subprocess.check_output([*program(said), *more], text=True) == expected


def test_a_matplotlibrc_that_is_not_utf_8(tmp_path):
    (tmp_path / "matplotlibrc").write_bytes("# é".encode("latin-1"))
    done = subprocess.run(
        [sys.executable, "-m", "attnviz", "example", "cat", "-o", "x.png"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("attnviz: matplotlibrc is not valid UTF-8")
    assert done.stderr.count("\n") == 1


def test_a_terminal_says_at_once_what_is_done_until_the_figure_is_drawn():
    _, shown = in_terminal("heatmap", "the train left")
    words = b"starting", b"loading", b"drawing", b"wrote heatmap.png"
    said = [shown.find(each) for each in words]
    assert -1 < said[0] < said[1] < said[2] < said[3]
