"""Streamed summaries equal those of the full maps in every family, and are verified."""

import pytest
import torch
from families import FAMILIES, FURTHER, TEXTS, tiny
from torch.testing import assert_close

import attnviz
from attnviz import InputError, ModelError

NEAR = {"atol": 1e-5, "rtol": 1e-4}
SENTENCE = "the train left the station on time and nobody noticed that it was early. "
TWICE, LONG = 2 * SENTENCE, 12 * SENTENCE


# Families whose values have another width, whose layers have unlike keys, or whose keys end early.
UNLIKE = ["deepseek-v2", "gemma4", "llama4", "modernbert"]
SOME = ["bert", "gpt2", "llama", "mistral", "gemma2", "gpt-oss", "t5-encoder", *UNLIKE]
REST = [
    pytest.param(family, marks=pytest.mark.long)
    for family in (*FAMILIES, *FURTHER)
    if family not in SOME
]


@pytest.mark.parametrize("family", [*SOME, *REST])
def test_every_family(family, tokenizer):
    model = attnviz.load(tiny(family), tokenizer=tokenizer)
    whole = attnviz.attend(TEXTS[0], model=model)
    every = [record.layer for record in whole]
    result = attnviz.attend(TEXTS[0], model=model, mode="streamed", layers=every, top=2)
    assert result.agreement.verdict == "verified", result.agreement.summary()
    assert len(result.streamed) == len(whole.records)
    for attention, record in zip(result.streamed, whole, strict=True):
        assert (attention.path, attention.layer, attention.stack) == (
            record.path,
            record.layer,
            record.stack,
        )
        P = attention.record.weights(dtype=torch.float64)
        # Fused attention has a different rounding order.
        assert_close(P, record.weights(dtype=torch.float64), atol=1e-3, rtol=1e-3)
        assert_close(attention.summary.received.double(), P.sum(1), **NEAR)
        assert_close(attention.summary.mean.double(), P, **NEAR)
        assert_close(attention.summary.top_weights.double(), P.topk(2).values, **NEAR)


@pytest.mark.parametrize("family", ["bloom", "deberta", "longformer"])
def test_invisible_attention_is_refused(family, tokenizer):
    model = attnviz.load(tiny(family), tokenizer=tokenizer)
    with pytest.raises(ModelError, match='mode="full"'):
        attnviz.attend(TEXTS[0], model=model, mode="streamed")


def test_a_long_text_with_the_bundled_model(model):
    whole = attnviz.attend(LONG, model=model)
    result = attnviz.attend(LONG, model=model, mode="streamed", layers=[0, 4], heads=[7, 2], top=3)
    assert result.layers == (0, 4)
    assert result.agreement.rows is not None
    assert result.agreement.rows[0] < result.agreement.rows[1]
    assert "one row of cells" in result.agreement.summary()
    for attention in result.streamed:
        P = attention.record.weights(dtype=torch.float64)[[7, 2]]
        assert_close(P, whole.record(attention.layer).weights(dtype=torch.float64)[[7, 2]], **NEAR)
        assert attention.kept == (7, 2)
        assert_close(attention.summary.entropy.double(), -(P * P.log()).sum(-1), **NEAR)
        assert_close(attention.crop(2, slice(3, 9), slice(0, 5)).double(), P[1, 3:9, :5], **NEAR)


def test_long_texts_are_streamed_automatically_and_short_ones_are_not(model, monkeypatch):
    monkeypatch.setattr("attnviz.pipeline._MOST_WHOLE_WEIGHTS", 10_000)
    short, long = (attnviz.attend(text, model=model) for text in (TEXTS[2], TWICE))
    assert (len(short.streamed), len(short.records)) == (0, 6)
    assert (len(long.streamed), len(long.records)) == (6, 0)
    assert attnviz.attend(TWICE, model=model, mode="full").records


def test_attention_fused_by_torch_is_not_missed(tokenizer):
    module = tiny("bert")
    layer = module.bert.encoder.layer[1].attention.self

    def forward(hidden_states, attention_mask=None, **_):
        Q, K, V = (
            part(hidden_states).unflatten(-1, (4, 12)).transpose(1, 2)
            for part in (layer.query, layer.key, layer.value)
        )
        found = torch.nn.functional.scaled_dot_product_attention(Q, K, V)
        return found.transpose(1, 2).flatten(2), None

    layer.forward = forward
    model = attnviz.load(module, tokenizer=tokenizer)
    with pytest.raises(ModelError, match="computes some attention without transformers"):
        attnviz.attend(TEXTS[0], model=model, mode="streamed")


@pytest.mark.pairs(each=1)
@pytest.mark.parametrize("family", ["bert", "llama", "mistral", "gemma2", "gpt-oss"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_run_is_the_models_own(family, dtype, tokenizer):
    """What the watched run returns is bit by bit what the model returns as the user has it.

    Models without fused attention run their eager function in blocks of rows.
    """
    module = tiny(family).to(getattr(torch, dtype))
    model, outputs = attnviz.load(module, tokenizer=tokenizer), []
    handle = module.base_model.register_forward_hook(lambda *call: outputs.append(call[2][0]))
    try:
        attnviz.attend(TEXTS[0], model=model, mode="streamed", top=2)
        assert len(outputs) == 5  # the first tokens: is there linear attention, as recorded,
        assert torch.equal(outputs[2], outputs[3])  # as loaded, and with other rows attended
        with torch.no_grad():
            module.base_model(**tokenizer(TEXTS[0], return_tensors="pt"), use_cache=False)
    finally:
        handle.remove()
    _, streamed, *_, alone = outputs
    assert_close(streamed, alone, atol=0, rtol=0)


@pytest.mark.parametrize("family", ["bert", "llama", "gemma2", "gpt-oss"])
def test_every_row_is_compared_with_the_output_of_the_model(family, tokenizer):
    model = attnviz.load(tiny(family), tokenizer=tokenizer)
    result = attnviz.attend(TEXTS[0], model=model, mode="streamed", layers=[1], heads=[3, 0])
    (check,) = (check for check in result.agreement.checks if check.stage == "attention vectors")
    assert (check.layer, check.compared) == (1, 2 * len(result.streamed[0].query_axis))


def test_functions_that_need_full_maps_say_so(model):
    result = attnviz.attend(TWICE, model=model, mode="streamed", layers=[2])
    for need in (
        lambda: attnviz.find_heads(result, query="train", key="station"),
        lambda: attnviz.steps(result, layer=2, head=0),
        lambda: result.weights(2, 0),
    ):
        with pytest.raises(InputError, match="Only summaries of the maps were kept"):
            need()
    with pytest.raises(InputError, match="was not kept, only 2"):
        result.layer(1)
    with pytest.raises(InputError, match="Special tokens cannot be left out of the map"):
        attnviz.attention_map(result, layer=2, head=0, special="remove")
    with pytest.raises(InputError, match="Rows 5:2 are not part of the map"):
        attnviz.attention_map(result, layer=2, head=0, rows=slice(5, 2))
