"""Both runs of a text as rows of one batch, and its positions in further rows."""

import pytest
import torch
from families import TEXTS, tiny

import attnviz


@pytest.mark.parametrize("texts", [TEXTS[0], [TEXTS[0], "the dog sat on the mat"]])
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "gemma2"])
def test_rows_hold_what_runs_hold(name, texts, tokenizer, monkeypatch):
    model = attnviz.load(tiny(name), tokenizer=tokenizer)
    rows = model.attend(texts)
    monkeypatch.setattr("attnviz.pipeline.rows_of", lambda *_: None)  # runs apart
    apart = model.attend(texts)
    for one, other in zip(
        *([x] if isinstance(texts, str) else x for x in (rows, apart)), strict=True
    ):
        assert one.agreement.verdict == other.agreement.verdict == "verified"
        assert one.agreement.positions == other.agreement.positions
        for record in one.records:
            weights = record.weights(), other.record(record.layer).weights()
            torch.testing.assert_close(*weights, atol=2e-6, rtol=0)


def of_other_rows(embedded):
    return embedded - 0.1 * embedded.mean(0, keepdim=True)


def of_its_number(embedded):
    return embedded + 0.1 * torch.arange(len(embedded))[:, None, None]


@pytest.mark.parametrize("changed", [of_other_rows, of_its_number])
def test_rows_that_depend_on_others_run_apart(changed, tokenizer):
    module = tiny("bert")
    model = attnviz.load(module, tokenizer=tokenizer)
    plain = model.attend(TEXTS[0])
    sizes = []

    def hook(_, __, embedded):
        sizes.append(len(embedded))
        return embedded if len(embedded) == 1 else changed(embedded)

    module.bert.embeddings.register_forward_hook(hook)
    result = model.attend(TEXTS[0])
    assert max(sizes[:3]) > 2  # rows were tried
    assert result.agreement.output.passed
    assert torch.equal(result.weights(layer=2, head=0), plain.weights(layer=2, head=0))


def test_what_attention_moves_is_measured_once_for_some_weights(tokenizer):
    module = tiny("bert")
    model = attnviz.load(module, tokenizer=tokenizer)
    moved = {model.attend(text).agreement.output.moved for text in TEXTS[:3]}
    assert len(moved) == 1
    with torch.no_grad():
        module.bert.encoder.layer[1].attention.output.dense.weight.zero_()
    agreement = model.attend(TEXTS[0]).agreement
    assert [path.split(".")[3] for path in agreement.output.blind] == ["1"]
    assert agreement.verdict == "not proven"


def test_a_model_that_draws_the_same_for_all_rows_is_not_verified(tokenizer):
    module = tiny("bert")
    for layer in module.bert.encoder.layer:
        attention = layer.attention.self
        attention.key.weight.data[0] = attention.key.bias.data[0] = 0  # no output shows this
        attention.query.register_forward_hook(
            lambda _, __, made: made + torch.eye(made.shape[-1])[0] * torch.randn(1)
        )
    model = attnviz.load(module, tokenizer=tokenizer)
    for _ in range(2):
        assert not model.attend(TEXTS[0]).agreement.output.passed


def test_results_hold_no_rows_of_others(tokenizer):
    model = attnviz.load(tiny("llama"), tokenizer=tokenizer)
    model.attend(TEXTS[0])
    for record in model.attend(TEXTS[0]):
        for tensor in (record.query, record.key, record.value, record.input):
            assert tensor.untyped_storage().nbytes() == tensor.nbytes
