"""Interventions have the same effect as plain changes to the model, without attnviz."""

import json
from pathlib import Path

import pytest
import torch
from families import tiny
from torch.testing import assert_close

import attnviz
from attnviz.attribution.interventions import common_words

DATA = Path(__file__).parent.parent / "data"
TEXT = "The bank was full of unbelievably much cash."
ROW = 2  # of the bank


@pytest.fixture(scope="module")
def shifted(model):
    return attnviz.shift("bank", TEXT, verify_causally=True, model=model)


def end_of(module, inputs, row=ROW):
    """Return the vector at a position."""
    with torch.no_grad():
        return module(**inputs).last_hidden_state[0, row].double()


def with_stand_ins(ids, word, stand_ins):
    """Yield the text with other tokens in the place of a word, each of them once at each place."""
    for first in range(len(stand_ins)):
        other = ids.clone()
        for piece, position in enumerate(word):
            other[0, position] = stand_ins[(first + piece) % len(stand_ins)]
        yield {"input_ids": other}, ROW


def masked(model, ids, word):
    yield from with_stand_ins(ids, word, [model.tokenizer.mask_token_id])


def replaced(model, ids, word):
    stand_ins = common_words(model)
    words = [model.tokenizer.decode([token]) for token in stand_ins]
    assert len({word for word in words if word.isalpha()}) == 8
    yield from with_stand_ins(ids, word, stand_ins)


def hidden(model, ids, word):
    """Add a mask of queries × keys, zeros and -∞: no other position attends to the word."""
    T = ids.shape[1]
    mask = torch.zeros(1, 1, T, T)
    mask[..., word] = -torch.inf
    mask[0, 0, torch.tensor(word)[:, None], word] = 0
    yield {"input_ids": ids, "attention_mask": mask}, ROW


def deleted(model, ids, word):
    rest = [position for position in range(ids.shape[1]) if position not in word]
    yield {"input_ids": ids[:, rest]}, rest.index(ROW)


CHANGES = {"mask": masked, "replace": replaced, "knock-out": hidden, "delete": deleted}


@pytest.mark.parametrize("word", ["The", "was", "unbelievably"])
@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_word_has_the_effect_of_a_plain_run(name, word, model, shifted):
    at = shifted.words.index(word)
    positions = list(shifted.positions[at])
    assert len(positions) > 1 or word != "unbelievably"
    ids = model.tokenizer(TEXT, return_tensors="pt").input_ids
    runs = CHANGES[name](model, ids, positions)
    ends = [end_of(model.module, inputs, row) for inputs, row in runs]
    lost = end_of(model.module, {"input_ids": ids}) - torch.stack(ends).mean(0)
    assert lost.norm() > 0.1
    expected = lost @ shifted.decomposition.direction.double()
    assert_close(shifted.causal[name][at], expected, atol=1e-4, rtol=1e-4)


def watched(projections, change):
    """Register a hook before W^O of each layer, which may replace its input."""
    return [
        projection.register_forward_pre_hook(lambda _, args, at=at: change(at, args[0]))
        for at, projection in enumerate(projections)
    ]


def patched_by_hooks(module, projections, texts, *, is_direct):
    """Return the effect of giving each head what it gives W^O in the other text, (L, H, d).

    A direct effect is that at the position alone, where all other heads stay as they are.
    """
    recorded = []
    for text in texts:
        inputs = {}
        hooks = watched(projections, inputs.__setitem__)
        end_of(module, text)
        for hook in hooks:
            hook.remove()
        recorded.append(inputs)
    heads = module.config.num_attention_heads
    effects = torch.zeros(len(projections), heads, module.config.hidden_size, dtype=torch.float64)
    rows = ROW if is_direct else slice(None)
    for layer in range(len(projections)):
        width = recorded[0][layer].shape[-1] // heads
        for head in range(heads):
            features = slice(head * width, (head + 1) * width)
            for run, sign in ((1, 0.5), (0, -0.5)):

                def change(at, x, layer=layer, run=run, features=features):
                    x = (recorded[run][at] if is_direct else x).clone()
                    if at == layer:
                        x[:, rows, features] = recorded[1 - run][at][:, rows, features]
                    return (x,)

                whole = end_of(module, texts[run])
                hooks = watched(projections, change)
                effects[layer, head] += (whole - end_of(module, texts[run])) * sign
                for hook in hooks:
                    hook.remove()
    return effects


@pytest.mark.usefixtures("without_changed_words")
@pytest.mark.parametrize("reference", ["The bank was full of mud.", "gate"])
def test_effects_of_heads_are_those_of_plain_hooks(tokenizer, reference):
    text, module = "The bank was full of cash.", tiny("bert").bert
    texts = [dict(tokenizer(each, return_tensors="pt")) for each in (reference, text)]
    if reference == "gate":  # the text with a mask that hides what the gate hides
        T = texts[1]["input_ids"].shape[1]
        gate = torch.eye(T, dtype=torch.bool)
        gate[:, [0, T - 1]] = True
        mask = torch.zeros(1, 1, T, T).masked_fill(~gate, -torch.inf)
        texts[0] = {**texts[1], "attention_mask": mask}
    model = attnviz.load(module, tokenizer=tokenizer)
    found = attnviz.shift("bank", text, reference=reference, verify_causally=True, model=model)
    projections = [layer.attention.output.dense for layer in module.encoder.layer]
    along = found.decomposition.direction.double()
    for effects, is_direct in ((found.direct_effect, True), (found.total_effect, False)):
        expected = patched_by_hooks(module, projections, texts, is_direct=is_direct)
        assert expected.norm(dim=-1).median() > 1e-2
        assert_close(effects, expected @ along, atol=1e-4, rtol=0)


@pytest.fixture
def without_changed_words(monkeypatch):
    """Leave out what a shift measures by changing single words."""
    monkeypatch.setattr("attnviz.analyses.shift.compute.intervene", lambda *_: {})


@pytest.mark.parametrize("family", ["gpt2", "llama", "roberta", "gemma2"])
def test_other_models(family, tokenizer):
    """Heads of tiny random models move as the exact decomposition predicts; words can be hidden."""
    model = attnviz.load(tiny(family), tokenizer=tokenizer)
    found = attnviz.shift("full", "the bank was full of cash", verify_causally=True, model=model)
    effects = found.direct_effect.flatten(), found.decomposition.table.sum(-1).flatten()
    assert torch.corrcoef(torch.stack(effects))[0, 1] > 0.9
    earlier, later = (found.causal["knock-out"][found.words.index(w)] for w in ("bank", "cash"))
    assert earlier.abs() > 1e-3
    if family == "roberta":
        assert later.abs() > 1e-5
    else:  # causal models do not attend to later words
        assert later.isnan() or later.abs() < 1e-5


@pytest.mark.usefixtures("without_changed_words")
@pytest.mark.parametrize("step", [11, pytest.param(1, marks=pytest.mark.long)])
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
