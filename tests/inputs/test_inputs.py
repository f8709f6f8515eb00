"""Images, sounds and texts together: what each position is, what is read, what is refused."""

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
from PIL import Image
from torch.testing import assert_close
from transformers import Wav2Vec2FeatureExtractor

import attnviz
from attnviz.errors import InputError
from attnviz.inputs import parse_inputs
from attnviz.inputs.audio import read_sound, resample

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
def test_patches_have_a_row_and_a_column_and_special_tokens_none(family, tokenizer):
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
def test_a_patch_is_where_the_pixels_are_that_change_it(family, tokenizer):
    first = np.array(picture(SIDE, SIDE))
    other = first.copy()
    size = PATCH if family != "swin" else 4
    other[2 * size : 3 * size, size : 2 * size] = 255 - other[2 * size : 3 * size, size : 2 * size]
    one, two = (look(family, tokenizer, image).records[0] for image in (first, other))
    change = (one.query - two.query).abs().amax((0, 2))
    assert one.query_axis.patches[int(change.argmax())] == (2, 1)
    assert int((change > 1e-4).sum()) == 1


def test_windows_are_named_in_the_order_in_which_the_model_sees_them(tokenizer):
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
    # In layer 0 it was seen by its window of 3 × 3; layer 1 rolls the windows, and names follow.
    assert changed == {(row, column) for row in range(3) for column in range(3, 6)}
    assert one.records[2].query_axis.patches[:2] == ((0, 0), (0, 1))
    assert max(p for p in one.records[2].query_axis.patches if p) == (3, 3)  # joined two by two


def test_the_image_is_kept_as_the_model_saw_it(tokenizer):
    seen = look("vit", tokenizer).image
    assert (seen.dtype, tuple(seen.shape)) == (torch.uint8, (SIDE, SIDE, 3))
    expected = np.array(picture().resize((SIDE, SIDE), Image.Resampling.BILINEAR))
    assert np.abs(seen.numpy().astype(int) - expected).max() <= 1
    cropped = look("clip", tokenizer).image  # the shorter edge resized, the middle cut out
    assert tuple(cropped.shape) == (SIDE, SIDE, 3)
    assert torch.dist(cropped.float(), seen.float()) > 100


def test_an_image_may_be_a_file_an_object_or_an_array(tokenizer, tmp_path):
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


def test_a_photo_is_turned_upright_and_made_rgb(tmp_path):
    image = picture()
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held on its side
    image.save(tmp_path / "turned.jpg", exif=exif)
    (picture_read,) = parse_inputs(image=tmp_path / "turned.jpg").pictures
    assert picture_read.pixels.size == (60, 80)
    (grey,) = parse_inputs(image=image.convert("L")).pictures
    assert grey.pixels.mode == "RGB"


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


def test_a_placeholder_that_was_not_typed_goes_in_front(tokenizer):
    result = seeing("llava", tokenizer).attend("a red circle", image=picture())
    axis = result.stack("decoder").record(0).query_axis
    assert axis.labels[1] == "r0 c0"
    assert axis.labels[-4:] == ("a", "red", "circle", "[SEP]")


def test_a_model_with_placeholders_reads_a_text_alone(tokenizer):
    result = seeing("llava", tokenizer).attend("a red circle")
    assert (result.stacks, result.image) == (("decoder",), None)


@pytest.mark.parametrize("family", ["whisper", "wav2vec2"])
def test_frames_begin_where_the_samples_are_that_change_them(family, tokenizer):
    model = seeing(family, tokenizer)
    beside = {"target": "a tone"} if family == "whisper" else {}
    sound = chirp(1.0)
    other = sound.copy()
    other[10_000:10_160] = 0.9  # 10 ms from 0.625 s on
    one, two = (
        model.attend(audio=samples, sampling_rate=RATE, **beside).stack("encoder").record(0)
        for samples in (sound, other)
    )
    change = (one.query - two.query).abs().amax((0, 2))
    assert one.query_axis.seconds[int(change.argmax())] == pytest.approx(0.625, abs=0.03)
    assert one.query_axis.seconds[:3] == pytest.approx((0, 0.02, 0.04))
    assert one.query_axis.labels[50 if family == "whisper" else 48] in ("[silence]", "0.96 s")


def test_silence_that_a_processor_adds_is_special(tokenizer):
    result = seeing("whisper", tokenizer).attend(
        audio=chirp(0.5), sampling_rate=RATE, target="a tone"
    )
    axis = result.stack("cross").record(0).key_axis
    assert len(axis) == 100  # of 20 ms; this one pads all sounds to 2 s
    assert sum(axis.special) == 75
    assert not any(axis.padding)  # the model does look there
    drawn = attnviz.attention_map(result, layer=0, head=0, special="remove")
    assert len(drawn.columns) == 25
    assert "[silence]" in drawn.notes[-1]
    assert drawn.sides[1].seconds[-1] == pytest.approx(0.48)


def test_sounds_of_different_length_are_what_they_are_alone(tokenizer):
    model = seeing("wav2vec2", tokenizer)
    sounds = [chirp(1.0), chirp(0.4)]
    for sound, among in zip(sounds, model.attend(audio=sounds, sampling_rate=RATE), strict=True):
        alone = model.attend(audio=sound, sampling_rate=RATE)
        assert_close(among.weights(0), alone.weights(0), rtol=0, atol=0)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_a_wav_file_is_read_in_every_width_and_its_channels_are_averaged(tmp_path, width):
    samples = np.stack([chirp(0.1), np.zeros_like(chirp(0.1))], axis=1)
    whole = np.round(samples * (2 ** (8 * width - 1) - 1)).astype("<i4")
    raw = whole.astype("<i4").tobytes()
    data = np.frombuffer(raw, np.uint8).reshape(-1, 4)[:, :width]
    if width == 1:
        data = data + 128
    with wave.open(str(tmp_path / "tone.wav"), "wb") as file:
        file.setparams((2, width, RATE, 0, "NONE", ""))
        file.writeframes(data.astype(np.uint8).tobytes())
    sound = read_sound(tmp_path / "tone.wav")
    assert (sound.rate, sound.name) == (RATE, "tone.wav (0.10 s at 16,000 Hz)")
    np.testing.assert_allclose(sound.samples, chirp(0.1) / 2, atol=2.0 ** (2 - 8 * width) + 1e-6)


@pytest.mark.parametrize("ending", ["flac", "ogg"])
def test_other_audio_files_are_read(tmp_path, ending):
    soundfile.write(tmp_path / f"tone.{ending}", chirp(0.5), RATE)
    sound = read_sound(tmp_path / f"tone.{ending}")
    assert (sound.rate, sound.name) == (RATE, f"tone.{ending} (0.50 s at 16,000 Hz)")
    tolerance = 2.0**-14 if ending == "flac" else 0.05  # OGG is lossy
    np.testing.assert_allclose(sound.samples, chirp(0.5), atol=tolerance)


def test_a_missing_soundfile_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(InputError, match=r"needs soundfile.* pip install soundfile"):
        read_sound("tone.wav")


def test_a_rate_that_no_sound_has_is_refused():
    with pytest.raises(InputError, match="at most 1,000,000 samples a second in sound, got"):
        read_sound(np.zeros(9), 10**9)


def test_a_sound_of_another_rate_is_resampled():
    time = np.arange(44_100) / 44_100
    sound = resample(read_sound(np.sin(2 * np.pi * 440 * time), 44_100), RATE)
    assert sound.name == "sound (1.00 s at 44,100 Hz, resampled to 16,000 Hz)"
    expected = np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE)
    np.testing.assert_allclose(sound.samples[200:-200], expected[200:-200], atol=2e-3)


def test_integers_use_their_full_range():
    sound = read_sound(np.array([0, 16_384, -32_768], np.int16), RATE)
    assert sound.samples.tolist() == [0, 0.5, -1]


@pytest.mark.parametrize(("family", "start"), [("vit-bert", "[SEP]"), ("whisper", "[CLS]")])
def test_a_decoder_begins_with_its_start_token_once(family, start, tokenizer):
    given = (
        {"image": picture()} if family == "vit-bert" else {"audio": chirp(), "sampling_rate": RATE}
    )
    result = seeing(family, tokenizer).attend(**given, target="a red circle")
    labels = result.stack("decoder").record(0).query_axis.labels
    assert labels == (*dict.fromkeys([start, "[CLS]"]), "a", "red", "circle")
    assert result.stack().record(0).query_axis.labels == labels


WRONG = {
    "image for a text model": (
        lambda t: attnviz.load().attend("a", image=picture()),
        "Expected a text, which is what all-MiniLM-L6-v2 reads, got an image. Leave it out",
    ),
    "text for an image model": (
        lambda t: seeing("vit", t).attend("a cat"),
        "Expected an image, which is what ViTModel reads, got a text",
    ),
    "no image": (
        lambda t: seeing("clip", t).attend("a cat"),
        r"Expected a text and an image, .* got a text. Give one with --image \(image=…\)",
    ),
    "no text": (
        lambda t: seeing("clip", t).attend(image=picture()),
        "Expected a text and an image, .* got an image. Type one",
    ),
    "no target": (
        lambda t: seeing("whisper", t).attend(audio=chirp(), sampling_rate=RATE),
        "Expected a sound and a target, .* got a sound. Give the text .*--target",
    ),
    "nothing": (lambda t: seeing("vit", t).attend(), "Expected a text, an image or a sound, got"),
    "an empty list": (lambda t: seeing("vit", t).attend(image=[]), "at least one image, got none"),
    "no such file": (
        lambda t: seeing("vit", t).attend(image="none.png"),
        "Expected an image, but there is no file none.png",
    ),
    "no picture": (
        lambda t: seeing("vit", t).attend(image=__file__),
        "it holds no picture that can be read. Give a PNG or a JPEG",
    ),
    "a folder": (lambda t: seeing("vit", t).attend(image="/"), "Expected an image in /, but"),
    "floats": (
        lambda t: seeing("vit", t).attend(image=np.zeros((8, 8, 3))),
        r"\(height, width, 3\) of uint8, got \(8, 8, 3\) of float64",
    ),
    "a number": (lambda t: seeing("vit", t).attend(image=3), "Pillow image or an array .* got int"),
    "no rate": (
        lambda t: seeing("wav2vec2", t).attend(audio=chirp()),
        "Expected the sampling rate of the array in samples a second, got None",
    ),
    "a rate without a sound": (
        lambda t: attnviz.load().attend("a", sampling_rate=RATE),
        "Expected a sound with sampling_rate, got none",
    ),
    "no WAV": (
        lambda t: seeing("wav2vec2", t).attend(audio=__file__),
        "Expected a sound in .*, but: .* Give a WAV, FLAC or OGG file",
    ),
    "no samples": (
        lambda t: seeing("wav2vec2", t).attend(audio=np.zeros(0), sampling_rate=RATE),
        "an array without samples",
    ),
    "no numbers": (
        lambda t: seeing("wav2vec2", t).attend(audio=np.full(9000, np.nan), sampling_rate=RATE),
        "Expected samples in sound, got some that are no numbers",
    ),
    "too short": (
        lambda t: seeing("wav2vec2", t).attend(audio=chirp(0.01), sampling_rate=RATE),
        "Expected a sound long enough for one frame of Wav2Vec2Model, got 0.010 s",
    ),
    "too long": (
        lambda t: seeing("whisper", t).attend(
            audio=chirp(3.0), sampling_rate=RATE, target="a tone"
        ),
        "Expected a sound of at most 2 s, .* got 3.00 s. .*--truncate",
    ),
    "as many": (
        lambda t: seeing("clip", t).attend(["a", "b"], image=[picture()]),
        "Expected an image for each of 2 texts, got 1",
    ),
    "two placeholders": (
        lambda t: seeing("llava", t).attend("<image> <image>", image=picture()),
        "Expected one <image> in the text, for the one image given, got 2",
    ),
}


@pytest.mark.parametrize(("attend", "said"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_read_is_refused_in_one_line(attend, said, tokenizer):
    with pytest.raises(InputError, match=said) as caught:
        attend(tokenizer)
    assert "\n" not in str(caught.value)


def test_a_sound_that_is_too_long_is_cut_where_asked(tokenizer):
    result = seeing("whisper", tokenizer).attend(
        audio=chirp(3.0), sampling_rate=RATE, target="a tone", truncate=True
    )
    axis = result.stack("encoder").record(0).key_axis
    assert (len(axis), sum(axis.special)) == (100, 0)


def test_the_heads_of_an_image_are_ranked_by_what_patches_give_to_patches(tokenizer):
    from attnviz.analyses.maps.heads import rank_heads

    assert rank_heads(look("vit", tokenizer)).meaning == (
        "mean weight from patches to other patches"
    )
    cross = look("vit-bert", tokenizer)
    assert rank_heads(cross).meaning == "mean weight from content words to patches"
    words = look("llava", tokenizer).stack("decoder")
    assert rank_heads(words).meaning.startswith("mean weight from content words and patches to")


def test_processors_of_another_kind_are_refused():
    with pytest.raises(InputError, match="ViTModel: expected a processor that reads image, found"):
        attnviz.load(seeing("vit", None).module)
    with pytest.raises(InputError, match="expected a processor that reads image, found none"):
        attnviz.load(seeing("vit", None).module, processor=Wav2Vec2FeatureExtractor())
    with pytest.raises(InputError, match=r"expected a processor, an image processor .* got int"):
        attnviz.load(seeing("vit", None).module, processor=3)


def test_a_text_model_needs_no_processor_and_is_not_disturbed_by_one(tokenizer):
    model = attnviz.load(tiny("bert"), tokenizer=tokenizer, processor=image_processor())
    assert model.attend("a train").agreement.verdict == "verified"


def test_a_picture_of_sixteen_bits_is_refused_not_clipped(tmp_path, tokenizer):
    file = tmp_path / "deep.png"
    Image.fromarray(np.linspace(0, 65535, 64 * 64).reshape(64, 64).astype(np.uint16)).save(file)
    with pytest.raises(InputError, match=r"8 bits a channel, got deep\.png of mode I;16"):
        seeing("vit", tokenizer).attend(image=file)
