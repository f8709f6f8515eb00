"""Which input the positions of an attention are, where several have the same length."""

import pytest

from attnviz.capture.positions import StackCounter
from attnviz.results import Axis

TEXT = Axis.plain(["the", "train", "left", "[PAD]"], special=[False, False, False, True])
IMAGE = Axis.plain(["r0 c0", "r0 c1", "r1 c0", "r1 c1"], special=[False] * 4)
TARGET = Axis.plain(["der", "Zug", "fuhr", "ab"], special=[False] * 4)
NUMBERS = Axis.numbered(4)


def place(axes, path, queries=4, keys=4, *, kinds=(), cross=False):
    placed = StackCounter(axes, kinds).place(path, queries, keys, cross=cross, causal=False)
    return placed["query_axis"], placed["key_axis"]


@pytest.mark.parametrize(
    ("path", "queries", "expected"),
    [
        ("vision_model.layers.0.attention", 4, (IMAGE, IMAGE)),
        ("vision_model.head.attention", 1, (Axis.numbered(1), IMAGE)),
        ("text_model.layers.0.attention", 4, (TEXT, TEXT)),
        ("qformer.layer.0.crossattention", 6, (Axis.numbered(6), IMAGE)),
        ("text_layers.0.crossattention", 4, (TEXT, IMAGE)),
    ],
)
def test_a_text_and_an_image_of_one_length(path, queries, expected):
    assert place({"text": TEXT, "image": IMAGE}, path, queries) == expected


def test_keys_of_a_decoder_are_the_text_of_its_encoder():
    axes = {"image": IMAGE, "text": TEXT, "target": TARGET}
    assert place(axes, "decoder.layers.0.encoder_attn", cross=True) == (TARGET, TEXT)
    assert place({"audio": IMAGE, "target": TARGET}, "decoder.layers.0.encoder_attn") == (
        TARGET,
        IMAGE,
    )


def test_a_tower_of_sounds_without_labels_takes_none_of_the_text():
    path = "audio_model.audio_encoder.layers.3.attention"
    assert place({"text": TEXT}, path, kinds=("text", "audio")) == (NUMBERS, NUMBERS)
    given = {"text": TEXT, "keys": IMAGE}  # but all that the user gives
    assert place(given, path, kinds=("text", "audio")) == (IMAGE, IMAGE)


def test_a_query_of_an_image_without_labels_reads_no_text():
    path = "qformer.encoder.layer.0.crossattention.attention"
    placed = place({"text": TEXT}, path, 6, 4, kinds=("text", "image"), cross=True)
    assert placed == (Axis.numbered(6), NUMBERS)
    assert place({"text": TEXT}, path, 6, 4, kinds=("text",), cross=True)[1] == TEXT


def test_a_name_that_does_not_tell_a_text_from_an_image_of_its_length():
    path = "detr_encoder.layers.0.self_attn"
    assert place({"text": TEXT, "image": IMAGE}, path) == (NUMBERS, NUMBERS)
    longer = Axis.plain(["a", "b", "c"], special=[False] * 3)
    assert place({"text": longer, "image": IMAGE}, path) == (IMAGE, IMAGE)
    assert place({"text": TEXT, "target": TARGET}, path) == (TEXT, TEXT)


def test_a_model_of_texts_named_after_images_has_the_labels_of_its_text():
    assert place({"text": TEXT}, "visual_bert.encoder.layer.0.attention.self") == (TEXT, TEXT)
