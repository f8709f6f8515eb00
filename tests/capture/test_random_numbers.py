"""A run draws random numbers of its own, and leaves every generator of the process as it is."""

from copy import deepcopy
from functools import partial

import pytest
import torch
from families import TEXTS, tiny
from torch.nn.functional import dropout
from torch.nn.functional import scaled_dot_product_attention as attention
from transformers import RwkvConfig, RwkvModel

import attnviz


@pytest.fixture
def gpus(monkeypatch):
    """Pretend that there are two GPUs, with a random generator each."""
    generators = tuple(torch.Generator().manual_seed(seed) for seed in (11, 12))
    monkeypatch.setattr(torch.cuda, "default_generators", generators)
    return generators


@pytest.mark.parametrize("mode", ["full", "streamed"])
def test_no_other_generator_is_seeded(mode, gpus, tokenizer, monkeypatch):
    model, seeded = attnviz.load(tiny("bert"), tokenizer=tokenizer), []
    for module in (torch.cuda, torch.mps, torch.xpu):
        for name in ("manual_seed", "manual_seed_all"):
            monkeypatch.setattr(module, name, seeded.append, raising=False)
    before = [generator.get_state() for generator in (torch.default_generator, *gpus)]
    attnviz.attend(TEXTS[0], model=model, mode=mode)
    after = [generator.get_state() for generator in (torch.default_generator, *gpus)]
    assert seeded == []
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def draw():
    """Return what operators draw that take a generator, and some that take none."""
    ones = torch.ones(1, 1, 8, 8)
    return torch.cat([
        torch.rand(3), torch.zeros(3).normal_(), torch.randperm(5), torch.randn(2),
        dropout(torch.ones(9)), attention(ones, ones, ones, dropout_p=0.5)[0, 0, 0],
    ])  # fmt: skip


def draw_after_a_seed():
    torch.manual_seed(9)
    return draw()


@pytest.mark.parametrize("draws", [draw, draw_after_a_seed])
def test_numbers_of_each_run_are_those_of_a_seed(draws, tokenizer):
    """A model that seeds seeds a generator of its own."""
    module, drawn = tiny("bert"), []
    module.bert.encoder.layer[0].register_forward_pre_hook(lambda *_: drawn.append(draws()))
    torch.manual_seed(7)
    states = torch.default_generator.get_state()
    attnviz.load(module, tokenizer=tokenizer).attend(TEXTS[2])
    assert torch.equal(torch.default_generator.get_state(), states)
    assert sum(torch.equal(one, drawn[0]) for one in drawn) > 1  # the first of a run
    assert not torch.equal(draw(), drawn[0])


@pytest.mark.filterwarnings("ignore")  # of torch, about flex attention
def test_a_model_with_flex_attention_is_verified(tokenizer, monkeypatch):
    """Its operator contains others, and is dispatched in another way.

    The function is compiled, but not to machine code, which would take a minute.
    """
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    model = tiny("llama")
    model.set_attn_implementation("flex_attention")
    with torch.compiler.set_stance("force_eager"):  # the compiler takes a minute the first time
        report = attnviz.verify(TEXTS[0], model=attnviz.load(model, tokenizer=tokenizer))
    assert report.verdict == "verified"


def test_weights_that_a_model_rescales_are_not_written(tokenizer):
    """RWKV divides the weights of later layers when it first runs for inference."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "attention_hidden_size": 32, "num_hidden_layers": 2}
    module = RwkvModel(RwkvConfig(vocab_size=30522, rescale_every=1, **sizes)).eval()
    model, before = attnviz.load(module, tokenizer=tokenizer), deepcopy(module.state_dict())
    results = [model.attend(TEXTS[2]) for _ in range(2)]
    assert {result.agreement.verdict for result in results} == {"verified"}
    assert results[0].provenance.weights_sha256 == results[1].provenance.weights_sha256
    assert not module.layers_are_rescaled
    assert all(torch.equal(before[name], one) for name, one in module.state_dict().items())
    twin = deepcopy(module)
    ids = tokenizer(TEXTS[0], return_tensors="pt").input_ids
    with torch.no_grad():
        twin(ids)
    scaled = twin.blocks[1].attention.output.weight
    assert not torch.equal(scaled, module.blocks[1].attention.output.weight)
