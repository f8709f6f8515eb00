"""Ablated heads, compared with zeroed columns of W^O and with plain hooks on transformers."""

from dataclasses import dataclass

import pytest
import torch
from families import tiny

import attnviz
from attnviz.attribution import interventions as module_under_test
from attnviz.attribution.interventions import (
    AttentionKnockout,
    HeadPatching,
    HeadRun,
    gates_without,
    outputs_of,
    replace_outputs,
)
from attnviz.attribution.target import Readout, Score
from attnviz.capture.watch import restoring


def ablate_heads(score, heads, *, how="zero", others=()):
    """Return what a score loses without each head, (N,)."""
    run = HeadRun.of(score)
    replacement = replace_outputs(run, how, [outputs_of(other) for other in others])
    direction = score.direction.double()

    def measure(numbers):
        return numbers.double() @ direction

    left = run.without([[head] for head in heads], replacement, measure=measure)
    return measure(run.numbers.detach()) - left


@dataclass(frozen=True, eq=False)
class Logit(Readout):
    """The logit of a token minus that of another."""

    token: int = 0
    against: int = 1

    def __call__(self, output):
        logits = output[:, list(self.rows)].mean(1)
        return (logits[:, self.token] - logits[:, self.against])[:, None]


def make_score(model, *, special=0, sink=None, token=1000, against=2000):
    """Return a score of a tiny model; `special` is the number of special tokens at the start."""
    ids = model.tokenizer("the bank was full of cash", return_tensors="pt").input_ids
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    T = ids.shape[1]
    flags = tuple(row < special for row in range(T))
    module = model.module
    if module.get_output_embeddings() is None:
        readout = Readout.word(module, (T - 2,))
        generator = torch.Generator().manual_seed(0)
        direction = torch.randn(module.config.hidden_size, generator=generator, dtype=torch.float64)
    else:
        readout, direction = Logit(module, (T - 2,), token, against), torch.ones(1)
    return Score(model, inputs, flags, readout, sink, direction=direction, result=None, gate=None)


@pytest.fixture(scope="module")
def tiny_model(tokenizer):
    loaded = {}

    def load(family):
        if family not in loaded:
            loaded[family] = attnviz.load(tiny(family, torch.float64), tokenizer=tokenizer)
        return loaded[family]

    return load


def value(score):
    with torch.no_grad():
        output = score.readout.module(**score.inputs)[0]
    return (score.readout(output).double() @ score.direction.double()).item()


def every_head(layers=3):
    return [(layer, head) for layer in range(layers) for head in range(4)]


def table(score, **options):
    with restoring(score.model.module):
        return ablate_heads(score, every_head(), **options)


def differ(a, b):
    """Return the largest difference, in units of the largest effect."""
    return ((a - b).abs().max() / b.abs().max()).item()


@pytest.mark.pairs(each=1)
@pytest.mark.parametrize("how", ["zero", "mean"])
@pytest.mark.parametrize("family", ["llama", "bert", "albert"])
def test_batched_ablations_equal_whole_runs_one_by_one(family, how, tiny_model, monkeypatch):
    """In ALBERT one block serves all layers, so that no run can start later."""
    score = make_score(tiny_model(family), special=1)
    with restoring(score.model.module):
        run = module_under_test.HeadRun.of(score)
        assert run.stored.in_a_row == (family != "albert")
        replacement = module_under_test.replace_outputs(run, how)
        whole = value(score)
        expected = []
        for head in every_head():
            with HeadPatching([[head]], replacement, run.rows, None, None):
                expected.append(whole - value(score))
    expected = torch.tensor(expected, dtype=torch.float64)
    assert differ(table(score, how=how), expected) < 1e-5
    if family != "albert":  # from a later block than that of the head
        monkeypatch.setattr(module_under_test.StoredRun, "skip", _one_block_further(run))
        assert differ(table(score, how=how), expected) > 1e-2


def _one_block_further(run):
    skip = type(run.stored).skip

    def further(self, count, copies, states=None):
        last = len(self.blocks) - 1
        return skip(self, min(count + (count < last), last), copies, states)

    return further


def test_a_word_is_hidden_from_a_model_whose_sinks_are_parameters():
    module, T = tiny("gpt-oss"), 5
    module.config._attn_implementation = "eager"
    ids = torch.tensor([[5, 9, 20, 33, 40]])
    shown = gates_without(T, [[[1]]], ids.device)
    with torch.no_grad(), AttentionKnockout(shown[:, None]) as knockout:
        found = module(ids)[0]
        count = knockout.count
    mask = torch.zeros(1, 1, T, T).masked_fill(~shown.tril(), torch.finfo(torch.float32).min)
    with torch.no_grad():
        expected = module(ids, dict.fromkeys(("full_attention", "sliding_attention"), mask))[0]
        plain = module(ids)[0]
    assert count == module.config.num_hidden_layers
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    assert (plain - expected).abs().max() > 0.01
