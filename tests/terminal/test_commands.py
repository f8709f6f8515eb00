"""The printed output and the files of each command."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from families import tiny

import attnviz.pipeline.attend
from attnviz.agreement import verify
from attnviz.app import run
from attnviz.terminal.console import LiteralConsole
from tests.terminal.conftest import succeeds

TEXT = "the train left the station"
LONGER = "the train left the station on time"
WORDS = LONGER.split()
STAGES = ["query", "key", "value", "scores", "weights", "head output", "output"]


def texts_in_svg(path):
    root = ElementTree.parse(path).getroot()
    return [text for e in root.iter("{http://www.w3.org/2000/svg}text") for text in e.itertext()]


def test_seven_words_give_a_seven_by_seven_map_with_rows_that_sum_to_one(capsys):
    arguments = ["heatmap", LONGER, "--special", "remove"]
    succeeds(capsys, *arguments, "-o", "x.svg")
    caption = " ".join(texts_in_svg("x.svg"))
    assert "[CLS], [SEP] removed" in caption
    assert "rows renormalized to 1" in caption
    assert "Verified: 72 recomputed heads" in caption
    data = json.loads(succeeds(capsys, *arguments, "--json").out)
    assert data["rows"] == data["columns"] == WORDS
    weights = np.array(data["weights"])
    assert weights.shape == (7, 7)
    np.testing.assert_allclose(weights.sum(1), 1, atol=1e-6)
    numbers = [text for text in texts_in_svg("x.svg") if text == f"{100 * weights[4, 1]:.0f}"]
    assert numbers, "the weight from station to train is written into its cell"


def test_several_layers_show_their_mean_of_all_heads_or_of_one(capsys, model):
    both = ("--layer", "1", "--layer", "4")
    said = succeeds(capsys, "heatmap", TEXT, *both, "--json").out
    assert json.loads(said)["layer"] == [1, 4]
    result = attnviz.attend(TEXT, model=model)
    of_layers = np.stack([result.record(layer).weights().numpy() for layer in (1, 4)])
    np.testing.assert_allclose(json.loads(said)["weights"], of_layers.mean((0, 1)), atol=1e-6)
    said = succeeds(capsys, "heatmap", TEXT, *both, "--head", "3").out
    assert "Mean of layers 1, 4, head 3" in said


@pytest.fixture
def _scale_off(monkeypatch):
    def verify_a_wrong_scale(records, references, **how):
        wrong = [replace(record, scale=record.scale * 1.01) for record in records]
        return verify(wrong, references, **(how | {"proofs": None}))

    monkeypatch.setattr("attnviz.agreement.verify", verify_a_wrong_scale)


@pytest.mark.usefixtures("_scale_off")
def test_an_unverified_map_is_marked_and_exits_with_5(capsys):
    err = succeeds(capsys, "heatmap", TEXT, "-o", "x.svg", code=5).err
    assert (
        "NOT VERIFIED: differs from the model's own attention first at encoder layer 0, scores"
        in err
    )
    root = ElementTree.parse("x.svg").getroot()
    alarm = [
        element.get("style")
        for element in root.iter("{http://www.w3.org/2000/svg}text")
        if "".join(element.itertext()).startswith("NOT VERIFIED")
    ]
    assert len(alarm) == 1
    assert "font-weight: 700" in alarm[0]
    assert "#b00020" in alarm[0]


@pytest.mark.usefixtures("_scale_off")
@pytest.mark.parametrize("command", ["heatmap", "heads", "verify"])
def test_a_failed_agreement_exits_with_5_with_json_too(capsys, command):
    said = succeeds(capsys, command, TEXT, "--json", code=5)
    data = json.loads(said.out)
    data = data.get("agreement") or data
    assert data["verdict"] == "failed"
    assert data["first_difference"]["stage"] == "scores"
    assert said.err.startswith("NOT VERIFIED")


@pytest.mark.usefixtures("_scale_off")
def test_verify_shows_which_stages_differ(capsys):
    out = succeeds(capsys, "verify", TEXT, code=5).out
    verdicts = {
        stage: next(line for line in out.splitlines() if line.strip().startswith(f"{stage}  "))
        for stage in STAGES
    }
    agree = [stage for stage in STAGES if verdicts[stage].rstrip().endswith("agrees")]
    assert agree == ["query", "key", "value"]  # stages after the scale differ


def rows_of_map(out):
    """Return the words and the cells of a text map: ["train", "37", "20", "·", …]."""
    lines = [line.split() for line in out.splitlines()]
    start = next(n for n, line in enumerate(lines) if line[:1] == ["[CLS]"])
    end = next(n for n, line in enumerate(lines) if line[:1] == ["Layer"])
    return lines[start + 1 : end]


def test_the_finding_comes_first_then_the_map_in_percent(capsys):
    arguments = "heatmap", TEXT, "--layer", "0", "--head", "4", "-o", "x.json"
    lines = succeeds(capsys, *arguments).out.splitlines()
    assert lines[0].startswith("“station”")
    assert lines[1].strip(" ┌┐─") == "71%"
    assert lines[2].split() == ["▼", "│"]
    assert lines[2].index("▼") in range(lines[3].index("train"), lines[3].index("left"))
    assert lines[2].index("│") in range(lines[3].index("station"), lines[3].index("[SEP]"))
    weights = json.loads(Path("x.json").read_text())["weights"]
    rows = rows_of_map("\n".join(lines))
    assert [row[0] for row in rows] == ["[CLS]", *TEXT.split(), "[SEP]"]
    for row, of_row in zip(rows, weights, strict=True):
        for cell, weight in zip(row[1:], of_row, strict=True):
            assert cell.strip("[]") == (f"{100 * weight:.0f}" if weight >= 1 / 7 else "·")
    assert rows[5][3] == "[71]"


@pytest.fixture
def terminal(monkeypatch):
    def use(**how):
        console = LiteralConsole(force_terminal=True, width=100, **how)
        for module in ("command", "console"):
            monkeypatch.setattr(f"attnviz.terminal.{module}.console", console)

    monkeypatch.delenv("NO_COLOR", raising=False)
    return use


def test_a_terminal_marks_the_claim_and_keeps_its_own_background(capsys, terminal):
    terminal(color_system="truecolor")
    out = succeeds(capsys, "heatmap", TEXT, "-o", "x.json").out
    assert out.startswith("\x1b[1m“station”")
    (claimed,) = {part.partition("m")[0] for part in out.split("48;2;")[1:]}
    assert claimed == "196;18;47"
    assert out.count("48;2;") == 1  # the claimed cell: no other has half of its weight


def test_no_color_gives_the_same_characters_in_a_terminal(capsys, monkeypatch, terminal):
    monkeypatch.setenv("NO_COLOR", "1")
    terminal()
    out = succeeds(capsys, "heatmap", TEXT, "-o", "x.json").out
    assert "\x1b[48" not in out
    assert "[71]" in out


def test_lines_end_between_words_in_a_terminal_and_are_whole_elsewhere(capsys, terminal):
    arguments = "heatmap", TEXT, "-o", "x.json", "--force"
    whole = succeeds(capsys, *arguments).out.splitlines()
    assert any(len(line) > 150 for line in whole)
    terminal(color_system=None)
    lines = succeeds(capsys, *arguments).out.splitlines()
    assert len(lines) > len(whole)
    assert max(map(len, lines)) <= 100
    assert " ".join(lines).split() == " ".join(whole).split()


def test_odd_words_are_printed_literally(capsys):
    out = succeeds(capsys, "heatmap", "[bold] $$ <b> \\frac [/]", "-o", "x.svg").out
    names = [line[0] for line in rows_of_map(out)]
    assert " ".join(names) == "[CLS] [ bold ] $ $ < b > \\ frac [ / ] [SEP]"


def test_help_imports_no_heavy_library():
    code = (
        "import sys; from attnviz.app import run; "
        "[run([*command, '--help']) for command in ([], ['heatmap'], ['heads'], ['verify'])]; "
        "print(*{'torch', 'transformers', 'matplotlib', 'seaborn', 'pandas'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("\n\n")
    assert done.stdout.count("Usage: attnviz") == 4


def test_help_wraps_at_the_terminal_width(capsys):
    out = succeeds(capsys, "survey", "--help").out
    assert "statistic, value, and the same for shuffled keys" in " ".join(out.split())
    lines = [line for line in out.split("─")[0].splitlines() if line.strip()]
    assert len(lines) < 8, lines


def test_the_version_is_the_packages(capsys):
    from importlib.metadata import version

    assert succeeds(capsys, "--version").out == f"attnviz {version('attnviz')}\n"


def test_an_encoder_decoder_is_drawn_with_its_target(tmp_path, tokenizer, capsys):
    folder = tmp_path / "tiny-t5"
    tiny("t5").save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    command = ["heatmap", "a train", "--target", "un train", "--model", str(folder)]

    assert run([*command, "-o", str(tmp_path / "cross.json")]) == 0
    cross = json.loads((tmp_path / "cross.json").read_text(encoding="utf-8"))
    assert cross["stack"] == "cross"
    assert cross["columns"] == ["[CLS]", "a", "train", "[SEP]"]
    assert cross["rows"] == ["[PAD]", "[CLS]", "un", "train"]

    assert run([*command, "--stack", "encoder", "-o", str(tmp_path / "encoder.svg")]) == 0
    assert "to say “un train”" in (tmp_path / "encoder.svg").read_text(encoding="utf-8")
    capsys.readouterr()
    assert run([*command, "--stack", "vision", "-o", str(tmp_path / "no.png")]) == 2
    assert "Use encoder, decoder, cross." in capsys.readouterr().err
    assert run([*command[:2], "--model", str(folder), "-o", str(tmp_path / "no.png")]) == 2
    assert "--target" in capsys.readouterr().err
    assert not (tmp_path / "no.png").exists()


def test_a_page_of_two_texts(capsys):
    cash = ["--compare", "The bank was full of cash."]
    out = succeeds(capsys, "view", "The bank was full of mud.", *cash).out
    page = Path("view.html").read_text("utf-8")
    assert page.startswith("<!doctype html>")
    assert "full of mud" in page
    assert "full of cash" in page
    assert "verified: 72 heads" in out
    assert "on 2 texts" in out
    assert "wrote view.html" in out
