"""What an intervention does is what the plain model does, without any of our own code in it."""

import json
from pathlib import Path

import pytest
import torch
from families import tiny
from torch.testing import assert_close

import attnviz
from attnviz.analyses.shift.deeplift import decompose_shift
from attnviz.analyses.shift.interventions import (
    TargetWord,
    available_interventions,
    common_words,
    delete,
    knock_out,
    patch_heads,
    substitute,
)
from attnviz.analyses.shift.reference import gate_of
from attnviz.capture.restore import restoring

DATA = Path(__file__).parent.parent / "data"
TEXT = "The bank was full of unbelievably much cash."
ROW, NEAR = 2, {"atol": 2e-5, "rtol": 1e-4}


def tokens(tokenizer, *texts):
    ids = tokenizer(list(texts), return_tensors="pt").input_ids
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def plain(model, row=ROW, **inputs):
    with torch.no_grad():
        return model.module(**inputs).last_hidden_state[:, row]


@pytest.fixture(scope="module")
def site(model):
    with restoring(model.module):
        return TargetWord.of(model.module, tokens(model.tokenizer, TEXT), [ROW])


@pytest.fixture(scope="module")
def words(model):
    """“was”, and “unbelievably” in its pieces."""
    pieces = model.tokenizer.convert_ids_to_tokens(model.tokenizer(TEXT).input_ids)
    last = pieces.index("much")
    assert last > 7
    return [[3], list(range(6, last))]


def test_a_site_is_where_the_model_puts_the_word(model, site):
    assert_close(site.end, plain(model, **site.inputs)[0], **NEAR)


def test_masked_and_replaced(model, site, words):
    stand_ins = [model.tokenizer.mask_token_id, *common_words(model)]
    found = substitute(site, words, stand_ins)
    assert found.shape == (2, 384)
    for word, lost in zip(words, found, strict=True):
        ends = []
        for first in range(len(stand_ins)):
            ids = site.inputs["input_ids"].clone()
            for piece, at in enumerate(word):
                ids[0, at] = stand_ins[(first + piece) % len(stand_ins)]
            ends.append(plain(model, input_ids=ids)[0])
        assert_close(lost, site.end - torch.stack(ends).mean(0), **NEAR)


def test_deleted(model, site, words):
    for word, lost in zip(words, delete(site, words), strict=True):
        kept = [at for at in range(site.length) if at not in word]
        assert_close(lost, site.end - plain(model, input_ids=site.inputs["input_ids"][:, kept])[0])


def test_a_word_before_that_is_deleted_moves_the_place_of_the_word(model, site):
    (lost,) = delete(site, [[1]])
    shorter = site.inputs["input_ids"][:, [0, *range(2, site.length)]]
    assert_close(lost, site.end - plain(model, row=ROW - 1, input_ids=shorter)[0], **NEAR)


def test_read_by_none(model, site, words):
    """The same as a mask that transformers takes: queries × keys, zeros and -∞."""
    with restoring(model.module):
        found = knock_out(site, words)
    for word, lost in zip(words, found, strict=True):
        mask = torch.zeros(1, 1, site.length, site.length)
        mask[..., word] = -torch.inf
        mask[0, 0, torch.tensor(word)[:, None], word] = 0
        with restoring(model.module):
            end = plain(model, input_ids=site.inputs["input_ids"], attention_mask=mask)[0]
        assert lost.norm() > 0.1
        assert_close(lost, site.end - end, **NEAR)


def test_a_word_that_cannot_be_hidden_is_not_said_to_lose_nothing(site, words):
    """Fused attention shows no softmax."""
    with pytest.raises(
        attnviz.ModelError, match="Expected attention in which a word can be hidden"
    ):
        knock_out(site, words)


def test_no_words_are_no_loss(site):
    assert delete(site, []).shape == knock_out(site, []).shape == (0, 384)
    assert substitute(site, [], [1996, 2002]).shape == (0, 384)


class Dense:
    """Looks at what enters every W^O of a BERT, or gives it something else."""

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
    """Against hooks before W^O: all heads give what they gave, one gives that of the other run."""
    pair = tokens(model.tokenizer, "The bank was full of mud.", "The bank was full of cash.")
    with restoring(model.module):
        found = patch_heads(model.module, pair, rows=[ROW])
    assert found.shape == (6, 12, 384)
    with Dense(model.module) as watched:
        plain(model, **pair)
    for layer, head in ((0, 0), (2, 7), (5, 3), (5, 11)):
        moved = torch.zeros(384)
        for own, other in ((1, 0), (0, 1)):
            given = [seen[own : own + 1].clone() for seen in watched.seen]
            features = slice(head * 32, head * 32 + 32)
            text = {name: each[own : own + 1] for name, each in pair.items()}
            whole = plain(model, **text)[0]
            given[layer][0, ROW, features] = watched.seen[layer][other, ROW, features]
            with Dense(model.module, given):
                patched = plain(model, **text)[0]
            moved += (whole - patched) * (0.5 if own else -0.5)
        assert_close(found[layer, head], moved, **NEAR)


SENTENCES = [
    ("bank", "She opened a savings account at the bank near the harbour."),
    ("bank", "Two herons stood on the muddy bank of the river."),
    ("check", "He wrote a check for the rent and signed it."),
    ("apple", "I love apple phones more than any others."),
    ("bat", "The player swung the wooden bat and missed the ball."),
    ("mouse", "She plugged the mouse into her old computer."),
]


def test_the_heads_of_a_split_do_what_patching_them_does(model):
    found = [
        attnviz.shift(word, text, verify_causally=True, model=model) for word, text in SENTENCES
    ]
    agree = [result.heads_correlation for result in found]
    assert sum(r for r, _ in agree) / len(agree) >= 0.97
    assert sum(rho for _, rho in agree) / len(agree) >= 0.95


@pytest.mark.parametrize("family", ["gpt2", "llama", "roberta", "gemma2"])
def test_other_models(family, tokenizer):
    """Heads of tiny random models move as the exact split says, and words can be hidden."""
    module = tiny(family)
    text = tokens(tokenizer, "the bank was full of cash")
    T = text["input_ids"].shape[1]
    twice = {name: torch.cat([each, each]) for name, each in text.items()}
    gate = gate_of([True, *[False] * (T - 2), True])
    with restoring(module):
        split = decompose_shift(module, twice, rows=[T - 2], gate=gate)
        patched = (
            patch_heads(module, twice, rows=[T - 2], gate=gate).double() @ split.direction.double()
        )
        lost = knock_out(TargetWord.of(module, text, [T - 2]), [[3], [T - 1]])
    by_head = split.table.sum(-1)
    assert patched.shape == by_head.shape
    assert torch.corrcoef(torch.stack([patched.flatten(), by_head.flatten()]))[0, 1] > 0.9
    assert lost[0].norm() > 1e-3
    causal = family != "roberta"
    assert (lost[1].norm() < 1e-5) == causal  # what stands behind is not read anyway


def test_stand_ins_are_common_whole_words(model):
    drawn = [model.tokenizer.decode([token]) for token in common_words(model)]
    assert len(set(drawn)) == 8
    assert all(word.isalpha() for word in drawn)
    assert drawn == [model.tokenizer.decode([token]) for token in common_words(model)]
    assert available_interventions(model) == ("mask", "replace", "knock-out", "delete")


def test_the_right_side_of_a_minimal_pair_is_higher(model):
    """In “The bank was full of {mud|cash}.” bank moves toward money; so in 95 % of such pairs."""
    pairs = json.loads((DATA / "minimal_pairs.json").read_text("utf-8"))
    sentences = json.loads((DATA / "sense_sentences.json").read_text("utf-8"))
    higher = []
    for pair in pairs:
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
            continue  # a cue of more pieces than the other
        found = attnviz.shift(pair["word"], high, reference=low, toward=regions, model=model)
        assert found.decomposition.credit_error < 1e-5
        higher.append(found.decomposition.total > 0)
    assert len(higher) >= 22
    assert sum(higher) / len(higher) >= 0.95
