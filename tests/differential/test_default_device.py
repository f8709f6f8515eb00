"""The device that torch creates tensors on by default does not matter."""

import pytest
import torch
from families import TEXTS, tiny
from torch.testing import assert_close
from transformers import BertForMaskedLM, LlamaConfig, LlamaForCausalLM

import attnviz
from attnviz.attribution.methods import METHODS

TEXT = "I love apple phones"
SENSES = {"river": ["the bank of the river", "a bank of mud"], "money": ["my bank", "a rich bank"]}
REGIONS = {"tech": ["a phone"], "fruit": ["a pear"]}


@pytest.fixture
def placed(tokenizer, simulated_gpu):
    """A model on the CPU, while a GPU is the default; test_simulated_cuda.py has it on a GPU."""
    module = tiny("bert")
    del module.bert.encoder.layer[2:]
    module.config.num_hidden_layers = 2
    model = attnviz.load(module, tokenizer=tokenizer)
    torch.set_default_device("cuda")
    yield model
    torch.set_default_device(None)


def test_attend(placed):
    for result in placed.attend(TEXTS[1:]):
        assert result.agreement.verdict == "verified"


def test_streamed(placed):
    result = placed.attend(TEXTS[0], mode="streamed", top=2, exact=1)
    assert result.agreement.verdict == "verified"


def test_shift(placed):
    options = {"verify_causally": True, "methods": [*METHODS], "toward": REGIONS}
    result = attnviz.shift("apple", TEXT, model=placed, **options)
    assert result.agreement.verdict == "verified"
    assert set(result.methods) == {*METHODS}, result.notes


def test_senses_and_survey(placed):
    assert attnviz.senses("bank", SENSES, model=placed).agreement.verdict == "verified"
    assert attnviz.survey([TEXT, TEXTS[2]], model=placed).agreement.verdict == "verified"


def test_figures_and_files(placed, tmp_path):
    result = placed.attend(TEXT)
    result.plot(layer=1, head=1)
    attnviz.plot.heads(result)
    attnviz.steps(result, layer=1, head=0).plot()
    attnviz.view(result).save(tmp_path / "view.html")
    attnviz.save_result(result, tmp_path / "result.safetensors")
    loaded = attnviz.load_result(tmp_path / "result.safetensors")
    assert_close(loaded.weights(1).cpu(), result.weights(1).cpu())


def test_comparisons(placed):
    texts = [TEXT, TEXTS[2]]
    compared = attnviz.compare(texts, models=(placed, placed))
    assert compared.agreement.verdict == "verified"
    compared.plot()
    checked = attnviz.check(placed.attend(TEXT).weights(), TEXT, model=placed)
    assert checked.agrees
    checked.plot()


@pytest.mark.parametrize("target", ["next token", "masked token"])
def test_an_explanation(target, placed, tokenizer):
    config = placed.module.config
    text = TEXT
    if target == "masked token":
        module, text = BertForMaskedLM(config), f"{TEXT} are [MASK]"
    else:
        sizes = {name: getattr(config, name) for name in ("vocab_size", "hidden_size")}
        module = LlamaForCausalLM(
            LlamaConfig(
                **sizes, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
                pad_token_id=0,
            )
        )  # fmt: skip
    model = attnviz.load(module.to("cpu").eval(), tokenizer=tokenizer)
    result = attnviz.explain(text, methods=[*METHODS], heads=True, model=model)
    assert result.agreement.verdict == "verified", result.agreement.summary()
    assert set(result.methods) == {*METHODS}, result.notes
    assert None not in (result.heads, result.lens), result.notes
    result.plot()


def test_a_worked_example(simulated_gpu):
    torch.set_default_device("cuda")
    try:
        attnviz.example("cat").plot()
    finally:
        torch.set_default_device(None)
