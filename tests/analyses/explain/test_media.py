"""Which window of a sound, or which tile of a picture, a prediction comes from."""

import io
import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from commands import run
from PIL import Image
from rich.console import Console
from transformers import (
    ASTConfig,
    ASTFeatureExtractor,
    ASTForAudioClassification,
    ConvNextConfig,
    ConvNextModel,
    ViTConfig,
    ViTForImageClassification,
    ViTModel,
    Wav2Vec2Config,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2ForSequenceClassification,
)
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

import attnviz
from attnviz import InputError, ModelError
from attnviz.attribution.reference import Media

SIDE, PATCH, RATE = 32, 8, 16_000
TILE = 2, 1  # whose color is the class
GRAY = 128
_small = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
}  # fmt: skip


def picture(tile=TILE, side=SIDE):
    """Return a gray picture with one white tile."""
    pixels, size = np.full((side, side, 3), GRAY, np.uint8), side * PATCH // SIDE
    row, column = (n * size for n in tile)
    pixels[row : row + size, column : column + size] = 255
    return Image.fromarray(pixels)


def vit(kind=ViTForImageClassification, **options):
    torch.manual_seed(0)
    module = kind(ViTConfig(**_small, image_size=SIDE, patch_size=PATCH, **options)).eval()
    processor = ViTImageProcessorPil(size={"height": SIDE, "width": SIDE})
    return attnviz.load(module, processor=processor)


@pytest.fixture(scope="module")
def of_one_tile():
    """A classifier by hand: its first class is the brightness of one tile, and of nothing else."""
    model = vit(num_labels=2, id2label={0: "bright", 1: "dark"})
    module = model.module
    rows, columns = (slice(n * PATCH, (n + 1) * PATCH) for n in TILE)

    def read(pixel_values=None, **_):
        bright = pixel_values[:, :, rows, columns].mean((1, 2, 3))
        return type(own(pixel_values=pixel_values))(logits=torch.stack([bright, -bright], 1))

    own, module.forward = module.forward, read
    return model


@pytest.fixture(scope="module")
def why(of_one_tile):
    return attnviz.explain(image=picture(), model=of_one_tile)


def test_the_tile_that_makes_the_class_is_named(why):
    assert (why.kind, why.target, why.against) == ("class", "bright", "dark")
    assert why.headline == "Row 2, column 1 of the picture raises “bright” over “dark” most"
    effects = why.effect.reshape(4, 4)
    assert effects[TILE] > 0.5
    effects[TILE] = 0.0
    assert not effects.any()
    assert "Covering row 2, column 1 of the picture lowers it by" in why.finding
    assert why.reference == (
        "the same picture, where one tile is covered with the mean color of the picture"
    )
    assert why.checked_agreement.verdict == "verified"
    assert why.image.shape == (SIDE, SIDE, 3)


def test_a_class_and_another_one_are_chosen(of_one_tile):
    other = attnviz.explain(image=picture(), target="dark", against="bright", model=of_one_tile)
    assert other.headline == "Row 2, column 1 of the picture lowers “dark” over “bright” most"


def test_a_tile_in_the_wrong_place_is_found(of_one_tile, monkeypatch):
    """A planted fault: the tile beside the right one is covered."""
    own = Media.without
    monkeypatch.setattr(Media, "without", lambda media, n, *of: own(media, (n + 1) % 16, *of))
    other = attnviz.explain(image=picture(), model=of_one_tile)
    assert "Row 2, column 1" not in other.headline


def test_an_effect_is_what_the_logit_loses_by_the_mean_color(why, of_one_tile):
    model = vit(num_labels=3)
    drawn = attnviz.explain(image=picture(), target="LABEL_1", number="logit", model=model)
    pixels = model.checkpoint.processors.image(picture(), return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        whole = model.module(pixels).logits[0, 1]
        for n in (0, 5, 9):
            row, column = (PATCH * one for one in divmod(n, 4))
            other = pixels.clone()
            mean = pixels.mean((2, 3), keepdim=True)
            other[:, :, row : row + PATCH, column : column + PATCH] = mean
            lost = whole - model.module(other).logits[0, 1]
            assert drawn.effect[n].item() == pytest.approx(lost.item(), abs=1e-5)


def test_two_pictures_of_different_sizes_are_compared():
    model = vit(ViTModel)
    why = attnviz.explain(image=picture(), similar_to=picture(side=96), model=model)
    assert (why.kind, why.unit) == ("similarity", "points of cosine")
    assert why.value == pytest.approx(1, abs=1e-2)
    assert why.question == "the similarity to the other picture"
    processor = model.checkpoint.processors.image
    with torch.no_grad():
        states = [
            model.module(**processor(one, return_tensors="pt")).last_hidden_state[0, 0].double()
            for one in (picture(), picture(side=96))
        ]
    assert why.value == pytest.approx(torch.cosine_similarity(*states, dim=0).item(), abs=1e-5)


def test_few_tiles_of_a_large_grid_cover_the_picture():
    torch.manual_seed(0)
    config = ViTConfig(**_small, image_size=148, patch_size=4, num_labels=2)  # 37 × 37 patches
    processor = ViTImageProcessorPil(size={"height": 148, "width": 148})
    model = attnviz.load(ViTForImageClassification(config).eval(), processor=processor)
    why = attnviz.explain(image=picture(), model=model)
    assert len(why.words) == 36
    assert why.edges[0] == why.edges[1] == (0, 24, 48, 72, 100, 124, 148)


@pytest.fixture(scope="module")
def of_loudness():
    """A classifier by hand: its first class is the loudness from 0.4 to 0.6 seconds."""
    torch.manual_seed(0)
    config = Wav2Vec2Config(
        **_small, conv_dim=[16], conv_kernel=[400], conv_stride=[320], num_feat_extract_layers=1,
        num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, num_labels=2,
        id2label={0: "loud", 1: "quiet"},
    )  # fmt: skip
    module = Wav2Vec2ForSequenceClassification(config).eval()
    model = attnviz.load(module, processor=Wav2Vec2FeatureExtractor(do_normalize=False))

    def read(input_values=None, **_):
        loud = input_values[:, 2 * RATE // 5 : 3 * RATE // 5].square().mean(1)
        return type(own(input_values=input_values))(logits=torch.stack([loud, -loud], 1))

    own, module.forward = module.forward, read
    return model


def tone(seconds=1.3):
    return np.sin(np.arange(round(seconds * RATE)) / 20).astype(np.float32)


def test_the_window_that_makes_the_class_is_named(of_loudness, tmp_path):
    why = attnviz.explain(audio=tone(), sampling_rate=RATE, model=of_loudness)
    assert why.edges == ((0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.3),)
    assert why.words[-1] == "1–1.3 s"
    assert why.headline == "0.4–0.6 s of the sound raises “loud” over “quiet” most"
    assert [n for n, lost in enumerate(why.effect.tolist()) if lost] == [2]
    assert why.reference == "the same sound, where one window is replaced by silence"
    frame = why.to_frame()
    assert frame["begin"].tolist() == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    why.save(tmp_path / "why.safetensors")
    loaded = attnviz.load_result(tmp_path / "why.safetensors")
    assert (loaded.headline, loaded.edges) == (why.headline, why.edges)
    assert loaded.checked_agreement.verdict == "verified"
    loaded.plot()


def test_a_window_in_the_wrong_place_is_found(of_loudness, monkeypatch):
    own = Media.without
    monkeypatch.setattr(Media, "without", lambda media, n, *of: own(media, (n + 1) % 6, *of))
    why = attnviz.explain(audio=tone(), sampling_rate=RATE, model=of_loudness)
    assert "0.4–0.6 s" not in why.headline


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"groups": "sentence"}, "parts of the sound or of the picture are replaced"),
        ({"word": "dog"}, "parts of the sound or of the picture are replaced"),
        ({"reference": "mask"}, "parts of the sound or of the picture are replaced"),
        ({"methods": "rollout"}, "parts of the sound or of the picture are replaced"),
        ({"decoder": "a"}, "parts of the sound or of the picture are replaced"),
        ({"text": "a dog"}, "explain reads one text, one sound or one picture"),
        ({"generate": 3}, "does not generate tokens"),
        ({"target": "tiger"}, "'tiger' is not a class"),
    ],
)
def test_what_is_not_for_pictures_is_one_clear_line(of_one_tile, options, message):
    with pytest.raises(InputError, match=message) as error:
        attnviz.explain(image=picture(), model=of_one_tile, **options)
    assert "\n" not in str(error.value)


def test_models_that_read_or_say_something_else_are_named(model, of_one_tile):
    with pytest.raises(InputError, match="reads a text, not a sound"):
        attnviz.explain(audio=tone(), sampling_rate=RATE, model=model)
    with pytest.raises(InputError, match="reads an image, not a sound"):
        attnviz.explain(audio=tone(), sampling_rate=RATE, model=of_one_tile)
    with pytest.raises(ModelError, match="or compare it with another one"):
        attnviz.explain(image=picture(), model=vit(ViTModel))
    with pytest.raises(InputError, match="In the other picture: There is no image file"):
        attnviz.explain(image=picture(), similar_to="a cat.png", model=vit(ViTModel))


def test_the_command_reads_a_picture(tmp_path, capsys):
    model = vit(ViTModel)
    model.module.save_pretrained(tmp_path / "vit")
    model.checkpoint.processors.image.save_pretrained(tmp_path / "vit")
    files = [str(tmp_path / name) for name in ("one.png", "two.png")]
    for file, tile in zip(files, (TILE, (0, 0)), strict=True):
        picture(tile).save(file)
    options = "--similar-to", files[1], "--model", str(tmp_path / "vit"), "--json"
    run(["explain", "--image", files[0], *options])
    told = json.loads(capsys.readouterr().out)
    assert told["target"] == "two.png"
    assert told["parts"] == "tile"
    assert len(told["edges"]) == 2


def test_windows_end_where_the_model_stops_reading():
    """A processor that cuts a sound in silence, and one that says so."""
    torch.manual_seed(0)
    config = ASTConfig(**_small, num_labels=2, max_length=100, num_mel_bins=32)
    processor = ASTFeatureExtractor(max_length=100, num_mel_bins=32)
    model = attnviz.load(ASTForAudioClassification(config).eval(), processor=processor)
    noise = np.random.default_rng(0).normal(size=27_200).astype(np.float32) / 9  # 1.7 s
    why = attnviz.explain(audio=noise, sampling_rate=RATE, model=model)
    assert 1 <= why.edges[0][-1] <= 1.05
    assert any("the sound is not read after 1" in note for note in why.notes)
    assert why.effect.all()
    whole = attnviz.explain(audio=noise[:14_400], sampling_rate=RATE, model=model)
    assert whole.edges[0][-1] == 0.9
    assert not any("not read" in note for note in whole.notes)


def test_tiles_with_like_effects_are_claimed_together(why):
    effects = torch.zeros(16, dtype=torch.float64)
    effects[[9, 10]] = torch.tensor([0.02, 0.015], dtype=torch.float64)
    two = replace(why, causal={"cover": effects})
    said = "Two neighboring tiles of the picture raise “bright” over “dark” most"
    assert two.headline == said
    assert "Covering each alone lowers it by 0.01 to 0.02 logits." in two.finding
    effects = torch.zeros(16, dtype=torch.float64)
    effects[[0, 15]] = 0.02
    apart = replace(why, causal={"cover": -effects})
    assert apart.headline == "No tile stands out: 2 of 16 lower “bright” over “dark” alike"
    apart.plot()


@pytest.mark.parametrize("frames", [2, 3])
def test_a_video_is_refused_in_one_line(frames):
    video = np.zeros((frames, SIDE, SIDE, 3), np.uint8)
    with pytest.raises(InputError, match="does not read one picture"):
        attnviz.explain(image=video, model=vit(num_labels=2))


def test_outputs_that_are_no_hidden_states_are_refused():
    config = ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, image_size=SIDE)
    processor = ViTImageProcessorPil(size={"height": SIDE, "width": SIDE})
    model = attnviz.load(ConvNextModel(config).eval(), processor=processor)
    with pytest.raises(ModelError, match="has no hidden states"):
        attnviz.explain(image=picture(), similar_to=picture(), model=model)


def test_a_model_whose_logits_are_all_0_is_explained():
    model = vit(num_labels=2)
    torch.nn.init.zeros_(model.module.classifier.weight)
    torch.nn.init.zeros_(model.module.classifier.bias)
    why = attnviz.explain(image=picture(), model=model)
    assert why.headline.startswith("No tile alone changes")
    assert why.checked_agreement.verdict == "not proven"


def test_the_terminal_lists_the_strongest_tiles_and_the_windows_of_words(why):
    console = Console(width=100, file=io.StringIO())
    console.print(why)
    lines = console.file.getvalue().splitlines()
    assert sum(line.startswith("row ") for line in lines) == 8
    answer = replace(
        why, parts="window", edges=((0.0, 1.0, 2.5),), words=("0–1 s", "1–2.5 s"),
        positions=((0,), (1,)), special=(False, False), causal={"silence": torch.ones(2)},
        replacements=torch.empty(0, 2), tokens=("a", "b"), answer=("one", "two"),
        by_answer=torch.tensor([[1.0, 0.0], [0.5, 2.0]]), image=None,
    )  # fmt: skip
    assert "lowers that of “two” by 2.00 nats; any other, by 0.50 or less." in answer.finding
    other = torch.tensor([[1.0, 0.0], [-0.5, 2.0]])
    assert replace(answer, by_answer=other).finding.endswith("by 2.00 nats; no other lowers it.")
    console.print(answer)
    said = console.file.getvalue()
    assert re.search(r"two +1–2.5 s  2.00 +0–1 s  0.50", said)
    assert re.search(r"one +0–1 s  1.00 +–", said)
