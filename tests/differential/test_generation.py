"""A generation, assembled from its steps, gives the same maps as a single pass."""

from dataclasses import replace

import pytest
import torch
from families import TEXTS, TWO_SIDED, tiny
from torch.testing import assert_close

import attnviz
from attnviz import agreement
from attnviz.capture import capture, capture_generation
from attnviz.errors import InputError, ModelError
from attnviz.inputs import encode
from attnviz.results import Axis

FAMILIES = ["gpt2", "llama", "t5", "bart"]
TOKENS = 7


def sharp(family, dtype=torch.float32):
    module = tiny(family, dtype)
    if family == "llama":  # sharpened less: rounding grows with the scores from layer to layer
        for name, parameter in module.named_parameters():
            if "q_proj" in name:
                parameter.data /= 4
    return module


@pytest.mark.parametrize("family", FAMILIES)
def test_steps_and_one_pass_give_the_same_weights(family, tokenizer):
    result = attnviz.load(sharp(family), tokenizer=tokenizer).attend(TEXTS[0], generate=TOKENS)
    assert result.agreement.verdict == "verified", result.agreement.summary()
    whole = [check for check in result.agreement.checks if check.stage == "one pass"]
    assert len(whole) == len(result)
    assert all(check.largest_difference <= 1e-5 for check in whole)


@pytest.mark.parametrize("family", FAMILIES)
def test_in_bfloat16_too(family, tokenizer):
    model = attnviz.load(sharp(family, torch.bfloat16), tokenizer=tokenizer)
    agreement = model.attend(TEXTS[2], generate=TOKENS).agreement
    assert agreement.verdict == "verified", agreement.summary()


def test_the_map_is_that_of_the_generated_text(tokenizer):
    """The oracle is independent of the assembly: a single pass over the complete text."""
    module = tiny("gpt2")
    model = attnviz.load(module, tokenizer=tokenizer)
    result = model.attend(TEXTS[2], generate=TOKENS)
    inputs = encode(model.checkpoint, [TEXTS[2]]).inputs
    with torch.no_grad():
        ids = module.generate(**inputs, max_new_tokens=TOKENS, do_sample=False)
    read = ids[:, :-1]
    (alone,) = capture(module, {"input_ids": read})
    for stitched, whole in zip(result, alone.records, strict=True):
        assert_close(stitched.weights(), whole.weights(), rtol=0, atol=1e-5)
        assert_close(stitched.query, whole.query, rtol=0, atol=1e-4)
    assert result.provenance.generated == tokenizer.decode(ids[0, len(inputs["input_ids"][0]) :])


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_both_sides_have_the_right_tokens(family, tokenizer):
    result = attnviz.load(tiny(family), tokenizer=tokenizer).attend("a train", generate=4)
    cross = result.stack().record(0)
    assert result.stacks == ("encoder", "decoder", "cross")
    assert cross.key_axis.labels == ("[CLS]", "a", "train", "[SEP]")
    assert cross.query_axis.special[0]  # the start token of the decoder
    read = "".join(cross.query_axis.labels[1:]).replace("##", "")
    assert result.provenance.generated.replace(" ", "").startswith(read)


def test_several_texts_are_continued_one_by_one(tokenizer):
    model = attnviz.load(tiny("gpt2"), tokenizer=tokenizer)
    texts = TEXTS[1:]
    for text, result in zip(texts, model.attend(texts, generate=3), strict=True):
        alone = model.attend(text, generate=3)
        assert result.provenance == alone.provenance
        assert_close(result.weights(1), alone.weights(1))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_wrong_step_is_caught(family, tokenizer):
    module = sharp(family)
    inputs = encode(attnviz.load(module, tokenizer=tokenizer).checkpoint, [TEXTS[2]],
                    generating=True).inputs  # fmt: skip
    kind = "target" if family in TWO_SIDED else "text"
    captured, _ = capture_generation(
        module, inputs, TOKENS, lambda read: {kind: [Axis.numbered(len(read))]}
    )
    last = captured.records[-1]
    query = last.query.clone()
    query[:, -2:] = query[:, [-1, -2]]  # swap two steps
    records = [*captured.records[:-1], replace(last, query=query)]
    no_provenance = {"versions": {}, "weights_sha256": ""}
    report = agreement.verify(
        records, captured.references, in_one_pass=captured.in_one_pass, **no_provenance
    )
    stages = {check.stage for check in report.checks if not check.passed}
    assert "one pass" in stages
    assert report.verdict == "failed"


def test_a_model_that_cannot_generate_says_so():
    with pytest.raises(ModelError, match="BertModel cannot generate text"):
        attnviz.attend("a train", generate=3)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_single_token_is_enough(family, tokenizer):
    result = attnviz.load(sharp(family), tokenizer=tokenizer).attend(TEXTS[2], generate=1)
    assert result.agreement.verdict == "verified", result.agreement.summary()


def test_the_checkpoints_generation_settings_are_ignored(tokenizer):
    module = tiny("gpt2")
    model = attnviz.load(module, tokenizer=tokenizer)
    expected = model.attend(TEXTS[0], generate=TOKENS).provenance.generated
    settings = module.generation_config
    settings.repetition_penalty, settings.num_return_sequences, settings.use_cache = 5.0, 2, False
    assert model.attend(TEXTS[0], generate=TOKENS).provenance.generated == expected
    assert module.generation_config is settings
    assert settings.repetition_penalty == 5.0


def test_more_tokens_than_the_model_can_read_are_refused(tokenizer):
    model = attnviz.load(tiny("gpt2"), tokenizer=tokenizer)
    with pytest.raises(InputError, match=r"after these 6 it can generate at most 59, not"):
        model.attend(TEXTS[2], generate=70)


@pytest.mark.parametrize(("wrong", "message"), [
    ({"generate": 0}, "must be 1 token or more, not 0"),
    ({"generate": "many"}, "must be 1 token or more, not 'many'"),
    ({"generate": 3, "target": "un train"}, "exclude each other"),
])  # fmt: skip
def test_wrong_numbers_are_refused(wrong, message, tokenizer):
    with pytest.raises(InputError, match=message):
        attnviz.load(tiny("bart"), tokenizer=tokenizer).attend("a train", **wrong)
