"""A run leaves every random generator as it was, and touches none that the model does not use."""

import pytest
import torch
from families import TEXTS, tiny

import attnviz
from attnviz.capture import watch


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


def test_generators_of_the_model_are_seeded_and_restored(gpus, monkeypatch):
    monkeypatch.setattr(watch, "devices", lambda model: [torch.device("cuda:1")])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    model, numbers = tiny("bert"), []
    states = [generator.get_state() for generator in (torch.default_generator, *gpus)]
    for _ in range(2):
        with watch.restoring(model):
            assert torch.equal(gpus[0].get_state(), states[1])
            numbers.append((torch.rand(3), torch.rand(3, generator=gpus[1])))
    for one, other in zip(*numbers, strict=True):
        assert torch.equal(one, other)
    after = [generator.get_state() for generator in (torch.default_generator, *gpus)]
    assert all(torch.equal(one, other) for one, other in zip(states, after, strict=True))


def test_numbers_are_those_of_seed_0():
    with watch.restoring(tiny("bert")):
        inside = torch.rand(3)
    assert torch.equal(inside, torch.rand(3, generator=torch.Generator().manual_seed(0)))
