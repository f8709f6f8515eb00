"""Tests share the runs of a model only as long as nothing in it changes."""

import torch
from families import tiny

import attnviz

TEXT = "the train left"


def test_a_model_that_changes_runs_again(tokenizer):
    model = attnviz.load(tiny("llama"), tokenizer=tokenizer)
    attention = model.module.model.layers[0].self_attn
    assert model.attend(TEXT).records[0] is model.attend(TEXT).records[0]

    def scale():
        attention.scaling *= 2

    def write():
        with torch.no_grad():
            attention.q_proj.weight.mul_(2)

    def hook():
        attention.q_proj.register_forward_hook(lambda *given: 2 * given[-1])

    for change in (scale, write, hook):
        before = model.attend(TEXT).weights(0)
        change()
        assert (model.attend(TEXT).weights(0) - before).abs().max() > 1e-3, change


def test_a_test_may_run_models_anew(tokenizer, anew):
    model = attnviz.load(tiny("llama"), tokenizer=tokenizer)
    assert model.attend(TEXT).records[0] is not model.attend(TEXT).records[0]
