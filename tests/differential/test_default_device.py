"""The device that torch creates tensors on by default does not matter."""

import pytest
import torch
from families import TEXTS, tiny
from torch.testing import assert_close

import attnviz
from attnviz.attribution.methods import METHODS

TEXT = "I love apple phones"
SENSES = {"river": ["the bank of the river", "a bank of mud"], "money": ["my bank", "a rich bank"]}
REGIONS = {"tech": ["a phone"], "fruit": ["a pear"]}


@pytest.fixture(params=[("cpu", "cuda"), ("cuda", "cpu"), ("cuda", "cuda")], ids="-".join)
def placed(request, tokenizer, simulated_gpu):
    """A model on one device, while another one, or the same, is the default."""
    device, default = request.param
    model = attnviz.load(tiny("bert").to(device), tokenizer=tokenizer)
    torch.set_default_device(default)
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
    assert attnviz.shift("apple", TEXT, model=placed, **options).agreement.verdict == "verified"


def test_senses_and_survey(placed):
    assert attnviz.senses("bank", SENSES, model=placed).agreement.verdict == "verified"
    assert attnviz.survey([TEXT, TEXTS[2]] * 2, model=placed).agreement.verdict == "verified"


def test_figures_and_files(placed, tmp_path):
    result = placed.attend(TEXT)
    result.plot(layer=1, head=1)
    attnviz.plot.heads(result)
    attnviz.steps(result, layer=1, head=0).plot()
    attnviz.view(result).save(tmp_path / "view.html")
    attnviz.save_result(result, tmp_path / "result.safetensors")
    loaded = attnviz.load_result(tmp_path / "result.safetensors")
    assert_close(loaded.weights(1).cpu(), result.weights(1).cpu())


def test_a_worked_example(simulated_gpu):
    torch.set_default_device("cuda")
    try:
        attnviz.example("cat").plot()
    finally:
        torch.set_default_device(None)
