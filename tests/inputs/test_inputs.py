"""Images, audio and text together: what each position means, and invalid inputs."""

import itertools
import re
import sys
import wave

import numpy as np
import pytest
import soundfile
import torch
from families import tiny
from media import (
    PATCH,
    RATE,
    SIDE,
    chirp,
    image_processor,
    picture,
    seeing,
)
from PIL import Image, ImageOps
from torch.testing import assert_close
from transformers import Wav2Vec2FeatureExtractor

import attnviz
from attnviz import InputError

IMAGES = {
    "vit": ("encoder", ("[CLS]",)),
    "dinov2": ("encoder", ("[CLS]",)),
    "registers": ("encoder", ("[CLS]", "[REG]", "[REG]", "[REG]", "[REG]")),
    "clip": ("vision", ("[CLS]",)),
    "blip": ("vision", ("[CLS]",)),
    "vit-bert": ("encoder", ("[CLS]",)),
    "llava": ("vision", ("[CLS]",)),
}
GRID = SIDE // PATCH
BESIDE = {
    "clip": {"text": "a red circle"},
    "blip": {"text": "a red circle"},
    "llava": {"text": "a red circle"},
    "vit-bert": {"target": "a red circle"},
}


def look(family, tokenizer, image=None):
    given = {"image": picture() if image is None else image, **BESIDE.get(family, {})}
    return seeing(family, tokenizer).attend(given.pop("text", None), **given)


@pytest.mark.parametrize("family", IMAGES)
def test_patches_have_a_row_and_a_column_and_special_tokens_do_not(family, tokenizer):
    stack, specials = IMAGES[family]
    result = look(family, tokenizer)
    axis = result.stack(stack).record(0).key_axis
    grid = [(row, column) for row in range(GRID) for column in range(GRID)]
    assert axis.labels == (*specials, *(f"r{row} c{column}" for row, column in grid))
    assert axis.patches == (*(None for _ in specials), *grid)
    assert axis.special == (*(True for _ in specials), *(False for _ in grid))
    assert not any(axis.padding)
    assert result.agreement.first_difference is None
    assert result.provenance.image == "image (80×60)"


@pytest.mark.parametrize("family", [*IMAGES, "swin"])
def test_a_patch_matches_the_pixels_that_affect_it(family, tokenizer):
    first = np.array(picture(SIDE, SIDE))
    other = first.copy()
    size = PATCH if family != "swin" else 4
    other[2 * size : 3 * size, size : 2 * size] = 255 - other[2 * size : 3 * size, size : 2 * size]
    one, two = (look(family, tokenizer, image).records[0] for image in (first, other))
    change = (one.query - two.query).abs().amax((0, 2))
    assert one.query_axis.patches[int(change.argmax())] == (2, 1)
    assert int((change > 1e-4).sum()) == 1


def test_windows_are_labeled_in_the_models_order(tokenizer):
    first = np.array(picture(SIDE, SIDE))
    other = first.copy()
    other[0:4, 20:24] = 255 - other[0:4, 20:24]  # the patch in row 0, column 5
    one, two = (look("swin", tokenizer, image) for image in (first, other))
    change = (one.records[1].query - two.records[1].query).abs().amax((0, 2)) > 1e-4
    changed = {
        patch
        for patch, is_changed in zip(one.records[1].query_axis.patches, change, strict=True)
        if is_changed and patch is not None
    }
    # In layer 0 the patch was inside a 3 × 3 window; layer 1 shifts the windows, and names follow.
    assert changed == {(row, column) for row in range(3) for column in range(3, 6)}
    assert one.records[2].query_axis.patches[:2] == ((0, 0), (0, 1))
    assert max(p for p in one.records[2].query_axis.patches if p) == (3, 3)  # merged two by two


def test_the_stored_image_is_the_models_input(tokenizer):
    seen = look("vit", tokenizer).image
    assert (seen.dtype, tuple(seen.shape)) == (torch.uint8, (SIDE, SIDE, 3))
    expected = np.array(picture().resize((SIDE, SIDE), Image.Resampling.BILINEAR))
    assert np.abs(seen.numpy().astype(int) - expected).max() <= 1
    cropped = look("clip", tokenizer).image  # the shorter edge is resized, the center is cropped
    assert tuple(cropped.shape) == (SIDE, SIDE, 3)
    assert torch.dist(cropped.float(), seen.float()) > 100


def test_an_image_can_be_a_file_an_object_or_an_array(tokenizer, tmp_path):
    model = seeing("vit", tokenizer)
    picture().save(tmp_path / "shapes.png")
    path = tmp_path / "shapes.png"
    results = model.attend(image=[str(path), path, picture(), np.array(picture())])
    names = [result.provenance.image for result in results]
    assert names == ["shapes.png (80×60)"] * 2 + ["image (80×60)"] * 2
    for result in results:
        assert torch.equal(result.weights(1), results[0].weights(1))
        assert result.provenance.text is None
    assert repr(results[0]).startswith("AttentionResult('shapes.png (80×60)', ViTModel, 2 att")


def test_a_photo_is_rotated_upright_and_converted_to_rgb(tokenizer, tmp_path):
    image, model = picture(), seeing("vit", tokenizer)
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held sideways
    image.save(tmp_path / "turned.jpg", exif=exif)
    upright = ImageOps.exif_transpose(Image.open(tmp_path / "turned.jpg"))
    assert upright.size == (60, 80)
    gray = image.convert("L")
    for given, same in ((tmp_path / "turned.jpg", upright), (gray, gray.convert("RGB"))):
        one, other = (model.attend(image=of).weights() for of in (given, same))
        assert torch.equal(one, other)


def test_a_model_of_text_and_image_has_an_axis_for_each(tokenizer):
    result = look("clip", tokenizer)
    assert result.stacks == ("vision", "text")
    words = result.stack("text").record(0).query_axis
    assert words.labels == ("[CLS]", "a", "red", "circle", "[SEP]")
    assert words.patches is None
    cross = look("blip", tokenizer).stack("cross").record(0)
    assert cross.query_axis.labels == words.labels
    assert cross.key_axis.patches[1] == (0, 0)


def test_placeholders_in_a_text_are_the_patches_that_fill_them(tokenizer):
    model = seeing("llava", tokenizer)
    result = model.attend("Look: <image> what isn't red?", image=picture())
    axis = result.stack("decoder").record(0).query_axis
    patches = [patch for patch in axis.patches if patch is not None]
    assert patches == [(row, column) for row in range(GRID) for column in range(GRID)]
    assert axis.labels[:4] == ("[CLS]", "look", ":", "r0 c0")
    assert [axis.word_labels[w] for w in axis.words if w is not None] == [
        "Look", ":", "what", "isn't", "isn't", "isn't", "red", "?",
    ]  # fmt: skip
    assert not any(axis.special[1:-1])
    assert result.agreement.verdict == "verified"


def test_a_missing_placeholder_is_prepended_and_a_text_needs_none(tokenizer):
    model = seeing("llava", tokenizer)
    axis = model.attend("a red circle", image=picture()).stack("decoder").record(0).query_axis
    assert axis.labels[1] == "r0 c0"
    assert axis.labels[-4:] == ("a", "red", "circle", "[SEP]")
    alone = model.attend("a red circle")
    assert (alone.stacks, alone.image) == (("decoder",), None)


@pytest.mark.parametrize("family", ["whisper", "wav2vec2"])
def test_frames_match_the_samples_that_affect_them(family, tokenizer):
    model = seeing(family, tokenizer)
    beside = {"target": "a tone"} if family == "whisper" else {}
    sound = chirp(1.0)
    other = sound.copy()
    other[10_000:10_160] = 0.9  # 10 ms starting at 0.625 s
    one, two = (
        model.attend(audio=samples, sampling_rate=RATE, **beside).stack("encoder").record(0)
        for samples in (sound, other)
    )
    change = (one.query - two.query).abs().amax((0, 2))
    assert one.query_axis.seconds[int(change.argmax())] == pytest.approx(0.625, abs=0.03)
    assert one.query_axis.seconds[:3] == pytest.approx((0, 0.02, 0.04))
    assert one.query_axis.labels[50 if family == "whisper" else 48] in ("[silence]", "0.96 s")


def test_padding_of_a_sound_is_special_and_not_drawn_and_its_weight_said(tokenizer):
    result = seeing("whisper", tokenizer).attend(
        audio=chirp(0.5), sampling_rate=RATE, target="a tone"
    )
    cross, encoder = result.stack("cross"), result.stack("encoder")
    axis, weights = cross.record(0).key_axis, cross.weights()
    assert len(axis) == weights.shape[-1] == 100  # 20 ms each; all audio is padded to 2 s
    assert sum(axis.special) == 75
    assert not any(axis.padding)  # the model does attend to them
    drawn = attnviz.attention_map(result, layer=0, head=0, special="remove")
    assert len(drawn.columns) == 25
    assert "[silence]" in drawn.notes[-1]
    assert drawn.sides[1].seconds[-1] == pytest.approx(0.48)
    drawn = attnviz.attention_map(cross, layer=0, head=1)
    assert torch.equal(drawn.weights, weights[0, 1, :, :25])  # as they are
    assert not any(drawn.special_columns)
    lost = weights[0, 1, :, 25:].sum(-1).mean()
    assert drawn.notes[0] == f"padding not drawn ({lost:.0%} of the weight)"
    maps = attnviz.head_maps(cross)
    assert torch.equal(maps.weights, weights[..., :25])
    lost = weights[..., 25:].sum(-1).mean()
    assert maps.notes[0] == f"padding not drawn ({lost:.0%} of the weight)"
    assert attnviz.attention_map(encoder, layer=0, head=0).weights.shape == (25, 25)


def test_a_sound_without_a_target_is_transcribed(tokenizer):
    model = seeing("whisper", tokenizer)
    sound = {"audio": chirp(0.5), "sampling_rate": RATE}
    before = model.module.generation_config.to_dict()
    result = model.attend(**sound)
    said = result.provenance.target
    assert result.notes == ("the target is the model's own transcript",)
    again = model.attend(**sound, target=said)
    assert torch.equal(result.stack("cross").weights(), again.stack("cross").weights())
    features = model.checkpoint.processors.audio(
        sound["audio"], sampling_rate=RATE, return_tensors="pt"
    )
    ids = model.module.generate(features.input_features, do_sample=False)[0]
    assert said == tokenizer.decode(ids, skip_special_tokens=True)
    assert model.module.generation_config.to_dict() == before
    assert [one.provenance.target for one in model.attend(audio=[chirp(0.5)], sampling_rate=RATE)]


def test_a_sound_without_words(tokenizer, monkeypatch):
    def write_nothing(*_, stopping_criteria, **__):
        stopping_criteria[0](torch.tensor([[101]]), None)
        return torch.tensor([[101, 102]])

    model = seeing("whisper", tokenizer)
    monkeypatch.setattr(type(model.module), "generate", write_nothing)
    with pytest.raises(InputError, match=r"finds no words in the sound\. .*--target"):
        model.attend(audio=chirp(0.5), sampling_rate=RATE)


def test_audio_of_different_lengths_gives_the_same_as_alone(tokenizer):
    model = seeing("wav2vec2", tokenizer)
    sounds = [chirp(1.0), chirp(0.4)]
    for sound, among in zip(sounds, model.attend(audio=sounds, sampling_rate=RATE), strict=True):
        alone = model.attend(audio=sound, sampling_rate=RATE)
        assert_close(among.weights(0), alone.weights(0), rtol=0, atol=0)


@pytest.fixture(scope="module")
def ear(tokenizer):
    return seeing("wav2vec2", tokenizer)


def extremes(samples):
    """Return the lowest and the highest sample of each of at most 1000 parts of a sound."""
    count = len(samples)
    parts = min(count, 1000)
    edges = [part * count // parts for part in range(parts + 1)]
    inside = [samples[start:end] for start, end in itertools.pairwise(edges)]
    return np.array([(part.min(), part.max()) for part in inside])


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_wav_files_of_every_width_are_read_and_channels_averaged(tmp_path, width, ear):
    samples = np.stack([chirp(0.1), np.zeros_like(chirp(0.1))], axis=1)
    whole = np.round(samples * (2 ** (8 * width - 1) - 1)).astype("<i4")
    raw = whole.astype("<i4").tobytes()
    data = np.frombuffer(raw, np.uint8).reshape(-1, 4)[:, :width]
    if width == 1:
        data = data + 128
    with wave.open(str(tmp_path / "tone.wav"), "wb") as file:
        file.setparams((2, width, RATE, 0, "NONE", ""))
        file.writeframes(data.astype(np.uint8).tobytes())
    result = ear.attend(audio=tmp_path / "tone.wav")
    assert result.provenance.audio == "tone.wav (0.10 s at 16,000 Hz)"
    atol = 2.0 ** (2 - 8 * width) + 1e-6
    np.testing.assert_allclose(result.waveform.extremes, extremes(chirp(0.1) / 2), atol=atol)


@pytest.mark.parametrize("ending", ["flac", "ogg"])
def test_other_audio_files_are_read(tmp_path, ending, ear, monkeypatch):
    soundfile.write(tmp_path / f"tone.{ending}", chirp(0.5), RATE)
    result = ear.attend(audio=tmp_path / f"tone.{ending}")
    assert result.provenance.audio == f"tone.{ending} (0.50 s at 16,000 Hz)"
    tolerance = 2.0**-14 if ending == "flac" else 0.05  # OGG is lossy
    np.testing.assert_allclose(result.waveform.extremes, extremes(chirp(0.5)), atol=tolerance)
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(InputError, match=r"needs soundfile.* pip install soundfile"):
        ear.attend(audio=tmp_path / f"tone.{ending}")


def test_audio_with_another_rate_is_resampled(ear):
    time = np.arange(44_100) / 44_100
    result = ear.attend(audio=np.sin(2 * np.pi * 440 * time), sampling_rate=44_100)
    said = "sound (1.00 s at 44,100 Hz, resampled to 16,000 Hz)"
    assert result.provenance.audio == said
    expected = extremes(np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE))
    np.testing.assert_allclose(result.waveform.extremes[15:-15], expected[15:-15], atol=2e-3)


def test_integers_use_their_full_range(ear):
    samples = np.tile(np.array([0, 16_384, -32_768], np.int16), 400)
    result = ear.attend(audio=samples, sampling_rate=RATE)
    assert (result.waveform.extremes.min(), result.waveform.extremes.max()) == (-1, 0.5)


@pytest.mark.parametrize(("family", "start"), [("vit-bert", "[SEP]"), ("whisper", "[CLS]")])
def test_a_decoder_starts_with_one_start_token(family, start, tokenizer):
    given = (
        {"image": picture()} if family == "vit-bert" else {"audio": chirp(), "sampling_rate": RATE}
    )
    result = seeing(family, tokenizer).attend(**given, target="a red circle")
    labels = result.stack("decoder").record(0).query_axis.labels
    assert labels == (*dict.fromkeys([start, "[CLS]"]), "a", "red", "circle")
    assert result.stack().record(0).query_axis.labels == labels


WRONG = {
    "no image": (
        lambda t: seeing("clip", t).attend("a cat"),
        r"but an image is missing. Give one with --image \(image=…\)",
    ),
    "no text": (
        lambda t: seeing("clip", t).attend(image=picture()),
        "reads a text and an image, but a text is missing. Type one",
    ),
    "an empty list": (
        lambda t: seeing("vit", t).attend(image=[]),
        "The list has no image: give at least one",
    ),
    "a number": (
        lambda t: seeing("vit", t).attend(image=3),
        "int is not an image: give a file, a Pillow image or an array",
    ),
    "a rate without a sound": (
        lambda t: attnviz.load().attend("a", sampling_rate=RATE),
        "sampling_rate needs a sound",
    ),
    "too long": (
        lambda t: seeing("whisper", t).attend(
            audio=chirp(3.0), sampling_rate=RATE, target="a tone"
        ),
        "can read 2 s, not 3.00 s. .*--truncate",
    ),
    "as many": (
        lambda t: seeing("clip", t).attend(["a", "b"], image=[picture()]),
        "There are 2 texts but 1 image: give one for each",
    ),
    "two placeholders": (
        lambda t: seeing("llava", t).attend("<image> <image>", image=picture()),
        "The text has 2 <image>, but there is one image",
    ),
}


@pytest.mark.parametrize(("attend", "said"), WRONG.values(), ids=WRONG)
def test_unreadable_input_is_refused_in_one_line(attend, said, tokenizer):
    with pytest.raises(InputError, match=said) as caught:
        attend(tokenizer)
    assert "\n" not in str(caught.value)


def test_audio_that_is_too_long_is_truncated_on_request(tokenizer):
    result = seeing("whisper", tokenizer).attend(
        audio=chirp(3.0), sampling_rate=RATE, target="a tone", truncate=True
    )
    axis = result.stack("encoder").record(0).key_axis
    assert (len(axis), sum(axis.special)) == (100, 0)
    assert result.notes[0] == "sound cut from 3.00 s to 2 s"


def test_a_target_that_is_too_long_is_cut_with_a_note(tokenizer):
    model = attnviz.load(tiny("bart"), tokenizer=tokenizer)
    result = model.attend("a red circle", target="a tone " * 300, truncate=True)
    assert re.fullmatch(r"target cut from 602 to \d+ tokens", result.notes[0])


def test_processors_of_another_kind_are_refused():
    with pytest.raises(InputError, match="ViTModel: there is no processor that reads image"):
        attnviz.load(seeing("vit", None).module).attend(image=np.zeros((32, 32, 3), "uint8"))
    with pytest.raises(InputError, match="there is no processor that reads image"):
        attnviz.load(seeing("vit", None).module, processor=Wav2Vec2FeatureExtractor())
    with pytest.raises(InputError, match=r"should be a processor, an image processor .* not int"):
        attnviz.load(seeing("vit", None).module, processor=3)


def test_a_text_model_needs_no_processor_and_ignores_one(tokenizer):
    model = attnviz.load(tiny("bert"), tokenizer=tokenizer, processor=image_processor())
    assert model.attend("a train").agreement.verdict == "verified"


# --- special tokens that are typed in a text


def test_typed_special_tokens_are_parsed_or_split_with_a_note(small, tokenizer):
    text = "Paris is the [MASK] of France"
    parsed = small.attend(text)
    axis = parsed.record(0).query_axis
    assert axis.labels[4] == "[MASK]"
    assert axis.special[4] is False
    (note,) = parsed.notes
    assert note.startswith("read as special tokens, not as plain text: [MASK] (special_tokens=")
    assert parsed.agreement.verdict == "verified"
    loaded = attnviz.load(tiny("bert"), tokenizer=tokenizer, special_tokens="split")
    for split in (small.attend(text, special_tokens="split"), loaded.attend(text)):
        assert "[" in split.record(0).query_axis.labels
        (note,) = split.notes
        assert note.startswith("read as plain text, not as special tokens: [MASK] (special_tokens=")
    assert loaded.attend(text, special_tokens="parse").notes == parsed.notes
    assert attnviz.verify(text, model=small, special_tokens="split").verdict == "verified"
    assert small.attend("no marker").notes == ()


def test_only_the_text_with_a_marker_has_the_note(small):
    plain, pair = small.attend(["a b", "c d"], pair=["e f", "g [SEP] h"])
    assert plain.notes == ()
    assert "[SEP]" in pair.notes[0]


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_segments_go_only_to_models_with_a_table_of_them(family, tokenizer):
    """GPT-2 looks segments up among its words, and adds what it finds to every token."""
    module, names = tiny(family), set()
    module.register_forward_pre_hook(lambda *run: names.update(run[2]), with_kwargs=True)
    attnviz.load(module, tokenizer=tokenizer).attend("the train")
    assert ("token_type_ids" in names) == (family == "bert")


def test_a_result_keeps_the_outline_of_its_sound(ear, tmp_path):
    result = ear.attend(audio=chirp(), sampling_rate=RATE)
    assert result.waveform.seconds == 1.0
    np.testing.assert_array_equal(result.waveform.extremes, extremes(chirp()))
    attnviz.save_result(result, tmp_path / "sound.safetensors")
    loaded = attnviz.load_result(tmp_path / "sound.safetensors").waveform
    assert torch.equal(loaded.extremes, result.waveform.extremes)
