"""Arguments of the model's forward, given by name: what is given is what the model reads."""

import json

import numpy as np
import pytest
import torch
import transformers
from media import seeing
from own_attentions import own_attentions
from safetensors.torch import save_file

import attnviz
from attnviz import InputError

SIZE = {
    "vocab_size": 30522, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 64,
}  # fmt: skip
TEXT = "the train left the old station"


def own_weights(module, arguments, row=0):
    """Return the weights (layers, heads, m, n) of the model's own run."""
    mask = arguments.get("attention_mask")
    if mask is not None and mask.dtype == torch.bool:  # which eager attention adds
        arguments = {**arguments, "attention_mask": (mask.float() - 1) * 1e9}
    return torch.stack(own_attentions(module, **arguments))[:, row]


def changed(encoding, name):
    """Return an encoding with another value of one argument than the tokenizer gives."""
    T = encoding["input_ids"].shape[1]
    values = {
        "position_ids": torch.arange(T)[None] + 100,
        "attention_mask": (torch.arange(T) != 3).long()[None],  # a hole
        "a mask of pairs": torch.ones(T, T).tril().bool()[None, None],
        "token_type_ids": (torch.arange(T) > 3).long()[None],
    }
    return {**encoding, "attention_mask" if " " in name else name: values[name]}


@pytest.fixture(scope="module")
def plain(model):
    return model.attend(TEXT)


@pytest.mark.pairs(each=1)
@pytest.mark.parametrize(
    "name", ["position_ids", "attention_mask", "a mask of pairs", "token_type_ids"]
)
@pytest.mark.parametrize("door", [{}, {"inputs": True}], ids=["as a text", "inputs="])
def test_every_entry_of_an_encoding_reaches_the_model(name, door, model, plain):
    arguments = changed(dict(model.tokenizer(TEXT, return_tensors="pt")), name)
    result = model.attend(inputs=arguments) if door else model.attend(arguments)
    assert result.agreement.verdict == "verified"
    torch.testing.assert_close(
        result.weights(), own_weights(model.module, arguments), atol=1e-5, rtol=0
    )
    assert (result.weights() - plain.weights()).abs().max() > 0.01


def test_several_inputs_with_padding(model, tokenizer):
    arguments = dict(tokenizer(["the train", TEXT], padding=True, return_tensors="pt"))
    arguments["position_ids"] = torch.arange(8).expand(2, -1) + 3
    short, long = attnviz.attend(inputs=arguments, model=model)
    assert (short.tokens, len(long.tokens)) == (("[CLS]", "the", "train", "[SEP]"), 8)
    assert "position_ids (2 × 8)" in long.provenance.inputs


@pytest.mark.parametrize("labels", [{}, {"queries": list("abcde"), "keys": list("abcde")}])
def test_the_main_input_says_how_many_there_are(model, labels):
    """Not what stands first, and not what is shared by all."""
    torch.manual_seed(0)
    arguments = {"position_ids": torch.arange(5)[None] + 3, "inputs_embeds": torch.randn(2, 5, 384)}
    results = model.attend(inputs=arguments, **labels)
    assert len(results) == 2
    for row, result in enumerate(results):
        assert result.agreement.verdict == "verified"
        assert result.tokens == (tuple(labels.get("queries", "01234")))
        torch.testing.assert_close(
            result.weights(), own_weights(model.module, arguments, row), atol=1e-5, rtol=0
        )


def test_one_image_stands_beside_several_texts(tokenizer):
    model = seeing("clip", tokenizer)
    pixels = torch.rand(1, 3, 32, 32)
    texts = tokenizer(["a cat", "a dog"], return_tensors="pt")["input_ids"] % 1000
    both = model.attend(inputs={"input_ids": texts, "pixel_values": pixels})
    assert len(both) == 2
    (alone,) = [model.attend(inputs={"input_ids": texts[:1], "pixel_values": pixels})]
    vision = [one.stack("vision") if "vision" in one.stacks else one for one in (*both, alone)]
    assert torch.equal(vision[0].weights(), vision[1].weights())
    with pytest.raises(InputError, match=r"2 texts among 3 inputs"):
        model.attend(inputs={"input_ids": texts, "pixel_values": torch.rand(3, 3, 32, 32)})


def test_patches_of_several_images_may_lie_in_one_row(tokenizer):
    torch.manual_seed(0)
    text = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
            "intermediate_size": 32, "num_key_value_heads": 2, "vocab_size": 30522,
            "rope_parameters": {"rope_type": "default", "mrope_section": [4, 2, 2]}}  # fmt: skip
    vision = {"embed_dim": 32, "hidden_size": 32, "depth": 1, "num_heads": 2, "patch_size": 4}
    config = transformers.Qwen2VLConfig(text_config=text, vision_config=vision, image_token_id=9)
    module = transformers.Qwen2VLModel(config).eval()
    model = attnviz.load(module, tokenizer=tokenizer, processor=transformers.CLIPImageProcessor())
    texts = torch.randint(10, 30522, (2, 12))
    texts[0, 2:4], texts[1, 2:8] = 9, 9
    arguments = {
        "input_ids": texts,
        "mm_token_type_ids": (texts == 9).long(),
        "image_grid_thw": torch.tensor([[1, 2, 4], [1, 4, 6]]),
        "pixel_values": torch.randn(8 + 24, 3 * 2 * 4 * 4),
    }
    results = model.attend(inputs=arguments)
    assert [one.agreement.verdict for one in results] == ["verified"] * 2


def test_an_argument_that_the_model_does_not_take_is_named(tokenizer):
    config = transformers.DistilBertConfig(vocab_size=30522, dim=32, n_heads=2, n_layers=1)
    model = attnviz.load(transformers.DistilBertModel(config).eval(), tokenizer=tokenizer)
    arguments = dict(tokenizer(TEXT, "it was late", return_tensors="pt"))
    hole = changed(arguments, "attention_mask")
    for result in (model.attend(arguments), model.attend(inputs=hole)):
        assert any(note.startswith("token_type_ids left out") for note in result.notes)


def test_boxes_are_read_and_missed(tokenizer):
    torch.manual_seed(0)
    module = transformers.LayoutLMModel(transformers.LayoutLMConfig(**SIZE)).eval()
    model = attnviz.load(module, tokenizer=tokenizer)
    assert any("bbox, which was not given" in note for note in model.attend(TEXT).notes)
    arguments = dict(tokenizer(TEXT, return_tensors="pt"))
    arguments["bbox"] = torch.arange(32).reshape(1, 8, 4) * 9
    result = model.attend(inputs=arguments)
    assert not any("not given" in note for note in result.notes)
    torch.testing.assert_close(result.weights(), own_weights(module, arguments), atol=1e-5, rtol=0)


@pytest.fixture(scope="module")
def series():
    torch.manual_seed(0)
    config = transformers.PatchTSTConfig(
        context_length=32, patch_length=8, patch_stride=8, d_model=32, num_attention_heads=4,
        num_hidden_layers=2, num_input_channels=1,
    )  # fmt: skip
    return attnviz.load(transformers.PatchTSTModel(config).eval())


def test_numbers_with_labels(series):
    values = torch.randn(1, 32, 1)
    quarters = ["spring", "summer", "fall", "winter"]
    result = series.attend(inputs={"past_values": values}, queries=quarters)
    assert (result.agreement.verdict, result.words) == ("verified", tuple(quarters))
    assert attnviz.find_heads(result, query="spring", key="winter").scores
    assert torch.equal(series.attend(values).weights(), result.weights())
    with pytest.raises(InputError, match="There are 3 queries, but the maps have 4"):
        series.attend(values, queries=quarters[:3])


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".json"])
def test_inputs_of_a_file(series, tmp_path, suffix):
    values, path = torch.linspace(0, 1, 32).reshape(1, 32, 1), tmp_path / f"inputs{suffix}"
    if suffix == ".json":
        path.write_text(json.dumps({"past_values": values.tolist()}))
    elif suffix == ".npz":
        np.savez(path, past_values=values.numpy())
    else:
        save_file({"past_values": values}, path)
    result = series.attend(inputs=path)
    torch.testing.assert_close(result.weights(), series.attend(values).weights())


def test_frames_of_a_video():
    torch.manual_seed(0)
    config = transformers.VideoMAEConfig(
        hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        image_size=32, patch_size=16, num_frames=4,
    )  # fmt: skip
    processor = transformers.VideoMAEImageProcessorPil(
        size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
    )
    module = transformers.VideoMAEModel(config).eval()
    model = attnviz.load(module, processor=processor)
    frames = np.random.default_rng(0).integers(0, 255, (4, 32, 32, 3), dtype=np.uint8)
    result = model.attend(image=frames)
    arguments = processor([list(frames)], return_tensors="pt")
    assert result.provenance.image == "video (4 frames, 32×32)"
    torch.testing.assert_close(result.weights(), own_weights(module, arguments), atol=1e-5, rtol=0)


def test_choices_of_a_question(tokenizer):
    torch.manual_seed(0)
    module = transformers.BertForMultipleChoice(transformers.BertConfig(**SIZE)).eval()
    model = attnviz.load(module, tokenizer=tokenizer)
    choices = tokenizer(["where"] * 2, ["at home", "in town"], padding=True, return_tensors="pt")
    arguments = {name: tensor[None] for name, tensor in choices.items()}
    results = model.attend(inputs=arguments)
    assert [result.provenance.pair for result in results] == ["at home", "in town"]
    for n, result in enumerate(results):
        own = own_weights(module, arguments, n)
        torch.testing.assert_close(result.weights(), own, atol=1e-5, rtol=0)
    assert model.attend("where").agreement.verdict == "verified"


class Passing(transformers.BertModel):
    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)


class Naming(transformers.BartForConditionalGeneration):
    def forward(self, input_ids, attention_mask=None, **kwargs):
        return super().forward(input_ids, attention_mask=attention_mask, **kwargs)


_BART = {
    "vocab_size": 30522, "d_model": 48, "encoder_layers": 1, "decoder_layers": 1,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32, "pad_token_id": 0, "bos_token_id": 101, "eos_token_id": 102,
    "decoder_start_token_id": 102,
}  # fmt: skip


def test_a_class_of_the_user_reads_what_the_class_that_it_extends_reads(tokenizer):
    torch.manual_seed(0)
    model = attnviz.load(Passing(transformers.BertConfig(**SIZE)).eval(), tokenizer=tokenizer)
    assert model.attend(TEXT, pair="late").agreement.verdict == "verified"
    model = attnviz.load(Naming(transformers.BartConfig(**_BART)).eval(), tokenizer=tokenizer)
    assert model.attend(TEXT, target="le train").stack("decoder").tokens[-2:] == ("le", "train")


@pytest.mark.parametrize("name", ["SequenceClassification", "QuestionAnswering"])
def test_a_classifier_makes_the_text_of_its_decoder(name, tokenizer):
    torch.manual_seed(0)
    module = getattr(transformers, f"BartFor{name}")(transformers.BartConfig(**_BART)).eval()
    result = attnviz.load(module, tokenizer=tokenizer).attend("the train", pair="it left")
    shifted = ("[SEP]", *result.stack("encoder").tokens[:-1])
    assert result.stack("decoder").tokens == shifted
    assert "the model makes the text of its decoder itself" in result.notes


def test_a_question_about_an_image_has_an_answer(tokenizer):
    torch.manual_seed(0)
    config = transformers.BlipConfig(
        text_config={**SIZE, "encoder_hidden_size": 48, "bos_token_id": 101},
        vision_config={"hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4,
                       "intermediate_size": 32, "image_size": 32, "patch_size": 16},
        projection_dim=16,
    )  # fmt: skip
    picture = transformers.BlipImageProcessorPil(size={"height": 32, "width": 32})
    model = attnviz.load(
        transformers.BlipForQuestionAnswering(config).eval(),
        tokenizer=tokenizer,
        processor=transformers.BlipProcessor(picture, tokenizer),
    )
    image = np.zeros((32, 32, 3), np.uint8)
    assert "cross" in model.attend("what is it", image=image, target="a cat").stacks
    with pytest.raises(InputError, match="a target is missing"):
        model.attend("what is it", image=image)


WRONG = {
    "no such argument": ({"input_id": [[101, 102]]}, "Did you mean input_ids"),
    "a cache": ({"input_ids": [[101]], "past_key_values": 0}, "past_key_values is not read"),
    "no ids": ({"input_ids": [[1.5]]}, "whole numbers"),
    "nothing": ({}, "mapping from the names"),
    "one axis": ({"input_ids": [101], "position_ids": [0]}, "Give input_ids[None]"),
    "words": ({"input_ids": [["a"]]}, "not an array of numbers"),
    "no file": ("nowhere.npz", "There is no file of inputs"),
    "another file": (__file__, "Give a .safetensors, .npz or .json file"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments_are_refused_in_one_line(name, model):
    inputs, message = WRONG[name]
    with pytest.raises(InputError) as caught:
        model.attend(inputs=inputs)
    assert message in str(caught.value)


def test_inputs_stand_alone(model):
    with pytest.raises(InputError, match="input_ids go from 40000 to 40000"):
        model.attend(inputs={"input_ids": [[40000]], "position_ids": [[0]]})
    with pytest.raises(InputError, match="text cannot be used: inputs holds all"):
        model.attend("a", inputs={"input_ids": [[101, 102]]})
    with pytest.raises(InputError, match="queries and keys are labels of inputs="):
        model.attend("a", keys=["a"])
