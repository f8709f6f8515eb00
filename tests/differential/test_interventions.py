"""Interventions have the same effect as plain changes to the model, without attnviz."""

import json
from pathlib import Path

import pytest
import torch
from families import tiny
from torch.testing import assert_close

import attnviz

DATA = Path(__file__).parent.parent / "data"
TEXT = "The bank was full of unbelievably much cash."
ROW = 2  # of the bank
# The words that take the place of another one: common tokens, drawn once.
COMMON = ["stay", "run", "network", "smith", "control", "has", "look", "producer"]


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
    stand_ins = model.tokenizer.convert_tokens_to_ids(COMMON)
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
