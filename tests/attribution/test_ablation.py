"""Ablated heads, compared with zeroed columns of W^O and with plain hooks on transformers."""

from dataclasses import dataclass

import pytest
import torch
from families import tiny
from torch.testing import assert_close

import attnviz
from attnviz.attribution import interventions as module_under_test
from attnviz.attribution.interventions import (
    AttentionKnockout,
    HeadPatching,
    HeadRun,
    ablate_each,
    gates_without,
    head_effects,
    outputs_of,
    replace_outputs,
)
from attnviz.attribution.target import Readout, Score
from attnviz.capture.watch import restoring
from attnviz.errors import InputError, ModelError

# The projection W^O of each layer, and whether its weight is stored as (in, out).
OUTPUT = {
    "gpt2": (lambda m: [block.attn.c_proj for block in m.transformer.h], True),
    "llama": (lambda m: [block.self_attn.o_proj for block in m.model.layers], False),
    "bert": (lambda m: [block.attention.output.dense for block in m.bert.encoder.layer], False),
    "gpt-neox": (lambda m: [block.attention.dense for block in m.layers], False),
    "gemma2": (lambda m: [block.self_attn.o_proj for block in m.layers], False),
}


def ablate_heads(score, heads, *, how="zero", others=()):
    """Return what a score loses without each head, (N,)."""
    run = HeadRun.of(score)
    replacement = replace_outputs(run, how, [outputs_of(other) for other in others])
    return ablate_each(score, run, heads, replacement)


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


def by_weights(score, family, layer, head):
    """Return the effect of zeroed columns of W^O."""
    find, transposed = OUTPUT[family]
    weight = find(score.model.module)[layer].weight
    width = weight.shape[0 if transposed else 1] // 4
    features = slice(head * width, (head + 1) * width)
    whole, original = value(score), weight.detach().clone()
    with torch.no_grad():
        (weight if transposed else weight.T)[features] = 0
    try:
        return whole - value(score)
    finally:
        with torch.no_grad():
            weight.copy_(original)


def by_hooks(score, family, layer, head, rows):
    """Return the effect of zeros before W^O at some positions, with a plain hook."""
    projection = OUTPUT[family][0](score.model.module)[layer]

    def zero(_, args):
        x = args[0].clone()
        width = x.shape[-1] // 4
        x[:, rows, head * width : (head + 1) * width] = 0
        return (x,)

    whole = value(score)
    hook = projection.register_forward_pre_hook(zero)
    try:
        return whole - value(score)
    finally:
        hook.remove()


@pytest.mark.parametrize("family", OUTPUT)
def test_a_zeroed_head_equals_zeroed_columns_of_the_output_projection(family, tiny_model):
    score = make_score(tiny_model(family))
    with restoring(score.model.module):
        heads = every_head(score.model.module.config.num_hidden_layers)
        effects = ablate_heads(score, heads)
        expected = torch.tensor(
            [by_weights(score, family, *head) for head in heads], dtype=torch.float64
        )
    assert (expected.abs() > 1e-5).all()
    assert differ(effects, expected) < 1e-6


def table(score, **options):
    with restoring(score.model.module):
        return ablate_heads(score, every_head(), **options)


def differ(a, b):
    """Return the largest difference, in units of the largest effect."""
    return ((a - b).abs().max() / b.abs().max()).item()


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_the_sink_of_a_causal_model_is_not_ablated(family, tiny_model):
    """Neither a special first token nor an ordinary one that the score names."""
    model = tiny_model(family)
    special, named = make_score(model, special=1), make_score(model, sink=0)
    T = special.ids.shape[1]
    with restoring(model.module):
        expected = [by_hooks(special, family, *head, slice(1, T)) for head in every_head()]
    expected = torch.tensor(expected, dtype=torch.float64)
    assert differ(table(special), expected) < 1e-6
    assert differ(table(named), expected) < 1e-6
    assert differ(table(make_score(model)), expected) > 1e-2  # with the sink ablated too


def test_an_encoder_is_ablated_at_every_position(tiny_model):
    model = tiny_model("bert")
    assert differ(table(make_score(model, special=1)), table(make_score(model))) == 0


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


def test_heads_in_any_order_and_repeated(tiny_model):
    score = make_score(tiny_model("llama"), special=1)
    full = table(score).reshape(3, 4)
    heads = [(2, 1), (0, 3), (1, 0), (0, 3)]
    with restoring(score.model.module):
        effects = ablate_heads(score, heads)
        assert len(ablate_heads(score, [])) == 0
    assert_close(effects, torch.stack([full[head] for head in heads]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("fault", ["one layer on", "heads of a group swapped", "sink ablated too"])
def test_planted_faults_are_caught(fault, tiny_model, monkeypatch):
    """Each of these makes the table differ from that of plain hooks by far more than 1e-6."""
    score = make_score(tiny_model("llama"), special=1)
    T = score.ids.shape[1]
    with restoring(score.model.module):
        expected = [by_hooks(score, "llama", *head, slice(1, T)) for head in every_head()]
    expected = torch.tensor(expected, dtype=torch.float64)
    original = HeadPatching.__init__

    def plant(self, heads, replacement, rows, fixed, gate, layer=0, hidden=()):
        if fault == "one layer on":
            layer -= 1
        elif fault == "heads of a group swapped":
            heads = [[(place, head ^ 1) for place, head in one] for one in heads]
        else:
            rows = slice(None)
        original(self, heads, replacement, rows, fixed, gate, layer, hidden)

    assert differ(table(score), expected) < 1e-6
    monkeypatch.setattr(HeadPatching, "__init__", plant)
    assert differ(table(score), expected) > 1e-2


def test_the_mean_of_the_text_or_of_other_texts_replaces_a_head(tiny_model):
    """Compared with a hook before W^O that puts the mean over positions there."""
    model = tiny_model("gpt2")
    score, family = make_score(model), "gpt2"
    other = "a river runs through it"
    layer, head = 1, 2
    projection = OUTPUT[family][0](model.module)[layer]
    recorded = []
    for inputs in (score.inputs, model.tokenizer(other, return_tensors="pt")):
        hook = projection.register_forward_pre_hook(lambda _, args: recorded.append(args[0]))
        with torch.no_grad(), restoring(model.module):
            model.module(input_ids=inputs["input_ids"])
        hook.remove()
    features = slice(head * 12, head * 12 + 12)
    ids = model.tokenizer(other, return_tensors="pt").input_ids
    elsewhere = Score(**vars(score) | {"inputs": {"input_ids": ids}})
    for number, others in enumerate(((), (elsewhere,))):
        mean = recorded[number][..., features].mean(1)

        def replace(_, args, mean=mean):
            x = args[0].clone()
            x[..., features] = mean
            return (x,)

        with restoring(model.module):
            effects = ablate_heads(score, [(layer, head)], how="mean", others=others)
            whole = value(score)
            hook = projection.register_forward_pre_hook(replace)
            expected = whole - value(score)
            hook.remove()
        assert abs(expected) > 1e-3
        assert effects.item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.pairs(each=1)
@pytest.mark.parametrize("how", ["zero", "mean"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
def test_the_estimate_is_the_derivative_toward_the_replacement(family, how, tiny_model):
    """Compared with the effect of a small step from the outputs to their replacement."""
    model = tiny_model(family)
    score = make_score(model, special=1)
    with restoring(model.module):
        run = module_under_test.HeadRun.of(score)
        outputs = [module_under_test.tracing.by_head(mix.detach(), 1)[0] for _, mix in run.mixes]
        replacement = module_under_test.replace_outputs(run, how)
        step, slopes = 1e-3, 0  # norms and softmax compute in float32, so no smaller one
        for sign in (1, -1):
            near = [a + sign * step * (b - a) for a, b in zip(outputs, replacement, strict=True)]
            moved = module_under_test.ablate_each(score, run, every_head(), near)
            slopes += sign * moved / (2 * step)
        with torch.enable_grad():
            estimate = run.estimate(score.project(run.numbers), replacement)
        effects = head_effects(score, exact=2)
    assert differ(estimate, slopes.reshape(3, 4)) < 1e-3
    assert how != "zero" or torch.equal(effects.estimate, estimate)
    assert effects.is_exact.sum() == 2
    largest = effects.estimate.abs().flatten().topk(2).indices
    assert effects.is_exact.flatten()[largest].all()
    assert_close(effects.best[~effects.is_exact], effects.estimate[~effects.is_exact])


def test_bad_arguments(tiny_model):
    score = make_score(tiny_model("llama"))
    with restoring(score.model.module):
        with pytest.raises(InputError, match="no head 4 in layer 0"):
            ablate_heads(score, [(0, 4)])
        with pytest.raises(InputError, match="no head 0 in layer 3"):
            ablate_heads(score, [(3, 0)])


def test_fused_attention_is_refused(tiny_model):
    score = make_score(tiny_model("llama"))
    with restoring(score.model.module, "sdpa"), pytest.raises(ModelError, match="eager attention"):
        ablate_heads(score, [(0, 0)])


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
