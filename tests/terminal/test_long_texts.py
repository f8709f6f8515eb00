"""Long texts on the command line: files, regions of maps, progress and errors."""

import copy
import json
from pathlib import Path

import pytest
import torch
from families import _llama, tiny
from transformers import LlamaConfig, LlamaModel

import attnviz
from attnviz.app import run
from attnviz.runtime import progress
from tests.terminal.conftest import in_terminal

LONG = "The train left the station on time and nobody noticed that it was early. " * 6


@pytest.fixture
def file():
    Path("long.txt").write_text(LONG, encoding="utf-8")
    return "long.txt"


def test_an_overview_and_an_exact_region(file, model):
    streamed = ["heatmap", "--file", file, "--mode", "streamed", "--layer", "2", "--head", "3"]
    assert run([*streamed, "-o", "whole.json"]) == 0
    whole = json.loads(Path("whole.json").read_text(encoding="utf-8"))
    P = torch.tensor(whole["weights"])
    torch.testing.assert_close(P.sum(1), torch.ones(len(P)), atol=1e-5, rtol=0)
    assert run([*streamed, "--rows", "20:24", "--columns", "18:30", "-o", "part.json"]) == 0
    part = json.loads(Path("part.json").read_text(encoding="utf-8"))
    exact = attnviz.attend(LONG, model=model).weights(2, 3)[20:24, 18:30]
    torch.testing.assert_close(torch.tensor(part["weights"]), exact, atol=1e-5, rtol=1e-4)
    assert part["tokens_of_rows"] == {"first": 20, "in_each": 1}
    assert part["tokens_of_columns"] == {"first": 18, "in_each": 1}
    assert "exact weights of tokens 20 to 23 for tokens 18 to 29" in " ".join(part["notes"])


def test_a_region_uses_the_head_chosen_for_the_full_map(file, capsys):
    assert run(["heatmap", "--file", file, "--mode", "streamed", "--json", "-o", "a.png"]) == 0
    whole = json.loads(capsys.readouterr().out)
    part = ["--rows", "5:9", "--json", "-o", "b.png"]
    assert run(["heatmap", "--file", file, "--mode", "streamed", *part]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["layer"], found["heads"]) == (whole["layer"], whole["heads"])


def test_a_region_of_a_short_text_is_in_words(capsys):
    text = "the train left the station"
    assert run(["heatmap", text, "--rows", "1:3", "--columns", ":4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["rows"], found["columns"]) == (
        ["the", "train"],
        ["[CLS]", "the", "train", "left"],
    )
    assert "rows 1 to 2 of 7 and columns 0 to 3 of 7" in found["notes"]


def test_heads_and_verify_read_files(file, capsys):
    assert run(["heads", "--file", file, "--mode", "streamed", "-o", "heads.svg"]) == 0
    Path(file).write_text(LONG * 3, encoding="utf-8")  # of which a sample of the rows is compared
    assert run(["verify", "--file", file, "--mode", "streamed"]) == 0
    said = capsys.readouterr().out
    assert "attention vectors" in said
    assert "caught in 6 of 6 layers" in said
    assert "rows (" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rows", "3"], "--rows must be START:STOP, not '3'. For"),
        (["--rows", "a:b"], "--rows must be START:STOP"),
        (["--columns", "9:4"], "Columns 9:4 are not part of the map"),
        (["--rows", "0:99999"], "Rows 0:99999 are not part of the map"),
        (["--special", "remove"], "Special tokens cannot be left out"),
        (["--find", "train:station"], "Only summaries of the maps were kept"),
    ],
)
def test_impossible_requests_are_one_line(arguments, said, file, capsys):
    assert run(["heatmap", "--file", file, "--mode", "streamed", *arguments]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not Path("heatmap.png").exists()


def test_progress_is_reported_from_0_to_100_percent(model):
    heard = []
    with progress.listening(lambda name, done: heard.append((name, done))):
        attnviz.attend(LONG * 2, model=model, mode="streamed")  # which no other test has run
    shares = [round(done, 9) for _, done in heard]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    assert {name for name, _ in heard} == {"the model reads"}


@pytest.fixture
def slow(tokenizer, tmp_path):
    """A causal model, and a text that takes it a while."""
    config = LlamaConfig(**{**_llama, "num_hidden_layers": 2, "max_position_embeddings": 60_000})
    torch.manual_seed(0)
    LlamaModel(config).save_pretrained(tmp_path / "slow")
    patient = copy.deepcopy(tokenizer)
    patient.model_max_length = 60_000
    patient.save_pretrained(tmp_path / "slow")
    (tmp_path / "book.txt").write_text(LONG * 270, encoding="utf-8")
    return ["heatmap", "--file", "book.txt", "--model", "slow", "--force"]


def test_a_bar_shows_progress_and_an_interrupt_leaves_no_file(slow, tmp_path):
    Path("heatmap.png").write_bytes(b"old")
    before = {path.name for path in tmp_path.iterdir()}
    code, said = in_terminal(*slow, interrupt=b"the model reads")
    assert code == 130, said
    assert b"the model reads" in said
    assert b"Traceback" not in said
    assert Path("heatmap.png").read_bytes() == b"old"
    assert {path.name for path in tmp_path.iterdir()} == before


def test_a_family_without_visible_attention_is_refused_in_one_line(tokenizer, file, capsys):
    tiny("bloom").save_pretrained("bloom")
    tokenizer.save_pretrained("bloom")
    arguments = ["heatmap", "--file", file, "--model", "bloom", "--mode", "streamed"]
    assert run(arguments) == 3
    assert capsys.readouterr().err.strip().endswith("choose another model.")
