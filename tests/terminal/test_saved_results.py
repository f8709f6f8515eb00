"""What a result that was kept shows is what the run showed, without a model."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import attnviz
import attnviz.pipeline.attend
from attnviz.app import run

TEXT = "the train left the station on time"


@pytest.fixture(scope="module")
def kept(train, tmp_path_factory):
    path = tmp_path_factory.mktemp("kept") / "run.safetensors"
    attnviz.save_result(train, path)
    return path


@pytest.fixture(autouse=True)
def _kept(kept):
    Path("run.safetensors").symlink_to(kept)


@pytest.fixture
def _no_model(monkeypatch):
    def load(*_, **__):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(attnviz.pipeline.attend, "load", load)


def printed(capsys, *arguments, code=0):
    assert run(arguments) == code
    return capsys.readouterr().out


COMMANDS = [
    ["heatmap", "--special", "remove"],
    ["heatmap", "--find", "train:station"],
    ["heads", "--layer", "2"],
    ["steps", "--layer", "3", "--head", "2", "--word", "station"],
    ["verify"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_it_says_what_the_run_said_without_a_model(capsys, command, request):
    said = printed(capsys, *command, TEXT, "--json")
    request.getfixturevalue("_no_model")
    assert printed(capsys, *command, "--result", "run.safetensors", "--json") == said
    assert json.loads(said)


@pytest.mark.usefixtures("_no_model")
def test_it_is_drawn(capsys):
    out = printed(capsys, "heatmap", "--result", "run.safetensors", "--width", "89")
    assert "verified: 72 heads" in out
    assert out.endswith("wrote heatmap.png\n")
    assert Path("heatmap.png").is_file()


def test_verify_keeps_the_whole_result(capsys, train):
    out = printed(capsys, "verify", TEXT, "-o", "kept.safetensors")
    assert out.endswith("wrote kept.safetensors\n")
    kept = attnviz.load_result("kept.safetensors")
    assert kept.agreement == train.agreement
    assert kept.provenance == train.provenance
    assert len(kept.records) == 6


@pytest.mark.usefixtures("_no_model")
def test_the_page_is_the_same(capsys, train):
    printed(capsys, "view", "--result", "run.safetensors")
    attnviz.view(train).save("own.html")
    assert Path("view.html").read_bytes() == Path("own.html").read_bytes()


@pytest.mark.usefixtures("_no_model")
def test_a_verdict_that_was_not_good_is_none_now(capsys, train):
    doubtful = replace(train.agreement, unproven=("encoder layer 0",))
    attnviz.save_result(replace(train, agreement=doubtful), "doubtful.safetensors")
    out = printed(capsys, "verify", "--result", "doubtful.safetensors", code=5)
    assert "NOT PROVEN: a scale 1 % off would go unnoticed in encoder layer 0" in out


def test_a_long_text(capsys):
    Path("book.txt").write_text(f"{TEXT}. " * 6)
    streamed = ["--mode", "streamed"]
    printed(capsys, "verify", "--file", "book.txt", *streamed, "-o", "book.safetensors")
    said = printed(capsys, "heatmap", "--file", "book.txt", *streamed, "--json")
    assert printed(capsys, "heatmap", "--result", "book.safetensors", *streamed, "--json") == said
    for command, said in (
        (["steps"], "Expected a result with full maps, got one with streamed maps in book"),
        (["heatmap", "--rows", "3:9"], "to be kept for exact weights"),
    ):
        assert run([*command, "--result", "book.safetensors"]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.usefixtures("_no_model")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["heatmap", TEXT], "Expected something to read or a --result, got both"),
        (["heads", "--file", "run.safetensors"], "something to read or a --result, got both"),
        (["steps", "--pair", TEXT], "Expected something to read or a --result, got both"),
        (["view", "--generate", "3"], "Expected something to read or a --result, got both"),
        (["verify", "--image", "cat.png"], "something to read or a --result, got both"),
        (["heatmap", "--model", "gpt2"], "Expected a --result or --model, got both"),
        (["heads", "--device", "cpu"], "Expected a --result or --device, got both"),
        (["steps", "--dtype", "float16"], "Expected a --result or --dtype, got both"),
        (["view", "--truncate"], "Expected a --result or --truncate, got both"),
        (["view", "--compare", TEXT], "Expected a --result or --compare, got both"),
        (["verify", "--mode", "streamed"], "a result with streamed maps, got one with full maps"),
        (["verify", "-o", "x.png"], "Expected a file name that ends in .safetensors, got 'x.png'"),
        (["heatmap", "--stack", "cross"], "Expected a stack of all-MiniLM-L6-v2, encoder, got"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(capsys, arguments, said):
    assert run([*arguments, "--result", "run.safetensors"]) == 2
    said_at_all = capsys.readouterr()
    assert said in said_at_all.err
    assert said_at_all.err.count("\n") == 1
    assert not said_at_all.out
    assert [path.name for path in Path().iterdir()] == ["run.safetensors"]


@pytest.mark.usefixtures("_no_model")
@pytest.mark.parametrize("command", ["heatmap", "heads", "steps", "view", "verify"])
def test_a_file_of_something_else_is_refused_in_one_line(capsys, command, train):
    attnviz.save_result(attnviz.attention_map(train, layer=2, head=3), "map.safetensors")
    Path("text.safetensors").write_text(TEXT)
    for name, said in (
        ("map.safetensors", "Expected a whole result in map.safetensors, got AttentionMap. Save"),
        ("text.safetensors", "but it is no safetensors file"),
        ("none.safetensors", "but there is no such file"),
    ):
        assert run([command, "--result", name]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1


@pytest.mark.usefixtures("_no_model")
@pytest.mark.parametrize("command", ["heatmap", "steps", "verify"])
def test_nothing_in_a_file_steers_the_terminal(capsys, command, train):
    evil = "x\x1b[2J\x1b]0;owned\x07\r\u202ey\n"
    agreement = train.agreement
    if command == "verify":
        agreement = replace(agreement, not_compared=((evil, evil, evil),), dtype=evil)
    named = replace(train.provenance, model=evil)
    attnviz.save_result(replace(train, agreement=agreement, provenance=named), "evil.safetensors")
    assert run([command, "--result", "evil.safetensors"]) == 0
    said = capsys.readouterr()
    assert "owned" in said.out
    assert not set("\x1b\x07\r\u202e") & set(said.out + said.err)
