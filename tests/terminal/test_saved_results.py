"""Commands on a saved result show the same as the run, without a model."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from commands import run
from reports import forged, forget_day

import attnviz

TEXT = "the train left the station on time"


@pytest.fixture(scope="module")
def result_file(train, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "run.safetensors"
    attnviz.save_result(train, path)
    return path


@pytest.fixture(autouse=True)
def _linked(result_file):
    Path("run.safetensors").symlink_to(result_file)


@pytest.fixture
def _no_model(monkeypatch):
    def load(*_, **__):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("attnviz.pipeline.attend.load", load)


def printed(capsys, *arguments, code=0):
    """Return what a command prints, without the day on which its result was saved."""
    assert run(arguments) == code
    said = re.sub(r" when saved on \d{4}-\d\d-\d\d", "", capsys.readouterr().out)
    said = re.sub(r'"saved": "\d{4}-\d\d-\d\d"', '"saved": null', said)
    return said.replace("; recomputed now: query, key, value", "")


COMMANDS = [
    ["heatmap", "--special", "remove"],
    ["heatmap", "--find", "train:station"],
    ["heads", "--layer", "2"],
    ["steps", "--layer", "3", "--head", "2", "--word", "station"],
    ["verify"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_saved_result_prints_the_same_without_a_model(capsys, command, request):
    said = printed(capsys, *command, TEXT, "--json")
    request.getfixturevalue("_no_model")
    loaded = printed(capsys, *command, "--result", "run.safetensors", "--json")
    said, loaded = json.loads(said), json.loads(loaded)
    (loaded if command == ["verify"] else {}).update(recomputed=[])
    assert loaded == said


def test_verify_keeps_the_whole_result(capsys, train):
    out = printed(capsys, "verify", TEXT, "-o", "result.safetensors")
    assert out.endswith("wrote result.safetensors\n")
    loaded = attnviz.load_result("result.safetensors")
    assert forget_day(loaded).agreement == train.agreement
    assert loaded.provenance == train.provenance
    assert len(loaded.records) == 6


@pytest.mark.usefixtures("_no_model")
def test_the_page_is_the_same(capsys, train):
    printed(capsys, "view", "--result", "run.safetensors")
    attnviz.view(train).save("own.html")
    page = re.sub(r" when saved on \d{4}-\d\d-\d\d", "", Path("view.html").read_text())
    assert page == Path("own.html").read_text()


@pytest.mark.usefixtures("_no_model")
def test_a_bad_verdict_stays_bad(capsys, train):
    doubtful = replace(train.agreement, unproven=("encoder layer 0",))
    attnviz.save_result(replace(train, agreement=doubtful), "doubtful.safetensors")
    assert run(["verify", "--result", "doubtful.safetensors"]) == 5
    err = capsys.readouterr().err
    assert "NOT PROVEN: a scale 1 % off would go unnoticed in encoder layer 0" in err


def test_a_long_text(capsys):
    Path("book.txt").write_text(f"{TEXT}. " * 6)
    streamed = ["--mode", "streamed"]
    printed(capsys, "verify", "--file", "book.txt", *streamed, "-o", "book.safetensors")
    said = printed(capsys, "heatmap", "--file", "book.txt", *streamed, "--json")
    assert printed(capsys, "heatmap", "--result", "book.safetensors", *streamed, "--json") == said
    for command, said in (
        (["steps"], "book.safetensors holds streamed maps, not full maps"),
        (["heatmap", "--rows", "3:9"], "was not kept for exact weights"),
    ):
        assert run([*command, "--result", "book.safetensors"]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.usefixtures("_no_model")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["heatmap", TEXT], "--result replaces all other inputs"),
        (["verify", "--image", "cat.png"], "--result replaces all other inputs"),
        (["heatmap", "--model", "gpt2"], "--result runs no model, so --model does nothing"),
        (["heads", "--device", "cpu"], "--result runs no model, so --device does nothing"),
        (["view", "--compare", TEXT], "--compare needs a text, not a --result"),
        (["verify", "--mode", "streamed"], "run.safetensors holds full maps, not streamed maps"),
        (["verify", "-o", "x.png"], "'x.png' must end in .safetensors: "),
        (["heatmap", "--stack", "cross"], "'cross' is not a stack of all-MiniLM-L6-v2"),
    ],
)
def test_incompatible_options_are_refused_in_one_line(capsys, arguments, said):
    assert run([*arguments, "--result", "run.safetensors"]) == 2
    said_at_all = capsys.readouterr()
    assert said in said_at_all.err
    assert said_at_all.err.count("\n") == 1
    assert not said_at_all.out
    assert [path.name for path in Path().iterdir()] == ["run.safetensors"]


@pytest.mark.usefixtures("_no_model")
@pytest.mark.parametrize("command", ["heatmap", "verify"])
def test_a_map_is_no_whole_result(capsys, command, train):
    attnviz.save_result(attnviz.attention_map(train, layer=2, head=3), "map.safetensors")
    assert run([command, "--result", "map.safetensors"]) == 2
    said = "map.safetensors holds AttentionMap, not AttentionResult. Save"
    assert said in capsys.readouterr().err


@pytest.mark.usefixtures("_no_model")
@pytest.mark.parametrize("command", ["heatmap", "steps", "verify"])
def test_files_cannot_send_terminal_control_codes(capsys, command, train):
    evil = "x\x1b[2J\x1b]0;owned\x07\r\u202ey\n"
    agreement = forged(train.agreement, train.records)  # or it would be said that the name changed
    if command == "verify":
        agreement = replace(agreement, not_compared=((evil, evil, evil),), dtype=evil)
    named = replace(train.provenance, model=evil)
    attnviz.save_result(replace(train, agreement=agreement, provenance=named), "evil.safetensors")
    assert run([command, "--result", "evil.safetensors"]) == 0
    said = capsys.readouterr()
    assert "owned" in said.out
    assert not set("\x1b\x07\r\u202e") & set(said.out + said.err)
