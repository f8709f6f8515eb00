"""The tiny models of the architecture check have the documented properties."""

import pytest
import torch
from architectures.count import count_softmaxes
from architectures.placeholders import place
from architectures.sharpen import sharpness
from architectures.shrink import tiny_config
from architectures.tiny_models import build


def test_uniform_rows_have_sharpness_one_and_single_key_rows_do_not_count():
    assert sharpness(torch.full((1, 2, 4), 0.25)) == 1
    causal = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    assert sharpness(causal) == 1
    assert sharpness(torch.tensor([[0.9, 0.1]])) == pytest.approx(1.8)


def test_windows_are_shorter_than_the_text_and_every_kind_of_layer_stays():
    config = tiny_config("gemma3").text_config
    assert config.sliding_window == 4
    assert set(config.layer_types) == {"sliding_attention", "full_attention"}
    assert config.num_key_value_heads < config.num_attention_heads


@pytest.mark.parametrize("architecture", ["llama", "t5", "vit", "gemma3", "whisper"])
def test_a_model_is_sharp_finite_and_reproducible(architecture):
    model, inputs = build(architecture)
    again, _ = build(architecture)
    counts = count_softmaxes(model, inputs)
    assert counts["softmaxes"] >= 2
    assert counts["sharpness"] > 1.5
    assert counts["finite"]
    for parameter, repeated in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(parameter, repeated)


def test_the_second_text_is_padded_and_each_has_an_image():
    model, inputs = build("gemma3")
    assert inputs["attention_mask"].sum(-1).unique().numel() == 2
    images = (inputs["input_ids"] == model.config.image_token_id).sum(-1)
    assert images.tolist() == [model.config.mm_tokens_per_image] * 2
    assert len(inputs["pixel_values"]) == 2


def test_inputs_without_a_text_take_no_placeholders():
    model, inputs = build("vit")
    before = dict(inputs)
    place(model, inputs)
    assert inputs.keys() == before.keys()


def test_an_encoder_that_writes_on_is_built_as_a_decoder():
    assert build("roberta", class_name="RobertaForCausalLM")[0].config.is_decoder
    assert not build("roberta", class_name="RobertaForMaskedLM")[0].config.is_decoder
