"""Interventions have the same effect as plain changes to the model, without attnviz."""

import json
from pathlib import Path

import pytest
import torch
from families import tiny
from torch.testing import assert_close

import attnviz
from attnviz.attribution.decomposition import decompose
from attnviz.attribution.interventions import (
    ALL,
    Target,
    available_interventions,
    common_words,
    delete,
    intervene,
    knock_out,
    patch_heads,
    substitute_each,
)
from attnviz.attribution.reference import gate_of
from attnviz.attribution.target import Readout
from attnviz.capture.watch import restoring

DATA = Path(__file__).parent.parent / "data"
TEXT = "The bank was full of unbelievably much cash."
ROW, NEAR = 2, {"atol": 2e-5, "rtol": 1e-4}


def tokens(tokenizer, *texts):
    ids = tokenizer(list(texts), return_tensors="pt").input_ids
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def plain(model, row=ROW, **inputs):
    with torch.no_grad():
        return model.module(**inputs).last_hidden_state[:, row]


def at(model, row, inputs):
    """Return the vector at a position."""
    special = (False,) * inputs["input_ids"].shape[1]
    return Target(model, inputs, special, Readout.word(model.module, (row,)))


@pytest.fixture(scope="module")
def site(model):
    inputs = tokens(model.tokenizer, TEXT)
    T = inputs["input_ids"].shape[1]
    return Target(
        model, inputs, (True, *[False] * (T - 2), True), Readout.word(model.module, (ROW,))
    )


@pytest.fixture(scope="module")
def words(model):
    """“was”, and “unbelievably” with its pieces."""
    pieces = model.tokenizer.convert_ids_to_tokens(model.tokenizer(TEXT).input_ids)
    last = pieces.index("much")
    assert last > 7
    return [[3], list(range(6, last))]


def test_an_effect_is_the_unchanged_vector_minus_the_changed_one(model, site, words):
    with restoring(model.module):
        effects = intervene(site, words, ALL)
    assert list(effects) == list(ALL)
    masked = substitute_each(site, words, [model.tokenizer.mask_token_id]).mean(1)
    expected = plain(model, **site.inputs) - masked
    assert_close(effects["mask"].mean(1), expected.double(), **NEAR)
    deleted = plain(model, **site.inputs) - delete(site, words)
    assert_close(effects["delete"][:, 0], deleted.double(), **NEAR)


def test_masked_and_replaced(model, site, words):
    stand_ins = [model.tokenizer.mask_token_id, *common_words(model)]
    effects = substitute_each(site, words, stand_ins).mean(1)
    assert effects.shape == (2, 384)
    for word, vector in zip(words, effects, strict=True):
        ends = []
        for first in range(len(stand_ins)):
            ids = site.ids.clone()
            for piece, position in enumerate(word):
                ids[0, position] = stand_ins[(first + piece) % len(stand_ins)]
            ends.append(plain(model, input_ids=ids)[0])
        assert_close(vector, torch.stack(ends).mean(0), **NEAR)


def test_deleted(model, site, words):
    for word, vector in zip(words, delete(site, words), strict=True):
        rest = [position for position in range(site.ids.shape[1]) if position not in word]
        assert_close(vector, plain(model, input_ids=site.ids[:, rest])[0])


def test_deleting_an_earlier_word_moves_the_target(model, site):
    (vector,) = delete(site, [[1]])
    shorter = site.ids[:, [0, *range(2, site.ids.shape[1])]]
    assert_close(vector, plain(model, row=ROW - 1, input_ids=shorter)[0], **NEAR)


def test_hidden_from_all_queries(model, site, words):
    """Equal to a mask passed to transformers: queries × keys, zeros and -∞."""
    with restoring(model.module):
        effects = knock_out(site, words)
    unchanged, T = plain(model, **site.inputs)[0], site.ids.shape[1]
    for word, vector in zip(words, effects, strict=True):
        mask = torch.zeros(1, 1, T, T)
        mask[..., word] = -torch.inf
        mask[0, 0, torch.tensor(word)[:, None], word] = 0
        with restoring(model.module):
            end = plain(model, input_ids=site.ids, attention_mask=mask)[0]
        assert (unchanged - vector).norm() > 0.1
        assert_close(vector, end, **NEAR)


def test_a_word_that_cannot_be_hidden_has_no_effect_reported(site, words):
    """Fused attention shows no softmax."""
    with pytest.raises(attnviz.ModelError, match="could be traced, so no word can be knocked out"):
        knock_out(site, words)


def test_no_words_give_no_effect(site):
    assert all(effect.shape == (0, 1, 384) for effect in intervene(site, [], ALL).values())


class Dense:
    """Record or replace the input of every W^O in a BERT."""

    def __init__(self, module, instead=None):
        self.seen = [None] * len(module.encoder.layer)
        self.hooks = [
            layer.attention.output.dense.register_forward_pre_hook(self.hook(at, instead))
            for at, layer in enumerate(module.encoder.layer)
        ]

    def hook(self, at, instead):
        def look(_, args):
            self.seen[at] = args[0].clone()
            return None if instead is None else (instead[at],)

        return look

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for hook in self.hooks:
            hook.remove()


def test_patched_heads(model):
    """Compare with hooks before W^O: patching all heads, and patching one head."""
    pair = tokens(model.tokenizer, "The bank was full of mud.", "The bank was full of cash.")
    with restoring(model.module):
        effects = patch_heads(at(model, ROW, pair), pair, effect="direct")
    assert effects.shape == (6, 12, 384)
    with Dense(model.module) as watched:
        plain(model, **pair)
    for layer, head in ((0, 0), (2, 7), (5, 3), (5, 11)):
        moved = torch.zeros(384)
        for run, other in ((1, 0), (0, 1)):
            inputs = [recorded[run : run + 1].clone() for recorded in watched.seen]
            features = slice(head * 32, head * 32 + 32)
            text = {name: each[run : run + 1] for name, each in pair.items()}
            whole = plain(model, **text)[0]
            inputs[layer][0, ROW, features] = watched.seen[layer][other, ROW, features]
            with Dense(model.module, inputs):
                patched = plain(model, **text)[0]
            moved += (whole - patched) * (0.5 if run else -0.5)
        assert_close(effects[layer, head], moved, **NEAR)


def patched_everywhere(module, projections, texts, row):
    """Return the effect of replacing each head before W^O at all positions, with plain hooks.

    projections : the module of W^O in each layer. texts : the inputs of the two runs.
    """

    def end(text):
        with torch.no_grad():
            return module(**text).last_hidden_state[0, row]

    recorded, hooks = [[], []], []
    for text, outputs in zip(texts, recorded, strict=True):
        hooks = [
            projection.register_forward_pre_hook(lambda _, args, to=outputs: to.append(args[0]))
            for projection in projections
        ]
        end(text)
        for hook in hooks:
            hook.remove()
    heads = module.config.num_attention_heads
    effects = []
    for layer, projection in enumerate(projections):
        width = recorded[0][layer].shape[-1] // heads
        for head in range(heads):
            features, moved = slice(head * width, (head + 1) * width), 0
            for run, sign in ((1, 0.5), (0, -0.5)):

                def replace(_, args, other=recorded[1 - run][layer], features=features):
                    x = args[0].clone()
                    x[..., features] = other[..., features]
                    return (x,)

                whole = end(texts[run])
                hook = projection.register_forward_pre_hook(replace)
                moved += (whole - end(texts[run])) * sign
                hook.remove()
            effects.append(moved)
    return torch.stack(effects).reshape(len(projections), heads, -1)


def singly(pair):
    return [{name: each[run : run + 1] for name, each in pair.items()} for run in (0, 1)]


def gated(texts, gate):
    """Give the first text a mask, as zeros and -∞, that hides what the gate hides."""
    T = gate.shape[0]
    mask = torch.zeros(1, 1, T, T).masked_fill(~gate, -torch.inf)
    return [{"input_ids": texts[0]["input_ids"], "attention_mask": mask}, texts[1]]


@pytest.mark.parametrize("reference", ["pair", "gate"])
def test_total_effects_are_those_of_plain_hooks(tokenizer, reference):
    texts = ["The bank was full of mud.", "The bank was full of cash."]
    is_gate = reference == "gate"
    pair = tokens(tokenizer, *(texts[1:] * 2 if is_gate else texts))
    T = pair["input_ids"].shape[1]
    gate = gate_of((True, *[False] * (T - 2), True)) if is_gate else None
    module, runs = tiny("bert").bert, singly(pair)
    model = attnviz.load(module, tokenizer=tokenizer)
    with restoring(module):
        effects = patch_heads(at(model, ROW, pair), pair, gate=gate, effect="total")
        projections = [layer.attention.output.dense for layer in module.encoder.layer]
        runs = gated(runs, gate) if is_gate else runs
        expected = patched_everywhere(module, projections, runs, ROW)
    assert effects.shape == (3, 4, 48)
    assert expected.norm(dim=-1).min() > 1e-3
    assert_close(effects, expected, atol=1e-4, rtol=0)


def test_total_effects_in_a_decoder_are_those_of_plain_hooks(tokenizer):
    module = tiny("llama")
    pair = tokens(tokenizer, "the bank was full of mud", "the bank was full of cash")
    model, row = attnviz.load(module, tokenizer=tokenizer), pair["input_ids"].shape[1] - 1
    with restoring(module):
        effects = patch_heads(at(model, row, pair), pair, effect="total")
        projections = [layer.self_attn.o_proj for layer in module.model.layers]
        expected = patched_everywhere(module.model, projections, singly(pair), row)
    assert expected.norm(dim=-1).min() > 1e-3
    assert_close(effects, expected, atol=1e-4, rtol=0)


@pytest.fixture
def without_changed_words(monkeypatch):
    """Leave out what a shift measures by changing single words."""
    monkeypatch.setattr("attnviz.analyses.shift.compute.intervene", lambda *_: {})


@pytest.mark.parametrize("family", ["gpt2", "llama", "roberta", "gemma2"])
def test_other_models(family, tokenizer):
    """Heads of tiny random models move as the exact decomposition predicts; words can be hidden."""
    module = tiny(family).requires_grad_(False)
    model = attnviz.load(module, tokenizer=tokenizer)
    text = tokens(tokenizer, "the bank was full of cash")
    T = text["input_ids"].shape[1]
    special = (True, *[False] * (T - 2), True)
    twice = {name: torch.cat([each, each]) for name, each in text.items()}
    gate = gate_of(special)
    with restoring(module):
        split = decompose(Readout.word(module, [T - 2]), twice, gate=gate)
        patched = (
            patch_heads(at(model, T - 2, text), twice, gate=gate, effect="direct").double()
            @ split.direction.double()
        )
        target = Target(model, text, special, Readout.word(model.module, (T - 2,)))
        lost = intervene(target, [[3], [T - 1]], ["knock-out"])["knock-out"]
    by_head = split.table.sum(-1)
    assert patched.shape == by_head.shape
    assert torch.corrcoef(torch.stack([patched.flatten(), by_head.flatten()]))[0, 1] > 0.9
    assert lost[0].norm() > 1e-3
    causal = family != "roberta"
    assert (lost[1].norm() < 1e-5) == causal  # causal models do not attend to later words


def test_replacements_are_common_whole_words(model):
    drawn = [model.tokenizer.decode([token]) for token in common_words(model)]
    assert len(set(drawn)) == 8
    assert all(word.isalpha() for word in drawn)
    assert drawn == [model.tokenizer.decode([token]) for token in common_words(model)]
    assert available_interventions(model) == ("mask", "replace", "knock-out", "delete")


@pytest.mark.usefixtures("without_changed_words")
@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.long)])
def test_the_right_side_of_a_minimal_pair_is_higher(model, step):
    """In 95 % of pairs like “The bank was full of {mud|cash}.” bank moves toward money."""
    pairs = json.loads((DATA / "minimal_pairs.json").read_text("utf-8"))
    sentences = json.loads((DATA / "sense_sentences.json").read_text("utf-8"))
    higher = []
    for pair in pairs[::step]:
        regions = {
            sense: [
                entry["sentence"]
                for entry in sentences
                if (entry["word"], entry["sense"]) == (pair["word"], sense)
            ]
            for sense in (pair["sense_b"], pair["sense_a"])
        }
        low, high = (pair["template"].format(pair[cue]) for cue in ("cue_a", "cue_b"))
        if len(set(map(len, model.tokenizer([low, high]).input_ids))) > 1:
            continue  # a cue with more pieces than the other
        shift = attnviz.shift(pair["word"], high, reference=low, toward=regions, model=model)
        assert shift.decomposition.credit_error < 1e-5
        higher.append(shift.decomposition.total > 0)
    assert len(higher) >= 22 // step
    assert sum(higher) / len(higher) >= 0.95
