"""The senses of a word in the bundled model and in others, and their printed output."""

import numpy as np
import pytest
import torch
from families import tiny

import attnviz
from attnviz import InputError, ModelError

TWO = {
    "river": ["We sat on the bank.", "The bank was muddy.", "Grass covers the bank of the creek."],
    "money": ["The bank lent money.", "She owns a bank.", "His loan came from a bank in Bern."],
}


@pytest.fixture(scope="module")
def two(model):
    return attnviz.senses("bank", TWO, model=model)


def test_context_determines_the_sense_and_the_word_alone_does_not(model):
    found = attnviz.senses("bank", model=model)
    assert len(found.senses) == 2
    assert len(found.occurrences) == found.sentences == 20
    static, best = found.scores[0], found.scores[found.best]
    assert static.accuracy == pytest.approx(found.chance, abs=0.11)
    assert static.low < found.chance < static.high
    assert best.accuracy >= 0.92
    assert best.accuracy > found.context.accuracy
    assert best.accuracy > best.shuffled > found.chance
    assert found.scores[-1].low > found.scores[-1].shuffled > found.chance
    assert found.p_best == best.p_value == pytest.approx(1 / 2001)
    assert min(best.recalls) >= 0.8
    assert max(score.silhouette for score in found.scores) > 0.3 > static.silhouette
    assert found.agreement.verdict == "verified"
    assert len(found.agreement.checks) == 20 * 6 * 7
    assert found.provenance.text is None


def test_vectors_do_not_depend_on_what_else_is_in_the_batch(model, two):
    longer = {**TWO, "money": [*TWO["money"], "A bank" + " and so on" * 10]}
    other = attnviz.senses("bank", longer, model=model, raw=True)
    alone = attnviz.senses("bank", TWO, model=model, raw=True)
    assert torch.allclose(other.vectors[:, :6], alone.vectors, atol=1e-4)
    centered = alone.vectors - alone.vectors.mean(1, keepdim=True)
    assert torch.allclose(two.vectors, centered, atol=1e-6)


def test_pieces_are_pooled_and_inflections_and_repeats_count(model):
    senses = {
        "one": ["An otterbank sleeps; the Otterbank wakes.", "Two otterbanks slept."],
        "two": ["The otterbank lent money.", "Her otterbank is closed."],
    }
    found = attnviz.senses("otterbank", senses, model=model)
    assert [one.word for one in found.occurrences] == [
        "otterbank", "Otterbank", "otterbanks", "otterbank", "otterbank",
    ]  # fmt: skip
    assert found.occurrences[0].pieces == ("otter", "##bank")
    assert "mean over the pieces of the word where it is split (5 of 5)" in found.notes
    assert "also counted as “otterbank”: “otterbanks” (1)" in found.notes
    assert any(note.startswith("“one” makes up 60%") for note in found.notes)
    text = senses["two"][0]
    with torch.no_grad():
        ids = model.tokenizer(text, return_tensors="pt")
        states = model.module(**ids, output_hidden_states=True).hidden_states
    raw = attnviz.senses("otterbank", senses, model=model, raw=True)
    pooled = torch.stack([state[0, 2:4].double().mean(0) for state in states])
    assert torch.allclose(raw.vectors[:, 3], pooled, atol=1e-5)


def test_sentences_that_the_model_reads_alike_count_once(model, two):
    alike = {sense: [*texts, texts[0].upper()] for sense, texts in TWO.items()}
    found = attnviz.senses("bank", alike, model=model)
    assert found.scores == two.scores
    assert [one.sentence for one in found.occurrences] == [one.sentence for one in two.occurrences]
    left_out = "sentences left out because the model reads the tokens of another: 2"
    assert found.notes == (left_out, *two.notes)


@pytest.mark.parametrize(
    ("money", "said"),
    [
        ([*TWO["money"], TWO["river"][0].upper()], "reads the same tokens in 'We sat on the bank."),
        (
            [TWO["money"][0], TWO["money"][0].upper()],
            "tells fewer than two sentences of 'money' from",
        ),
    ],
)
def test_senses_need_sentences_that_the_model_tells_apart(model, money, said):
    with pytest.raises(InputError, match=said):
        attnviz.senses("bank", {"river": TWO["river"], "money": money}, model=model)


def test_what_each_occurrence_attends_to(model, two):
    layer = two.attention_layer
    assert layer == max(two.best - 1, 0)
    one = two.occurrences[2]
    assert one.sentence == "Grass covers the bank of the creek."
    weights = model.attend(one.sentence).weights(layer)[:, 4].mean(0)
    words = {"Grass": 1, "covers": 2, "the": 3, "of": 5, "creek": 7}
    shares = dict(one.attended)
    assert {*shares} == {*words}
    assert sum(share for _, share in one.attended) == pytest.approx(1)
    total = weights[[1, 2, 3, 5, 6, 7]].sum()
    for word in ("Grass", "covers", "creek"):
        assert shares[word] == pytest.approx((weights[words[word]] / total).item(), abs=1e-4)
    assert one.strongest in ("Grass", "covers", "creek")
    assert one.strongest.casefold() in dict(two.strongest("river"))


def test_a_decoder_reads_left_to_right_and_says_so(tokenizer):
    found = attnviz.senses("bank", TWO, model=attnviz.load(tiny("llama"), tokenizer=tokenizer))
    assert any("left to right" in note for note in found.notes)
    assert found.occurrences[1].strongest == ""  # “The bank …”: only “The” precedes it
    assert len(found.scores) == len(found.vectors)


def test_occurrences_that_a_causal_model_cannot_tell_apart_are_in_no_score(tokenizer):
    """They are those of other senses, and all but the first of one sense."""
    alike = {
        "river": [*TWO["river"], "The bank is green.", "Grass covers the bank of a pond."],
        "money": [*TWO["money"], "Our savings bank failed."],
    }
    model = attnviz.load(tiny("llama"), tokenizer=tokenizer)
    found = attnviz.senses("bank", alike, model=model)
    assert found.alike == (1, 3, 4, 5)  # “The bank”, three times, and “Grass covers the bank”
    without = {
        "river": [alike["river"][n] for n in (0, 2)],
        "money": alike["money"][1:],
    }
    left = attnviz.senses("bank", without, model=model)
    kept = [n for n in range(9) if n not in found.alike]
    assert [s.accuracy for s in found.scores] == pytest.approx([s.accuracy for s in left.scores])
    assert found.context == left.context
    assert torch.allclose(found.vectors[:, kept], left.vectors, atol=1e-5)
    assert torch.equal(
        found.right.isnan().any(0), torch.isin(torch.arange(9), torch.tensor(found.alike))
    )
    assert found.counts == {"river": 2, "money": 3}
    (note,) = [note for note in found.notes if "alike up to the word" in note]
    assert note.endswith("4 of 9 (“The bank …”, “Grass covers the bank …”)")
    both = attnviz.load(tiny("bert"), tokenizer=tokenizer)
    assert attnviz.senses("bank", alike, model=both).alike == ()


def test_too_few_occurrences_that_a_causal_model_tells_apart_are_refused(tokenizer):
    model = attnviz.load(tiny("llama"), tokenizer=tokenizer)
    alike = {"river": ["The bank is green.", "A bank."], "money": ["The bank lends.", "Her bank."]}
    with pytest.raises(InputError, match="of 'river' from the others up to the word, and reads no"):
        attnviz.senses("bank", alike, model=model)


# One word in one sense. The topic of a sentence is in its other words, or in none of them.
SAID = {
    "kitchen": ("pan spoon bowl ladle kettle sieve whisk jug", "cook chef baker waiter"),
    "court": ("file robe verdict lawsuit contract wig statute subpoena", "judge lawyer clerk jury"),
}
FRAMES = (
    "The {0} near the {2} belonged to the {1}.", "A {1} put the {0} beside the {2} at noon.",
    "Under the {2} lay the {0} that the {1} had lost.", "My {2} was sold with a {0} to some {1}.",
)  # fmt: skip


def one_sense(word):
    """Return sentences of one sense of a word under two topics."""
    generator = np.random.default_rng(0)
    listed = []
    for topic, (things, people) in SAID.items():
        for thing in generator.permutation(things.split()):
            person = generator.choice(people.split())
            frame = FRAMES[generator.integers(len(FRAMES))]
            listed.append((topic, frame.format(thing, person, word)))
    return {name: [sentence for topic, sentence in listed if topic == name] for name in SAID}


def test_no_headline_says_that_a_word_of_one_sense_splits(model):
    found = attnviz.senses("table", one_sense("table"), model=model)
    assert "splits into" not in found.headline


def test_a_model_that_merges_positions_is_refused(tokenizer):
    model = attnviz.load(tiny("funnel"), tokenizer=tokenizer)
    with pytest.raises(ModelError, match="does not pass on one vector of each token"):
        attnviz.senses("bank", TWO, model=model)


def test_a_tokenizer_without_offsets_gives_the_same(model, two, monkeypatch):
    monkeypatch.setattr(type(model.tokenizer), "is_fast", False)
    without = attnviz.senses("bank", TWO, model=model)
    assert str(without.columns_of_table()) == str(two.columns_of_table())


def test_a_sentence_longer_than_the_model_is_named(model):
    senses = {**TWO, "money": [*TWO["money"], "The bank" + " grew" * 600]}
    with pytest.raises(
        InputError, match=r"The bank grew.*money\): .* has 604 tokens, and .* at most 512"
    ):
        attnviz.senses("bank", senses, model=model)
