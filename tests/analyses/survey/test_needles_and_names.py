"""Heads made by hand that retrieve a word, or move a name, are named and confirmed; others not."""

import itertools
from dataclasses import replace

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM

import attnviz
from attnviz import InputError
from attnviz.analyses.survey import probes
from attnviz.analyses.survey.probes import Answers
from attnviz.heads import STATISTICS
from tests.analyses.survey.test_probes import gpt2, tokenizer

HEADS, HEAD, CONTENT = 21, 32, 28
WIDTH = HEADS * HEAD
NAMES = ["Mary", "John", "Tom", "James", "Paul", "Anna", "Robert", "David", "Sarah", "Peter"]
WORDS = [a + b for a, b in itertools.product("bdf", "aeiouy")]
VOCABULARY = ["[PAD]", "?", "is", "to", *WORDS, *NAMES]
TOKEN, COPY, ANSWER = (slice(start, start + CONTENT) for start in (0, 28, 56))
IS, TO, NAME, WORD, CONSTANT, PLACE = range(84, 90)
LONGEST = 160


def small_gpt2(seed, width=WIDTH, heads=HEADS):
    return gpt2(seed, width, heads, len(VOCABULARY), LONGEST)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Make few short texts, and ablate heads on fewer."""
    for probe, count in (("repeated", 20), ("ioi", 48)):
        monkeypatch.setitem(probes.TEXTS, probe, count)
    monkeypatch.setattr(probes, "_SENTENCES", 3)
    monkeypatch.setattr("attnviz.analyses.survey.probes._ABLATED_TEXTS", 4)


@pytest.fixture(scope="module")
def planted():
    """Return a GPT-2 whose head 1.0 moves the name that 0.0 has not read, and 1.1 retrieves."""
    module, eye = small_gpt2(0), torch.eye(CONTENT)
    with torch.no_grad():
        for block in module.transformer.h:
            for part in (block.attn.c_attn, block.attn.c_proj, block.mlp.c_proj):
                part.weight.zero_()
        embedding = module.transformer.wte.weight.zero_()
        embedding[:, CONSTANT] = 1
        embedding[4:, TOKEN], embedding[4:, WORD] = eye, 1
        embedding[4 + len(WORDS) :, NAME] = 1
        embedding[2, IS] = embedding[3, TO] = 1
        module.transformer.wpe.weight.zero_()[:, PLACE] = 0.02 * torch.arange(LONGEST)
        module.lm_head.weight.zero_()[4:, ANSWER] = 0.1 * eye  # two needles: no sure choice
        before, after = (block.attn for block in module.transformer.h)
        query, key, value = 0, WIDTH, 2 * WIDTH
        before.c_attn.weight[TO, query] = 1  # reads the last name
        before.c_attn.weight[NAME, key], before.c_attn.weight[PLACE, key] = 30, 20
        before.c_attn.weight[TOKEN, value : value + CONTENT] = eye
        before.c_proj.weight[:CONTENT, COPY] = 0.1 * eye
        after.c_attn.weight[COPY, query : query + CONTENT] = -0.5 * eye  # another name
        after.c_attn.weight[TOKEN, key : key + CONTENT] = eye
        after.c_attn.weight[TO, query + CONTENT] = 0.5
        after.c_attn.weight[NAME, key + CONTENT] = 1
        after.c_attn.weight[IS, query + HEAD] = 0.5
        after.c_attn.weight[WORD, key + HEAD] = 1
        for head in (0, HEAD):
            after.c_attn.weight[TOKEN, value + head : value + head + CONTENT] = eye
            after.c_proj.weight[head : head + CONTENT, ANSWER] = eye
    return attnviz.load(module, tokenizer=tokenizer(VOCABULARY, "?"))


def test_roles_have_different_colors(model):
    result = attnviz.survey(["The cat saw the dog."], model=model)
    roles = [one.role for one in STATISTICS if one.role and not one.resting]
    some = (*roles, *[""] * (len(result.heads) - len(roles)))
    figure = replace(result, roles=some, agreement=replace(result.agreement, digest=None)).plot()
    cells = {tuple(cell.get_facecolor()) for cell in figure.axes[0].patches}
    assert len(cells) == len(roles) + 1  # and that of heads without a role


def test_the_head_made_by_hand_is_named_by_the_answers_that_it_reads(planted, monkeypatch):
    monkeypatch.setitem(probes.TEXTS, "retrieval", 24)
    (confirmation,) = attnviz.survey(probe="retrieval", model=planted).confirmations
    assert confirmation.heads == ((1, 1),)


def test_no_head_of_a_random_model_is_named():
    model = attnviz.load(small_gpt2(1, 88, 22), tokenizer=tokenizer(VOCABULARY, "?"))
    result = attnviz.survey(probe="retrieval,ioi,inhibition", model=model)
    assert not {"retrieval", "name mover", "subject inhibition"} & set(result.roles)
    assert not any(one.confirmed for one in result.confirmations)


def test_masked_words_are_the_answers_of_an_encoder(model):
    config = BertConfig(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        initializer_range=0.5,  # so that words change each other
    )
    encoder = attnviz.load(BertForMaskedLM(config).eval(), tokenizer=model.tokenizer)
    text = probes.PROBES["ioi"].make(encoder, 0)[0]
    assert text.text.endswith(" to [MASK].")
    ids = encoder.tokenizer(text.text)["input_ids"]
    found = Answers.find(encoder, text, ids, [1, *[0] * (len(ids) - 2), 1])
    assert [ids[row] for row in found.rows] == [encoder.tokenizer.mask_token_id]
    held = [encoder.tokenizer.decode([ids[n]]) for n, one in enumerate(found.holds) if one > 0]
    assert held == [text.copied[0].lower()]
    assert sum(one < 0 for one in found.holds) == 2
    result = attnviz.survey(probe="ioi", model=encoder)
    assert result.count[:, result.of("name mover")].min() == 48


@pytest.mark.parametrize("probe", ["retrieval", "ioi", "inhibition"])
def test_a_model_that_predicts_no_tokens_is_refused(probe, model):
    with pytest.raises(InputError, match="A probe of answers needs a model that predicts next"):
        attnviz.survey(probe=probe, model=model)
