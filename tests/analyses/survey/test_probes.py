"""Probes name the heads of a model made by hand and confirm them by ablation; random heads not."""

import itertools
from collections import Counter
from dataclasses import replace
from random import Random

import pytest
import torch
from families import tiny
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
)

import attnviz
from attnviz import InputError
from attnviz.analyses.survey import probes
from attnviz.analyses.survey.probes import ProbeGroup, _draw_sets, confirm, find_probes

WORDS, LENGTH, HEADS = 30, 41, 21
HEAD = 42  # features, of which a head that reads positions needs 41
WIDTH = HEADS * HEAD
POSITION, TOKEN = slice(0, 41), slice(41, 71)
COPY, ANSWER = slice(71, 101), slice(101, 131)
NAMES = [a + b for a, b in itertools.product("bcdfgh", "aeiou")]
MUCH = 30.0


def write(tensor, source, target, value, shift=0):
    """Map each direction of a part of the vector to the one at the same place of another part."""
    for n in range(source.stop - source.start - shift):
        tensor[source.start + n + shift, target + n] = value


def tokenizer(words=NAMES, unknown="ba"):
    """Return a tokenizer that knows no other words, and pads with the first."""
    vocabulary = Tokenizer(models.WordLevel({name: n for n, name in enumerate(words)}, unknown))
    vocabulary.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=vocabulary, pad_token=words[0])


def group_of(names, model, seed=0):
    """Return probes with their texts."""
    found = find_probes(names)
    return ProbeGroup(found, found[0].make(model, seed))


def gpt2(seed, width=WIDTH, heads=HEADS, words=WORDS, length=LENGTH):
    """Return a random GPT-2 of two layers, and a head that predicts words."""
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=words, n_positions=length, n_embd=width, n_layer=2, n_head=heads,
        n_inner=8, tie_word_embeddings=False, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    return GPT2LMHeadModel(config).eval()


@pytest.fixture(scope="module", autouse=True)
def _few_texts():
    """Make few texts, and ablate heads on fewer."""
    with pytest.MonkeyPatch.context() as patch:
        for kind, count in (("repeated", 20), ("ioi", 48)):
            patch.setitem(probes.TEXTS, kind, count)
        patch.setattr(probes, "_SENTENCES", 3)
        patch.setattr(probes, "_ABLATED_TEXTS", 4)
        yield


@pytest.fixture(scope="module")
def planted():
    """Return a GPT-2 whose head 0.0 copies the previous token, and 1.0 what followed it before."""
    module = gpt2(0)
    with torch.no_grad():
        for block in module.transformer.h:
            for part in (block.attn.c_attn, block.attn.c_proj, block.mlp.c_proj):
                part.weight.zero_()
        module.transformer.wte.weight.zero_()[:, TOKEN] = torch.eye(WORDS)
        module.transformer.wpe.weight.zero_()[:, POSITION] = torch.eye(LENGTH)
        module.lm_head.weight.zero_()[:, ANSWER] = MUCH * torch.eye(WORDS)
        before, after = (block.attn for block in module.transformer.h)
        write(before.c_attn.weight, POSITION, 0, MUCH, shift=1)  # query: the position before
        write(before.c_attn.weight, POSITION, WIDTH, MUCH)
        write(before.c_attn.weight, TOKEN, WIDTH + HEAD, 1.0)  # keys of an idle head
        write(before.c_attn.weight, TOKEN, 2 * WIDTH, 1.0)
        before.c_proj.weight[:HEAD, COPY][range(WORDS), range(WORDS)] = 1.0
        write(after.c_attn.weight, TOKEN, 0, 4.5)
        write(after.c_attn.weight, COPY, WIDTH, 1.0)
        write(after.c_attn.weight, TOKEN, 2 * WIDTH, 1.0)
        after.c_proj.weight[:HEAD, ANSWER][range(WORDS), range(WORDS)] = 1.0
    return attnviz.load(module, tokenizer=tokenizer())


@pytest.fixture(scope="module")
def surveyed(planted):
    """Return the survey of the model made by hand, with the probes of both heads."""
    return attnviz.survey(probe=["induction", "previous"], model=planted)


def title(figure):
    return figure.texts[0].get_text()


def test_the_heads_made_by_hand_are_named_and_confirmed(surveyed):
    roles = {str(head): role for head, role in zip(surveyed.heads, surveyed.roles, strict=True)}
    named = {head: role for head, role in roles.items() if role in ("induction", "previous token")}
    assert named == {"0.0": "previous token", "1.0": "induction"}
    for confirmation in surveyed.confirmations:
        assert confirmation.confirmed
        assert confirmation.accuracy > 0.9
        assert confirmation.accuracy_without < 0.2
        assert min(confirmation.random_accuracies) == confirmation.accuracy  # the other is idle
        assert "is confirmed: copying is right in 99% (" in confirmation.sentence
        assert "without the head in" in confirmation.sentence
        assert surveyed.name_of(confirmation.role) == confirmation.role
    assert [one.heads for one in surveyed.confirmations] == [((1, 0),), ((0, 0),)]
    assert surveyed.agreement.verdict == surveyed.checked_agreement.verdict == "verified"
    assert "log-probabilities of answers" in [one.name for one in surveyed.agreement.analysis]
    assert title(surveyed.plot()).startswith("Copying falls from 99% to ")


LATER = [pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 10)]


@pytest.mark.parametrize("seed", [0, *LATER])
def test_no_head_of_a_random_model_is_confirmed(seed):
    model = attnviz.load(gpt2(seed, width=88, heads=22), tokenizer=tokenizer())
    result = attnviz.survey(probe=["induction", "previous", "duplicate", "sink"], model=model)
    assert not any(one.confirmed for one in result.confirmations)
    # Nor is any other head, whatever its name.
    roles = ["induction" if str(head) == f"1.{seed}" else "" for head in result.heads]
    group = group_of("induction", model, seed)
    (named,), _ = confirm(model, group, result.heads, roles, seed)
    assert len(named.random_accuracies) == 20
    assert not named.confirmed


def test_a_wrong_name_is_not_confirmed(planted, surveyed):
    group = group_of("induction,previous", planted)
    idle = {"0.2": "previous token", "1.1": "induction"}
    roles = [idle.get(str(head), "") for head in surveyed.heads]
    confirmations, check = confirm(planted, group, surveyed.heads, roles)
    assert check.difference <= check.tolerance
    for confirmation in confirmations:
        assert not confirmation.confirmed
        assert "is not confirmed" in confirmation.sentence
    doubted = replace(
        surveyed, confirmations=confirmations, agreement=replace(surveyed.agreement, digest=None)
    )
    assert doubted.name_of("induction") == "looks like “induction”, not confirmed"
    figure = doubted.plot()
    assert "Copying" not in title(figure)
    assert any("without as many random heads" in text.get_text() for text in figure.texts)


def test_random_sets_have_as_many_heads_in_each_layer_and_none_that_is_named():
    """Fewer heads are ablated in layers with few others, whose effect random sets would share."""
    named = [(0, head) for head in range(6)] + [(1, head) for head in range(8)] + [(2, 4), (3, 1)]
    ablated, sets = _draw_sets(named, Counter({0: 9, 1: 9, 2: 9, 3: 6}), Random(0))
    assert Counter(layer for layer, _ in ablated) == {0: 2, 2: 1, 3: 1}  # layer 1 has one other
    assert set(ablated) <= set(named)
    assert len({frozenset(one) for one in sets}) == len(sets) == 20
    for one in sets:
        assert Counter(layer for layer, _ in one) == {0: 2, 2: 1, 3: 1}
        assert len(set(one)) == 4
        assert not set(one) & set(named)


def test_a_role_is_not_confirmed_where_nothing_is_lost_or_nothing_is_done(surveyed):
    confirmation = surveyed.confirmations[0]
    randomly = {"random_log_probabilities": (-4.8,) * 20, "random_accuracies": (0.41,) * 20}
    better = replace(confirmation, log_probability=-5.0, log_probability_without=-4.9, **randomly)
    assert not better.confirmed
    worse = replace(better, log_probability_without=-5.1)
    assert worse.confirmed
    assert not replace(worse, reason="copying is right in 3% only").confirmed


def test_too_few_other_heads_confirm_nothing():
    model = attnviz.load(gpt2(0, width=88, heads=4), tokenizer=tokenizer())
    group = group_of("sink", model)
    heads = attnviz.survey(probe="sink", model=model).heads
    roles = ["rests on the first token", *[""] * 7]
    (confirmation,), check = confirm(model, group, heads, roles)
    assert confirmation.reason == "too few other heads to compare with"
    assert check is None


def test_a_model_that_predicts_no_tokens_confirms_nothing(model):
    model = attnviz.load(tiny("distilbert"), tokenizer=model.tokenizer)
    result = attnviz.survey(probe="previous", model=model)
    (confirmation,) = result.confirmations
    assert not confirmation.confirmed
    assert confirmation.sentence == (
        "“previous token” is not confirmed: the model predicts no tokens"
    )
    assert result.plot() is not None


def test_probes_are_found_by_name_and_stand_alone():
    for arguments, options, message in (
        ((), {"probe": "inducton"}, "Did you mean"),
        ((), {"probe": "sink,ioi"}, "These probes have different texts"),
        ((["a text"],), {"probe": "sink"}, "Give one of these: texts"),
        ((), {}, "Give one of these: texts"),
    ):
        with pytest.raises(InputError, match=message):
            attnviz.survey(*arguments, **options)


def repeated(texts, lengths):
    """Return random sequences of words, each of them twice in a row."""
    draw = Random(0)
    halves = [draw.sample(NAMES, lengths[n % len(lengths)] // 2) for n in range(texts)]
    return [" ".join([*half, *half]) for half in halves]


@pytest.mark.parametrize("lengths", [[20], [12, 14, 16, 18, 20, 22, 24]])
def test_heads_are_named_on_texts_of_the_user_too(planted, lengths):
    result = attnviz.survey(repeated(40, lengths), model=planted)
    roles = {str(head): role for head, role in zip(result.heads, result.roles, strict=True)}
    assert roles["0.0"] == "previous token"
    assert roles["1.0"] == "induction"
    assert not result.notes


@pytest.mark.parametrize("texts", [14, 16])
def test_too_few_texts_to_name_heads_are_reported(planted, texts):
    result = attnviz.survey(repeated(texts, [20]), model=planted)
    too_few = "too few texts to name heads: 14, at least 16"
    assert any(result.roles) == (texts == 16)
    assert result.notes == (() if texts == 16 else (too_few,))


# --- needles and names


CONTENT, PART = 28, 32  # of a vector of words, and of a head
PEOPLE = ["Mary", "John", "Tom", "James", "Paul", "Anna", "Robert", "David", "Sarah", "Peter"]
THINGS = [a + b for a, b in itertools.product("bdf", "aeiouy")]
VOCABULARY = ["[PAD]", "?", "is", "to", *THINGS, *PEOPLE]
THIS, OTHER, WRITTEN = (slice(start, start + CONTENT) for start in (0, 28, 56))
IS, TO, NAME, WORD, CONSTANT, PLACE = range(84, 90)
LONGEST = 160


@pytest.fixture(scope="module")
def retrieving():
    """Return a GPT-2 whose head 1.0 moves the name that 0.0 has not read, and 1.1 retrieves."""
    width = HEADS * PART
    module, eye = gpt2(0, width, HEADS, len(VOCABULARY), LONGEST), torch.eye(CONTENT)
    with torch.no_grad():
        for block in module.transformer.h:
            for part in (block.attn.c_attn, block.attn.c_proj, block.mlp.c_proj):
                part.weight.zero_()
        embedding = module.transformer.wte.weight.zero_()
        embedding[:, CONSTANT] = 1
        embedding[4:, THIS], embedding[4:, WORD] = eye, 1
        embedding[4 + len(THINGS) :, NAME] = 1
        embedding[2, IS] = embedding[3, TO] = 1
        module.transformer.wpe.weight.zero_()[:, PLACE] = 0.02 * torch.arange(LONGEST)
        module.lm_head.weight.zero_()[4:, WRITTEN] = 0.1 * eye  # two needles: no sure choice
        before, after = (block.attn for block in module.transformer.h)
        query, key, value = 0, width, 2 * width
        before.c_attn.weight[TO, query] = 1  # reads the last name
        before.c_attn.weight[NAME, key], before.c_attn.weight[PLACE, key] = 30, 20
        before.c_attn.weight[THIS, value : value + CONTENT] = eye
        before.c_proj.weight[:CONTENT, OTHER] = 0.1 * eye
        after.c_attn.weight[OTHER, query : query + CONTENT] = -0.5 * eye  # another name
        after.c_attn.weight[THIS, key : key + CONTENT] = eye
        after.c_attn.weight[TO, query + CONTENT] = 0.5
        after.c_attn.weight[NAME, key + CONTENT] = 1
        after.c_attn.weight[IS, query + PART] = 0.5
        after.c_attn.weight[WORD, key + PART] = 1
        for head in (0, PART):
            after.c_attn.weight[THIS, value + head : value + head + CONTENT] = eye
            after.c_proj.weight[head : head + CONTENT, WRITTEN] = eye
    return attnviz.load(module, tokenizer=tokenizer(VOCABULARY, "?"))


def test_the_head_made_by_hand_is_named_by_the_answers_that_it_reads(retrieving, monkeypatch):
    monkeypatch.setitem(probes.TEXTS, "retrieval", 24)
    (confirmation,) = attnviz.survey(probe="retrieval", model=retrieving).confirmations
    assert confirmation.heads == ((1, 1),)


def test_no_head_of_a_random_model_retrieves_or_moves_names():
    model = attnviz.load(
        gpt2(1, 88, 22, len(VOCABULARY), LONGEST), tokenizer=tokenizer(VOCABULARY, "?")
    )
    for probe in ("retrieval", "ioi,inhibition"):
        result = attnviz.survey(probe=probe, model=model)
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
    result = attnviz.survey(probe="ioi", model=encoder)
    assert result.count[:, result.of("name mover")].min() == 48


@pytest.mark.parametrize("probe", ["retrieval", "ioi", "inhibition"])
def test_a_model_that_predicts_no_tokens_is_refused(probe, model):
    with pytest.raises(InputError, match="A probe of answers needs a model that predicts next"):
        attnviz.survey(probe=probe, model=model)
