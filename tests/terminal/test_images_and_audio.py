"""Commands on images and audio, with models in folders as they are published."""

import json
import wave
from pathlib import Path

import numpy as np
import pytest
from media import RATE, chirp, picture, processor_of, seeing
from transformers import Wav2Vec2FeatureExtractor

import attnviz
from attnviz.app import run
from attnviz.errors import ModelError
from attnviz.models.checkpoint import load_checkpoint


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


def succeeds(capsys, *arguments):
    assert run(arguments) == 0
    return capsys.readouterr().out


def refused(capsys, *arguments, code=2):
    before = sorted(Path().rglob("*"))
    assert run(arguments) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert sorted(Path().rglob("*")) == before
    return err


def test_an_image_is_drawn_with_the_requested_patch(capsys, saved, shapes):
    command = ["heatmap", "--image", shapes, "--model", saved("vit"), "--layer", "1", "--head", "2"]
    out = succeeds(capsys, *command, "--patch", "2,1", "-o", "x.svg")
    assert "17 positions are too many" not in out
    drawn = Path("x.svg").read_text(encoding="utf-8")
    assert "Layer 1, head 2, from the patch in row 2, column 1" in drawn
    assert "shapes.png (80×60), read by vit." in drawn
    data = json.loads(succeeds(capsys, *command, "--json"))
    assert data["provenance"]["image"] == "shapes.png (80×60)"
    assert np.shape(data["weights"]) == (17, 17)
    succeeds(capsys, *command, "--matrix", "-o", "m.svg")
    assert "key (attended to)" in Path("m.svg").read_text(encoding="utf-8")


def test_every_command_reads_an_image(capsys, saved, shapes):
    for command in ("heatmap", "heads"):
        succeeds(capsys, command, "--image", shapes, "--model", saved("vit"))
        assert Path(f"{command}.png").is_file()
    out = succeeds(capsys, "verify", "--image", shapes, "--model", saved("vit"), "--json")
    assert json.loads(out)["verdict"] == "verified"


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


def test_a_text_with_an_image(capsys, saved, shapes):
    command = ["heatmap", "a red circle", "--image", shapes, "--model"]
    succeeds(capsys, *command, saved("clip"), "--stack", "vision", "-o", "clip.png")
    text = json.loads(succeeds(capsys, *command, saved("clip"), "--stack", "text", "--json"))
    assert text["rows"] == ["[CLS]", "a", "red", "circle", "[SEP]"]
    in_text = json.loads(succeeds(capsys, *command, saved("llava"), "--stack", "decoder", "--json"))
    assert in_text["rows"][-4:] == ["a", "red", "circle", "[SEP]"]
    assert in_text["patches_of_rows"][1] == [0, 0]


def test_audio_with_a_target(capsys, saved, tone):
    command = ["heatmap", "--audio", tone, "--target", "a tone", "--model", saved("whisper")]
    succeeds(capsys, *command, "-o", "x.svg")
    drawn = Path("x.svg").read_text(encoding="utf-8")
    assert "tone.wav (1.00 s at 16,000 Hz), read by whisper to say “a tone”." in drawn
    assert "key (attended to), s" in drawn
    out = succeeds(capsys, *command, "--special", "remove", "--stack", "encoder", "--json")
    assert len(json.loads(out)["seconds_of_rows"]) == 50


def test_audio_alone_is_transcribed(capsys, saved, tone):
    command = ["heatmap", "--audio", tone, "--model", saved("whisper"), "-o", "alone.svg"]
    assert run([*command, "--caption", "full"]) == 0
    assert "Note: the target is the model's own transcript." in capsys.readouterr().err
    drawn = Path("alone.svg").read_text(encoding="utf-8")
    assert "The target is the model's own transcript." in drawn
    assert "Padding not drawn (" in drawn


def test_errors_are_one_line(capsys, saved, shapes, tone):
    vit = ["heatmap", "--image", shapes, "--model", saved("vit")]
    outside = refused(capsys, *vit, "--patch", "9,9")
    assert "(9, 9) is not a query of the map. Choose [CLS] or a patch" in outside
    assert "from (0, 0) to (3, 3)" in outside
    assert "reads an image, not a text" in refused(
        capsys, "heatmap", "a cat", "--model", saved("vit")
    )
    assert "reads an image, not a sound" in refused(
        capsys, "heatmap", "--audio", tone, "--model", saved("vit")
    )
    assert "reads a text, not an image" in refused(capsys, "heatmap", "--image", shapes)


@pytest.mark.parametrize("family", ["vit", "clip", "whisper", "wav2vec2", "llava"])
def test_a_folder_provides_the_processor_of_its_model(family, saved):
    processors = load_checkpoint(saved(family)).processors
    assert (processors.image is not None) == (family in ("vit", "clip", "llava"))
    assert (processors.audio is not None) == (family in ("whisper", "wav2vec2"))
    assert (processors.tokenizer is None) == (family in ("vit", "wav2vec2"))
    if processors.image is not None:
        assert type(processors.image).__name__.endswith("Pil")  # with or without torchvision


def copy(folder, to):
    for file in Path(folder).iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    return to


def test_missing_processors_and_remote_code_are_refused(saved, tmp_path, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a question on standard input"))
    folder = copy(saved("vit"), tmp_path)
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    own = {"auto_map": {"AutoImageProcessor": "own.Own"}, "image_processor_type": "Own"}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings | own))
    with pytest.raises(ModelError, match=r"wants remote code, which .* not run\. Pass proc"):
        attnviz.load(folder)
    (folder / "preprocessor_config.json").write_text("{")
    with pytest.raises(ModelError, match=r"preprocessor_config.json cannot be read: "):
        attnviz.load(folder)
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(ModelError, match=r"there is no processor that reads image"):
        attnviz.load(folder)
    assert attnviz.load(folder, processor=saved("vit")).attend(image=picture()).image is not None


def test_a_processor_can_be_a_folder(saved, tmp_path):
    folder = copy(saved("wav2vec2"), tmp_path)
    (folder / "preprocessor_config.json").unlink()
    for processor in (saved("wav2vec2"), Wav2Vec2FeatureExtractor()):
        model = attnviz.load(folder, processor=processor)
        result = model.attend(audio=chirp(), sampling_rate=RATE)
        assert result.agreement.verdict == "verified"
