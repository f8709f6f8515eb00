"""The most probable next tokens of a result, against a run of the model by itself."""

from dataclasses import replace

import pytest
import torch
from families import VOCABULARY, _llama, tiny
from transformers import (
    LlamaConfig,
    LlamaForTokenClassification,
    XLNetConfig,
    XLNetLMHeadModel,
)

import attnviz
from attnviz import pipeline
from attnviz.pipeline import most_probable

TEXT = "the train left the station on time"


def expected(model, **inputs):
    """Return the five largest probabilities after each position, and their ids, in float64."""
    with torch.no_grad():
        logits = model(**inputs).logits[0].double()
    exponentials = (logits - logits.amax(-1, keepdim=True)).exp()
    return (exponentials / exponentials.sum(-1, keepdim=True)).sort(descending=True)


def check(next_tokens, model, tokenizer, **inputs):
    probabilities, ids = expected(model, **inputs)
    assert next_tokens.ids.tolist() == ids[:, :5].tolist()
    torch.testing.assert_close(
        next_tokens.probabilities, probabilities[:, :5].float(), atol=1e-6, rtol=1e-3
    )
    for row, labels in zip(next_tokens.ids.tolist(), next_tokens.labels, strict=True):
        decoded = [tokenizer.decode([token]).strip() for token in row]
        assert list(labels) == [word or labels[n] for n, word in enumerate(decoded)]


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_they_are_those_of_the_models_own_run(family, tokenizer):
    model = tiny(family)
    result = attnviz.attend(TEXT, model=attnviz.load(model, tokenizer=tokenizer))
    known = result.next_tokens
    assert known.axis == result.record(0).query_axis
    check(known, model, tokenizer, input_ids=tokenizer(TEXT, return_tensors="pt")["input_ids"])
    assert known.probabilities.device.type == "cpu"


def test_each_text_of_a_batch_has_its_own(tokenizer):
    model = tiny("llama")
    texts = [TEXT, "a much shorter text"]
    results = attnviz.attend(texts, model=attnviz.load(model, tokenizer=tokenizer))
    for text, result in zip(texts, results, strict=True):
        known = result.next_tokens
        real = [n for n, padding in enumerate(known.axis.padding) if not padding]
        ids = tokenizer(text, return_tensors="pt")
        assert len(real) == ids["input_ids"].shape[1]
        part = replace(
            known,
            axis=known.axis.at(real),
            ids=known.ids[real],
            labels=tuple(known.labels[n] for n in real),
            probabilities=known.probabilities[real],
        )
        check(part, model, tokenizer, **ids)


def test_they_follow_a_generated_text(tokenizer):
    model = tiny("llama")
    result = attnviz.attend(TEXT, model=attnviz.load(model, tokenizer=tokenizer), generate=4)
    known = result.next_tokens
    prompt = tokenizer(TEXT, return_tensors="pt")["input_ids"]
    ids = torch.cat([prompt, known.ids[prompt.shape[1] - 1 : -1, :1].T], dim=1)
    check(known, model, tokenizer, input_ids=ids)  # greedily: the first is what came next


def test_of_an_encoder_decoder_they_are_those_of_the_decoder(tokenizer):
    model = tiny("t5")
    loaded = attnviz.load(model, tokenizer=tokenizer)
    result = attnviz.attend(TEXT, target="le train est parti", model=loaded)
    decoder = result.stack("decoder")
    assert result.next_tokens.axis == decoder.record(0).query_axis
    labels = tokenizer("le train est parti", return_tensors="pt")["input_ids"]
    inputs = tokenizer(TEXT, return_tensors="pt")
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    check(result.next_tokens, model, tokenizer, input_ids=ids, attention_mask=mask, labels=labels)


WITHOUT = {
    "no head": lambda: tiny("mistral"),
    "masked tokens": lambda: tiny("bert"),
    "classes of tokens": lambda: LlamaForTokenClassification(LlamaConfig(**_llama)).eval(),
    "both sides": lambda: XLNetLMHeadModel(
        XLNetConfig(vocab_size=VOCABULARY, d_model=48, n_layer=2, n_head=4, d_inner=64)
    ).eval(),
}


@pytest.mark.parametrize("name", WITHOUT)
def test_a_model_that_predicts_no_next_token_has_none(name, tokenizer):
    model = attnviz.load(WITHOUT[name](), tokenizer=tokenizer)
    assert model.attend(TEXT).next_tokens is None


def test_a_streamed_text_has_none(tokenizer):
    model = attnviz.load(tiny("llama"), tokenizer=tokenizer)
    assert attnviz.attend(TEXT, model=model, mode="streamed").next_tokens is None


def test_blocks_of_rows_give_the_same(monkeypatch):
    logits = torch.randn(7, 50, generator=torch.Generator().manual_seed(0))
    whole = most_probable(logits, 5)
    monkeypatch.setattr(pipeline, "_PROBABILITIES", 100)
    for one, other in zip(most_probable(logits, 5), whole, strict=True):
        assert torch.equal(one, other)


def test_they_are_saved_and_a_change_is_noticed(tokenizer, tmp_path):
    model = attnviz.load(tiny("llama"), tokenizer=tokenizer)
    result = attnviz.attend(TEXT, model=model)
    attnviz.save_result(result, tmp_path / "run.safetensors")
    loaded = attnviz.load_result(tmp_path / "run.safetensors")
    assert loaded.next_tokens.labels == result.next_tokens.labels
    assert torch.equal(loaded.next_tokens.probabilities, result.next_tokens.probabilities)
    assert loaded.checked_agreement.verdict == "verified"
    changed = replace(loaded.next_tokens, probabilities=1 - loaded.next_tokens.probabilities)
    assert replace(loaded, next_tokens=changed).checked_agreement.verdict == "failed"
