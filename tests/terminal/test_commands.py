"""The printed output and the files of each command."""

import copy
import json
import os
import shutil
import subprocess
import sys
import wave
from pathlib import Path

import numpy as np
import pytest
from commands import refused, run, succeeds
from media import RATE, chirp, processor_of, seeing
from transformers import Wav2Vec2FeatureExtractor

import attnviz

TEXT = "the train left the station"
STAGES = ["query", "key", "value", "scores", "weights", "head output", "output"]


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
    scores = attnviz.AttentionRecord.scores

    def off(self, *given, **how):
        return scores(self, *given, **how) * 1.01

    monkeypatch.setattr(attnviz.AttentionRecord, "scores", off)


@pytest.mark.usefixtures("_scale_off")
@pytest.mark.parametrize("command", ["heatmap", "heads", "verify"])
def test_a_failed_agreement_exits_with_5_with_json_too(capsys, command):
    said = succeeds(capsys, command, TEXT, "--json", code=5)
    data = json.loads(said.out)
    data = data.get("agreement") or data
    assert data["verdict"] == "failed"
    assert data["first_difference"]["stage"] == "scores"
    where = "differs from the model's own attention first at encoder layer 0, scores"
    assert said.err.startswith(f"NOT VERIFIED: {where}")


@pytest.mark.usefixtures("_scale_off")
def test_verify_shows_which_stages_differ(capsys):
    out = succeeds(capsys, "verify", TEXT, code=5).out
    verdicts = {
        stage: next(line for line in out.splitlines() if line.strip().startswith(f"{stage}  "))
        for stage in STAGES
    }
    agree = [stage for stage in STAGES if verdicts[stage].rstrip().endswith("agrees")]
    assert agree == ["query", "key", "value"]  # stages after the scale differ


EARLY = [
    ["heatmap", TEXT], ["heads", TEXT], ["steps", TEXT], ["view", TEXT], ["senses", "bank"],
    ["shift", "bank", "the bank was full of mud"], ["example", "cat"],
]  # fmt: skip


def test_help_and_a_missing_folder_import_no_heavy_library():
    written = [[*one, "-o", "none/x.html" if one[0] == "view" else "none/x.png"] for one in EARLY]
    asked = [[*command, "--help"] for command in ([], ["heatmap"], ["heads"], ["verify"])]
    code = (
        f"from commands import run; import sys; print([run(one) for one in {[*written, *asked]}]); "
        "print(*{'torch', 'transformers', 'matplotlib', 'seaborn', 'pandas'} & set(sys.modules))"
    )
    path = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONPATH": path},
    )  # fmt: skip
    assert done.stdout.endswith(f"{[4] * len(EARLY) + [0] * 4}\n\n")
    assert done.stdout.count("Usage: attnviz") == 4


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


def test_odd_words_are_printed_literally(capsys):
    out = succeeds(capsys, "heatmap", "[bold] $$ <b> \\frac [/]", "-o", "x.svg").out
    names = [line[0] for line in rows_of_map(out)]
    assert " ".join(names) == "[CLS] [ bold ] $ $ < b > \\ frac [ / ] [SEP]"


# --- long texts


LONG = "The train left the station on time and nobody noticed that it was early. " * 6


@pytest.fixture
def file():
    Path("long.txt").write_text(LONG, encoding="utf-8")
    return "long.txt"


def test_a_region_uses_the_head_chosen_for_the_full_map(file, capsys):
    assert run(["heatmap", "--file", file, "--mode", "streamed", "--json", "-o", "a.png"]) == 0
    whole = json.loads(capsys.readouterr().out)
    part = ["--rows", "5:9", "--json", "-o", "b.png"]
    assert run(["heatmap", "--file", file, "--mode", "streamed", *part]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["layer"], found["heads"]) == (whole["layer"], whole["heads"])


def test_heads_and_verify_read_files(file, capsys):
    assert run(["heads", "--file", file, "--mode", "streamed", "-o", "heads.svg"]) == 0
    Path(file).write_text(LONG * 3, encoding="utf-8")  # of which a sample of the rows is compared
    assert run(["verify", "--file", file, "--mode", "streamed"]) == 0
    said = capsys.readouterr().out
    assert "attention vectors" in said
    assert "caught in 6 of 6 layers" in said
    assert "rows (" in said


# --- the architectures


def test_it_fits_a_terminal_of_eighty_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    assert run(["models"]) == 0
    out = capsys.readouterr().out
    assert len(out.splitlines()) > 500
    assert max(map(len, out.splitlines())) <= 100  # including color codes


def test_a_state_filters_the_rows_and_shows_reasons(capsys):
    assert run(["models", "dinat", "--state", "not run"]) == 0
    out = capsys.readouterr().out
    assert "dinat: needs the package natten, which was not installed" in out
    assert run(["models", "bert", "--state", "not run"]) == 0
    assert capsys.readouterr().out.startswith("no such architecture; checked with transformers ")


def test_a_different_transformers_version_is_reported(capsys, monkeypatch):
    monkeypatch.setattr("attnviz.runtime.version_of", lambda name: "5.24.0")
    assert run(["models", "bert"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "installed is transformers 5.24.0"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["brt"], "no model 'brt'. Did you mean bert"),
        (["bert", "qqqqq"], "no model 'qqqqq'. Name a part of one."),
    ],
)
def test_unknown_names_are_one_line_and_exit_code_two(capsys, arguments, said):
    assert run(["models", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert said in err


# --- images and sounds


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory, tokenizer):
    """Return a function that writes a model and its processor into a folder."""
    folders = {}

    def save(family):
        if family not in folders:
            folder = folders[family] = tmp_path_factory.mktemp("models") / family
            own = copy.deepcopy(tokenizer)  # on which the class of its processor is noted
            model = seeing(family, own)
            model.module.save_pretrained(folder)
            processors = model.checkpoint.processors
            if family != "vit":
                processors.tokenizer.save_pretrained(folder)
            (processors.multimodal or processor_of(family, own)).save_pretrained(folder)
        return str(folders[family])

    return save


@pytest.fixture
def sound():
    with wave.open("sound.wav", "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes((chirp() * 32_767).astype("<i2").tobytes())
    return "sound.wav"


@pytest.mark.parametrize("command", ["heatmap", "heads", "steps"])
def test_the_input_image_is_not_overwritten(command, capsys):
    """Even if attnviz drew it, and even with --force."""
    drawn = f"{command}.png"
    attnviz.plot.save(attnviz.plot.heads(attnviz.attend("one two")), drawn)
    before = Path(drawn).read_bytes()
    Path("link.png").symlink_to(drawn)
    for asked in ([], ["--force"], ["-o", "link.png"]):
        said = refused(capsys, command, "--image", drawn, *asked)
        assert f"{drawn} is the image to read" in said or "link.png is the image to read" in said
        assert "-o FILE" in said
    assert Path(drawn).read_bytes() == before


def test_audio_alone_is_transcribed(capsys, folder_of, sound):
    command = ["heatmap", "--audio", sound, "--model", folder_of("whisper"), "-o", "alone.svg"]
    assert run([*command, "--caption", "full"]) == 0
    assert "Note: the target is the model's own transcript." in capsys.readouterr().err
    drawn = Path("alone.svg").read_text(encoding="utf-8")
    assert "The target is the model's own transcript." in drawn
    assert "Padding not drawn (" in drawn


@pytest.mark.parametrize("family", ["vit", "clip", "whisper", "wav2vec2", "llava"])
def test_a_folder_provides_the_processor_of_its_model(family, folder_of):
    processors = attnviz.load(folder_of(family)).checkpoint.processors
    assert (processors.image is not None) == (family in ("vit", "clip", "llava"))
    assert (processors.audio is not None) == (family in ("whisper", "wav2vec2"))
    assert (processors.tokenizer is None) == (family in ("vit", "wav2vec2"))
    if processors.image is not None:
        assert type(processors.image).__name__.endswith("Pil")  # with or without torchvision


def test_a_processor_can_be_a_folder(folder_of, tmp_path):
    folder = shutil.copytree(folder_of("wav2vec2"), tmp_path / "copy")
    (folder / "preprocessor_config.json").unlink()
    for processor in (folder_of("wav2vec2"), Wav2Vec2FeatureExtractor()):
        model = attnviz.load(folder, processor=processor)
        result = model.attend(audio=chirp(), sampling_rate=RATE)
        assert result.agreement.verdict == "verified"
