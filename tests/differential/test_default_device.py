"""The device that torch creates tensors on by default does not matter."""

import pytest
import torch
from families import TEXTS, tiny
from test_simulated_cuda import check, compare, draw, explain, senses, shift, stream, survey
from transformers import LlamaConfig, LlamaForCausalLM

import attnviz
from attnviz.attribution.methods import METHODS


@pytest.fixture
def gpu_by_default(simulated_gpu):
    torch.set_default_device("cuda")
    yield
    torch.set_default_device(None)


@pytest.fixture
def two_layers():
    """A BERT of two layers, which is built on the CPU."""
    module = tiny("bert")
    del module.bert.encoder.layer[2:]
    module.config.num_hidden_layers = 2
    return module


@pytest.fixture
def placed(two_layers, tokenizer, gpu_by_default):
    """A model on the CPU; test_simulated_cuda.py has it on a GPU."""
    return attnviz.load(two_layers, tokenizer=tokenizer)


def test_attend(placed):
    for result in placed.attend(TEXTS[1:]):
        assert result.agreement.verdict == "verified"


@pytest.mark.parametrize("function", [shift, senses, survey, stream, compare, check, draw, explain])
def test_every_function(function, placed, tmp_path):
    assert function(placed, tmp_path).agreement.verdict == "verified"


def test_the_next_token_is_explained(tokenizer, gpu_by_default):
    config = LlamaConfig(
        vocab_size=30522, hidden_size=48, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4, pad_token_id=0,
    )  # fmt: skip
    model = attnviz.load(LlamaForCausalLM(config).to("cpu").eval(), tokenizer=tokenizer)
    result = attnviz.explain("I love apple phones", methods=[*METHODS], heads=True, model=model)
    assert result.agreement.verdict == "verified", result.agreement.summary()
    assert set(result.methods) == {*METHODS}, result.notes
    assert None not in (result.heads, result.lens), result.notes
    result.plot()


def test_a_worked_example(gpu_by_default):
    attnviz.example("cat").plot()
