"""While attnviz runs a model, a thread of the user runs it too, and draws random numbers."""

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch
from families import tiny
from torch import nn

import attnviz
from attnviz import ModelError

TEXT = "the river bank was full of people"


@contextmanager
def running(step):
    """Repeat a step in a thread of the user; yield what the steps returned, counted."""
    counts, done = Counter(), threading.Event()

    def repeat():
        while not done.is_set():
            try:
                counts[step()] += 1
            except Exception as error:
                counts[f"{type(error).__name__}: {error}"] += 1

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield counts
    finally:
        done.set()
        thread.join()


def watched_by(model, ids):
    """Return a step that runs a model and says whether its output is bit for bit the same."""
    with torch.no_grad():
        expected = model(ids)[0].clone()

    def step():
        with torch.no_grad():
            return torch.equal(model(ids)[0], expected)

    return step


ANALYSES = {
    "attend": lambda model: attnviz.attend(TEXT, model=model).agreement.verdict,
    "streamed": lambda model: attnviz.attend(TEXT, model=model, mode="streamed").agreement.verdict,
    "shift": lambda model: attnviz.shift("bank", TEXT, model=model).agreement.verdict,
    "survey": lambda model: attnviz.survey([TEXT, TEXT], model=model).agreement.verdict,
    "explain": lambda model: attnviz.explain(TEXT, model=model).agreement.verdict,
    "ablate": lambda model: attnviz.ablate([TEXT], model=model).agreement.verdict,
}


@pytest.mark.parametrize("analysis", ANALYSES)
def test_the_outputs_of_another_thread_stay_right(analysis, tokenizer):
    module = tiny("llama")
    model = attnviz.load(module, tokenizer=tokenizer)
    step = watched_by(module, tokenizer(TEXT, return_tensors="pt").input_ids)
    with running(step) as counts:
        verdicts = {ANALYSES[analysis](model) for _ in range(2 if analysis == "attend" else 1)}
        while counts.total() < 20:
            time.sleep(0.001)
    assert set(counts) == {True}
    assert verdicts == {"verified"}


@pytest.mark.parametrize(
    "family", ["bert", pytest.param("gemma2", marks=pytest.mark.long), "bigbird"]
)
def test_four_threads_attend_to_one_model(family, tokenizer):
    module = tiny(family)
    model = attnviz.load(module, tokenizer=tokenizer)
    alone = model.attend(TEXT).records[0].weights()

    def attend(_):
        result = model.attend(TEXT)
        return result.agreement.verdict, torch.equal(result.records[0].weights(), alone)

    step = watched_by(module, tokenizer(TEXT, return_tensors="pt").input_ids)
    with running(step) as counts, ThreadPoolExecutor(4) as threads:
        results = set(threads.map(attend, range(4)))
    assert set(counts) == {True}
    assert results == {("verified", True)}


def test_the_random_numbers_of_another_thread_are_its_seeded_sequence():
    model = attnviz.load(tiny("reformer"), tokenizer=attnviz.load().tokenizer)  # draws in each run
    torch.manual_seed(5)
    expected = [torch.rand(1).item() for _ in range(20_000)]
    torch.manual_seed(5)
    drawn = []
    with running(lambda: drawn.append(torch.rand(1).item())):
        for _ in range(2):
            model.attend(TEXT)
        while len(drawn) < 100:
            time.sleep(0.001)
    assert drawn[:20_000] == expected[: len(drawn)]


def test_nothing_of_the_model_is_ever_assigned(tokenizer, monkeypatch):
    """Not even for a moment."""
    module = tiny("llama")
    modules, assigned = set(module.modules()), []

    def recorder(name):
        original = getattr(nn.Module, name)

        def record(self, *args, **kwargs):
            if self in modules:
                assigned.append((name, args[0]))
            return original(self, *args, **kwargs)

        return record

    names = "__setattr__", "__delattr__", "register_forward_hook", "register_forward_pre_hook"
    for name in (*names, "train", "eval", "requires_grad_", "_apply"):
        monkeypatch.setattr(nn.Module, name, recorder(name))
    model = attnviz.load(module, tokenizer=tokenizer)
    for analysis in ANALYSES.values():
        analysis(model)
    assert assigned == []


def test_a_step_of_an_optimizer_in_the_middle_is_an_error(tokenizer):
    module = tiny("llama")
    model = attnviz.load(module, tokenizer=tokenizer)

    def step():
        with torch.no_grad():
            module.lm_head.weight.add_(1e-3)

    with running(step), pytest.raises(ModelError, match=r"changed while attnviz read them"):
        model.attend(TEXT)
