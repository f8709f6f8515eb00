"""Capture leaves the model unchanged, misses nothing silently, and records the model's values."""

import copy

import pytest
import torch
from families import TEXTS, tiny
from transformers.models.bert import modeling_bert

import attnviz
from attnviz import ModelError


def trace(module):
    """Return everything about a model that a run could change."""
    hooks = {
        (path, name): dict(value)
        for path, child in module.named_modules()
        for name, value in vars(child).items()
        if "_hooks" in name and isinstance(value, dict)
    }
    attributes = {path: set(vars(child)) for path, child in module.named_modules()}
    training = [child.training for child in module.modules()]
    implementations = [
        child.config._attn_implementation for child in module.modules() if hasattr(child, "config")
    ]
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    return hooks, attributes, training, implementations, state


def assert_same_trace(before, after):
    assert before[:-1] == after[:-1]
    assert before[-1].keys() == after[-1].keys()
    assert all(torch.equal(before[-1][name], after[-1][name]) for name in before[-1])


@pytest.mark.parametrize("raised", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("run", [1, 2])
def test_a_run_that_raises_leaves_the_model_unchanged(run, raised, tokenizer, monkeypatch):
    module = tiny("bert").train()
    before = trace(module)
    last = type(module.bert.encoder.layer[2].output)
    forward, calls = last.forward, []

    def fail_in_the_last_layer(self, *args):
        calls.append(self)
        if len(calls) >= 3 * run:
            raise raised("in the middle of a run")
        return forward(self, *args)

    monkeypatch.setattr(last, "forward", fail_in_the_last_layer)
    said = ModelError if raised is RuntimeError else raised
    with pytest.raises(said, match="in the middle of a run"):
        attnviz.load(module, tokenizer=tokenizer).attend(TEXTS[0])
    monkeypatch.undo()
    assert_same_trace(before, trace(module))
    assert module.training


def test_hooks_of_the_user_stay_and_run(tokenizer):
    module = tiny("bert")
    seen = []
    module.bert.encoder.layer[0].register_forward_hook(lambda *_: seen.append(1))
    attnviz.load(module, tokenizer=tokenizer).attend(TEXTS[0])
    # The search, both runs as rows of one batch, the model as it was loaded, and with heads of the
    # other sign.
    assert len(seen) == 4
    module(**tokenizer(TEXTS[0], return_tensors="pt"))
    assert len(seen) == 5


def test_shared_layers_are_recorded_once_per_call(tokenizer):
    result = attnviz.load(tiny("albert"), tokenizer=tokenizer).attend(TEXTS[0])
    assert len({record.path for record in result}) == 1
    assert [record.call for record in result] == [0, 1, 2]
    assert [record.layer for record in result] == [0, 1, 2]


def test_records_know_their_module_and_kind(tokenizer):
    module = tiny("llama")
    for record in attnviz.load(module, tokenizer=tokenizer).attend(TEXTS[0]):
        assert type(module.get_submodule(record.path)).__name__ == "LlamaAttention"
        assert record.stack == "decoder"


def test_unreadable_attention_is_refused_not_skipped(tokenizer, monkeypatch):
    module = tiny("bert")
    attention = module.bert.encoder.layer[1].attention.self

    def squared_scores(hidden_states, *_, **__):
        scores = (hidden_states @ hidden_states.mT) ** 2
        return scores.softmax(-1) @ hidden_states, None

    monkeypatch.setattr(attention, "forward", squared_scores)
    message = (
        r"1 of the 3 attentions of .* cannot be read: in bert\.encoder\.layer\.1\.attention\.self, "
        "a row sees scores that are no product of a query and a key"
    )
    with pytest.raises(ModelError, match=message):
        attnviz.load(module, tokenizer=tokenizer).attend(TEXTS[0])


def test_an_attention_function_without_a_softmax_is_named(tokenizer, monkeypatch):
    def uniform(module, query, key, value, mask, **_):
        return value.mean(2, keepdim=True).expand_as(query).transpose(1, 2), None

    monkeypatch.setattr(modeling_bert, "eager_attention_forward", uniform)
    with pytest.raises(ModelError, match=r"layer\.0\.attention\.self, its attention function"):
        attnviz.load(tiny("bert"), tokenizer=tokenizer).attend(TEXTS[0])


def test_the_recorded_run_is_the_model_s_own_bit_for_bit(tokenizer):
    module = tiny("qwen3")
    twin = copy.deepcopy(module)
    twin.set_attn_implementation("eager")
    kept = []
    module.register_forward_hook(lambda *run: kept.append(run[2:]), with_kwargs=True)
    attnviz.load(module, tokenizer=tokenizer).attend(TEXTS[0])
    for (inputs, output), rows in zip(kept, (1, 2), strict=False):  # the search, and both runs
        with torch.no_grad():
            expected = twin(**inputs).last_hidden_state[:rows]
        assert torch.equal(output.last_hidden_state[:rows], expected)
