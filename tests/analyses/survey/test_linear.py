"""A survey measures softmax attention, and says which layers have another kind."""

import pytest
from linear_models import build, hybrid

import attnviz
from attnviz import InputError

TEXTS = ["the train left the station on time, and nobody noticed.", "my sister saw the cat"]


def test_layers_of_linear_attention_are_named_and_not_measured(tokenizer):
    layers = ["linear_attention", "linear_attention", "full_attention"]
    result = attnviz.survey(TEXTS, model=attnviz.load(hybrid(layers), tokenizer=tokenizer))
    assert {(head.stack, head.layer) for head in result.heads} == {("decoder", 0)}
    assert any("not measured: 2 layers of linear attention" in note for note in result.notes)


def test_a_model_of_linear_attention_alone_is_refused(bare_tokenizer):
    model = attnviz.load(build("mamba2"), tokenizer=bare_tokenizer)
    with pytest.raises(InputError, match="Statistics of heads need attention with a softmax"):
        attnviz.survey(TEXTS, model=model)
