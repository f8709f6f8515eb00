"""Every option of every command changes what is printed or written, or is refused.

An option without a value in the table fails. Commands run in this process, with tiny models.
"""

import contextlib
import hashlib
import io
import json
import sys
from pathlib import Path

import pytest
import typer
from PIL import Image

import attnviz.pipeline.attend
from attnviz.app import app, run
from contract.calls import CORPUS, OTHER, TEXT, it

COMMANDS = typer.main.get_command(app).commands
JSON = ["--json"]
BASES = {
    "heatmap": [TEXT, *JSON],
    "heads": [TEXT, *JSON],
    "view": [TEXT],
    "steps": [TEXT, *JSON],
    "verify": [TEXT, *JSON],
    "check": ["weights.npz", TEXT, *JSON],
    "senses": ["bank", "--sense", "a=a.txt", "--sense", "b=b.txt", *JSON],
    "shift": ["bank", TEXT, *JSON],
    "explain": [TEXT, *JSON, "-m", "gpt"],
    "ablate": [TEXT, "--word", "bank", *JSON],
    "survey": ["corpus.csv", "-o", "surveyed", *JSON],
    "explore": ["corpus.csv"],
    "compare": ["bert", "sharper", "corpus.csv", *JSON],
    "example": ["cat", *JSON],
    "models": ["bert", *JSON],
    "doctor": [*JSON],
}
WITHOUT = {"serve"}  # it does not end; tests/interactive/serve has its options
TABLE = {
    "text": OTHER,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The files that commands read."""
    with pytest.MonkeyPatch.context() as patch:
        here = tmp_path_factory.mktemp("here")
        patch.chdir(here)
        Path("corpus.csv").write_text(f"text,title\n{CORPUS[0]},a dog\n{CORPUS[1]},a bank\n")
        Path("a.txt").write_text("a bank left\nthe bank saw\n")
        Path("b.txt").write_text("we saw a bank\nno bank left\n")
        Image.new("RGB", (8, 8)).save("picture.png")
        yield here


def ran(arguments, monkeypatch):
    """Return what a command prints and writes: its exit code, its output, and its files."""
    loaded = []

    def load(name=None, **how):
        loaded.append((name, sorted(how.items(), key=str)))
        return getattr(it, name if name in ("gpt", "sharper") else "bert")

    before = {path: path.stat().st_mtime_ns for path in Path().rglob("*") if path.is_file()}
    out, err = io.StringIO(), io.StringIO()
    with monkeypatch.context() as patch, contextlib.redirect_stdout(out):
        patch.setattr(attnviz.pipeline.attend, "load", load)
        with contextlib.redirect_stderr(err):
            code = run(arguments)
    written = {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(Path().rglob("*"))
        if path.is_file() and before.get(path) != path.stat().st_mtime_ns
    }
    for path in written:
        if Path(path) not in before:
            Path(path).unlink()
    return code, out.getvalue(), json.dumps([written, str(loaded)]), err.getvalue(), sys.flags
