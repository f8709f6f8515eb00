"""Do rows name their own patch, frame or token? Axes and models that move them."""

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from faults_in_models import reversed_positions
from media import RATE, chirp, picture, seeing

from attnviz import InputError, pipeline

INPUTS = {
    "vit": {"image": picture()},
    "dinov2": {"image": picture()},
    "registers": {"image": picture()},
    "clip": {"text": "a red circle", "image": picture()},
    "vit-bert": {"image": picture(), "target": "the bank of the river"},
    "whisper": {"audio": chirp(), "sampling_rate": RATE, "target": "the bank of the river"},
    "wav2vec2": {"audio": chirp(), "sampling_rate": RATE},
}
PARTS = {"image": "patches", "audio": "frames", "text": "tokens", "target": "tokens"}
MIXED = "wav2vec2"  # a convolution over all frames comes before its first attention


def attend(family, tokenizer, positions, dtype=torch.float32):
    model = seeing(family, tokenizer)
    model.module.to(dtype)
    return model.attend(**INPUTS[family], positions=positions).agreement


@pytest.mark.pairs(each=1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("positions", ["sample", "all"])
@pytest.mark.parametrize("family", INPUTS)
def test_every_kind_of_position_is_verified(family, positions, dtype, tokenizer):
    report = attend(family, tokenizer, positions, dtype)
    assert report.verdict == "verified", report.summary()
    if (family, positions) == (MIXED, "sample"):
        assert report.positions is None
    else:
        assert report.parts["positions"] == "verified"
        assert {*report.positions.changed} == {PARTS[k] for k in INPUTS[family] if k in PARTS}
        one = positions == "sample" and "audio" in INPUTS[family]  # frames overlap
        assert report.positions.layers == (1 if one else 2)
        assert report.positions.of >= sum(report.positions.changed.values())


def transposed(axis):
    return replace(axis, patches=tuple(p and p[::-1] for p in axis.patches))


def next_patch(axis):
    own = [p for p in axis.patches if p]
    following = dict(zip(own, [*own[1:], own[0]], strict=True))
    return replace(axis, patches=tuple(p and following[p] for p in axis.patches))


def later(axis):
    """Name every frame by the time of the next one."""
    step = axis.seconds[1] - axis.seconds[0]
    return replace(axis, seconds=tuple(second + step for second in axis.seconds))


def earlier(axis):
    step = axis.seconds[1] - axis.seconds[0]
    return replace(axis, seconds=tuple(max(0.0, second - step) for second in axis.seconds))


@pytest.mark.pairs(each=1)
@pytest.mark.parametrize(
    ("family", "kind", "fault"),
    [
        ("vit", "image", transposed),
        ("dinov2", "image", next_patch),
        ("clip", "image", transposed),
        ("whisper", "audio", later),
        ("whisper", "audio", earlier),
    ],
)
@pytest.mark.parametrize("positions", ["sample", "all"])
def test_an_axis_that_names_other_parts_is_caught(family, kind, fault, positions, tokenizer):
    encode = pipeline.encode

    def encode_with_fault(*given, **options):
        batch = encode(*given, **options)
        return replace(batch, axes={**batch.axes, kind: tuple(map(fault, batch.axes[kind]))})

    with patch.object(pipeline, "encode", encode_with_fault):
        report = attend(family, tokenizer, positions)
    assert report.verdict == "failed"
    assert f"the rows are not the {PARTS[kind]}" in report.summary().replace("tokens and ", "")


@pytest.mark.parametrize(
    ("family", "path", "positions"),
    [
        ("vit", "layers.0", "sample"),
        ("vit", "layers.1", "all"),
        ("clip", "vision_model.encoder.layers.1", "all"),
        ("whisper", "model.encoder.layers.0", "sample"),
        ("whisper", "model.encoder.layers.1", "all"),
        ("whisper", "model.decoder.layers.0", "sample"),
        ("whisper", "model.decoder.layers.1", "all"),
        ("vit-bert", "decoder.bert.encoder.layer.0", "sample"),
        (MIXED, "encoder.layers.0", "all"),
        (MIXED, "encoder.layers.1", "all"),
    ],
)
def test_positions_that_a_layer_moves_are_caught(family, path, positions, tokenizer):
    model = seeing(family, tokenizer)
    layer = model.module.get_submodule(path)
    layer.register_forward_pre_hook(reversed_positions, with_kwargs=True)
    report = model.attend(**INPUTS[family], positions=positions).agreement
    assert report.parts["positions"] == "failed"
    assert f"layer {path[-1]}" in report.summary()


@pytest.mark.parametrize("family", ["vit", "whisper"])
def test_an_input_without_contrast_is_verified(family, tokenizer):
    flat = {"image": np.full((60, 80, 3), 128, np.uint8)}
    if family == "whisper":
        flat = {**INPUTS[family], "audio": np.zeros(RATE, np.float32)}
    report = seeing(family, tokenizer).attend(**flat).agreement
    assert report.parts["positions"] == "verified", report.summary()


@pytest.mark.parametrize(
    ("family", "inputs", "reason"),
    [
        ("swin", {"image": picture()}, "no attention has one key for each of its patches"),
        ("llava", {"text": "a ball", "image": picture()}, "an image or a sound fills places"),
        ("whisper", {"audio": chirp(), "sampling_rate": RATE, "generate": 3}, "generates"),
    ],
)
def test_positions_that_cannot_be_checked_say_why(family, inputs, reason, tokenizer):
    model = seeing(family, tokenizer)
    with pytest.raises(InputError, match=reason):
        model.attend(**inputs, positions="all")
    report = model.attend(**inputs).agreement
    assert report.parts["positions"] == "not compared"
    assert report.verdict == "verified"
