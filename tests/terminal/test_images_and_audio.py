"""Commands on images and audio, with models in folders as they are published."""

import json
import shutil
import wave
from pathlib import Path

import numpy as np
import pytest
from media import RATE, chirp, picture, processor_of, seeing
from transformers import Wav2Vec2FeatureExtractor

import attnviz
from attnviz.app import run
from attnviz.models.checkpoint import load_checkpoint
from tests.terminal.conftest import refused, succeeds


@pytest.fixture(scope="session")
def saved(tmp_path_factory, tokenizer):
    """Return a function that writes a model and its processor into a folder."""
    folders = {}

    def save(family):
        if family not in folders:
            folder = folders[family] = tmp_path_factory.mktemp("models") / family
            model = seeing(family, tokenizer)
            model.module.save_pretrained(folder)
            processors = model.checkpoint.processors
            if family != "vit":
                processors.tokenizer.save_pretrained(folder)
            (processors.multimodal or processor_of(family, tokenizer)).save_pretrained(folder)
        return str(folders[family])

    return save


@pytest.fixture
def shapes():
    picture().save("shapes.png")
    return "shapes.png"


@pytest.fixture
def tone():
    with wave.open("tone.wav", "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes((chirp() * 32_767).astype("<i2").tobytes())
    return "tone.wav"


def test_an_image_is_drawn_with_the_requested_patch(capsys, saved, shapes):
    command = ["heatmap", "--image", shapes, "--model", saved("vit"), "--layer", "1", "--head", "2"]
    out = succeeds(capsys, *command, "--patch", "2,1", "-o", "x.svg").out
    assert "17 positions are too many" not in out
    drawn = Path("x.svg").read_text(encoding="utf-8")
    assert "Layer 1, head 2, from the patch in row 2, column 1" in drawn
    assert "shapes.png (80×60), read by vit." in drawn
    data = json.loads(succeeds(capsys, *command, "--json").out)
    assert data["provenance"]["image"] == "shapes.png (80×60)"
    assert np.shape(data["weights"]) == (17, 17)
    succeeds(capsys, *command, "--matrix", "-o", "m.svg")
    assert "key (attended to)" in Path("m.svg").read_text(encoding="utf-8")


@pytest.mark.parametrize("command", ["heatmap", "heads", "steps"])
def test_the_input_image_is_not_overwritten(command, capsys, shapes):
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


def test_audio_alone_is_transcribed(capsys, saved, tone):
    command = ["heatmap", "--audio", tone, "--model", saved("whisper"), "-o", "alone.svg"]
    assert run([*command, "--caption", "full"]) == 0
    assert "Note: the target is the model's own transcript." in capsys.readouterr().err
    drawn = Path("alone.svg").read_text(encoding="utf-8")
    assert "The target is the model's own transcript." in drawn
    assert "Padding not drawn (" in drawn


@pytest.mark.parametrize("family", ["vit", "clip", "whisper", "wav2vec2", "llava"])
def test_a_folder_provides_the_processor_of_its_model(family, saved):
    processors = load_checkpoint(saved(family)).processors
    assert (processors.image is not None) == (family in ("vit", "clip", "llava"))
    assert (processors.audio is not None) == (family in ("whisper", "wav2vec2"))
    assert (processors.tokenizer is None) == (family in ("vit", "wav2vec2"))
    if processors.image is not None:
        assert type(processors.image).__name__.endswith("Pil")  # with or without torchvision


def test_a_processor_can_be_a_folder(saved, tmp_path):
    folder = shutil.copytree(saved("wav2vec2"), tmp_path / "copy")
    (folder / "preprocessor_config.json").unlink()
    for processor in (saved("wav2vec2"), Wav2Vec2FeatureExtractor()):
        model = attnviz.load(folder, processor=processor)
        result = model.attend(audio=chirp(), sampling_rate=RATE)
        assert result.agreement.verdict == "verified"
