"""The pairs of WordNet's sentences keep their rules, and their table is what is measured."""

import hashlib
import json
import re
from collections import Counter

import pytest
import torch
import wordnet_pairs
from benchmarks import senses
from sklearn.metrics import roc_auc_score

import attnviz

STORED = json.loads(wordnet_pairs.PAIRS.read_text(encoding="utf-8"))
PAIRS = STORED["pairs"]


# --- the stored pairs


def test_each_word_has_as_many_pairs_of_one_kind_as_of_the_other():
    counts = Counter((pair["lemma"], pair["part_of_speech"], pair["same"]) for pair in PAIRS)
    assert 800 <= len(PAIRS) <= 1000
    for (lemma, part, same), count in counts.items():
        assert counts[lemma, part, not same] == count <= 3


def test_the_words_are_split_in_two_parts():
    words = {
        part: {pair["lemma"] for pair in PAIRS if pair["part"] == part}
        for part in ("choosing", "held-out")
    }
    assert not words["choosing"] & words["held-out"]
    assert abs(len(words["choosing"]) - len(words["held-out"])) <= 1
    assert {pair["part"] for pair in PAIRS} == set(words)


def test_both_sentences_of_a_pair_have_the_word_once_in_the_same_form():
    for pair in PAIRS:
        first, second = pair["sentences"]
        forms = {one["text"][one["start"] : one["end"]] for one in (first, second)}
        assert len(forms) == 1
        assert first["text"] != second["text"]
        assert (first["synset"] == second["synset"]) == pair["same"]
        for one in (first, second):
            assert len(re.findall(rf"\b{forms.copy().pop()}\b", one["text"])) == 1
            assert one["text"][one["start"] - 1] == " "


# --- the area under the curve


@pytest.fixture(scope="module")
def pairs():
    return senses.Pairs.read()


def test_vectors_of_the_sense_alone_tell_all_pairs_apart(pairs):
    names = sorted({sentence.sense for sentence in pairs.sentences})
    vectors = torch.eye(len(names), dtype=torch.double)
    planted = torch.stack([vectors[names.index(s.sense)] for s in pairs.sentences])
    noise = torch.randn(planted.shape, generator=torch.Generator().manual_seed(0)).double()
    row, mirrored, half = (
        senses.make_row("planted", pairs.held_out_areas(scores))
        for scores in (
            pairs.cosines(planted),
            -pairs.cosines(planted),
            pairs.cosines(0.1 * planted + noise / len(names) ** 0.5),
        )
    )
    assert (row.auc, row.low, row.high) == (1, 1, 1)
    assert (mirrored.auc, mirrored.low, mirrored.high) == (0, 0, 0)
    assert 0.5 < half.low < half.auc < half.high < 1


def test_intervals_of_shuffled_kinds_cover_chance(pairs):
    generator = torch.Generator().manual_seed(0)
    covered = 0
    for _ in range(40):
        scores = torch.randn(len(pairs.same), generator=generator)
        row = senses.make_row("random", pairs.held_out_areas(scores))
        covered += row.low <= 0.5 <= row.high
    assert covered >= 34


def test_areas_are_those_of_sklearn_with_ties_and_weights():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(5, (60,), generator=generator).double()
    same = torch.rand(60, generator=generator) < 0.4
    weights = torch.randint(3, (4, 60), generator=generator).double()
    expected = [roc_auc_score(same, scores, sample_weight=row) for row in weights.tolist()]
    assert senses.areas(scores, same, weights).tolist() == pytest.approx(expected)


def test_words_are_resampled_with_all_their_pairs(pairs):
    words = pairs.words[pairs.held_out]
    first = [(words == word).nonzero()[0, 0] for word in words]
    assert torch.equal(pairs.weights, pairs.weights[:, torch.stack(first)])
    assert (pairs.weights[0] == 1).all()
    drawn = torch.stack([pairs.weights[1:, (words == w).nonzero()[0, 0]] for w in words.unique()])
    assert (drawn.sum(0) == len(words.unique())).all()


# --- the vectors, and the stored table


@pytest.fixture(scope="module")
def table():
    return json.loads(senses.TABLE.read_text(encoding="utf-8"))


def test_vectors_are_those_of_senses_and_heads_those_of_steps(model):
    texts = {
        "river": ["we sat on the bank of the river", "the muddy bank was steep"],
        "money": ["my bank lent us money", "a bank failed in the crisis"],
    }
    result = attnviz.senses("bank", texts, model=model, raw=True)
    sentences = [
        senses.Sentence(one.sentence, one.sense, ((one.start, one.end),))
        for one in result.occurrences
    ]
    vectors = senses.WordVectors.of(model, sentences, heads=True)
    torch.testing.assert_close(vectors.states, result.vectors, rtol=0, atol=1e-5)
    assert not vectors.causal
    assert len(vectors.heads) == 72
    attention = model.attend(sentences[2].text)
    for (layer, head), output in zip(vectors.names, vectors.heads, strict=True):
        if head == layer:
            steps = attnviz.steps(attention, layer=layer, head=head)
            expected = steps["A"].values[attention.tokens.index("bank")]
            torch.testing.assert_close(output[2], expected.double(), rtol=0, atol=1e-5)


def test_a_causal_model_reads_a_sentence_twice():
    once = senses.Sentence("the bank lent", "money", ((4, 8),))
    twice = senses._repeat(once)
    ((start, end),) = twice.places
    assert twice.text == "the bank lent the bank lent"
    assert twice.text[start:end] == "bank"
    assert start > len(once.text)


def test_the_table_is_of_these_pairs_and_in_the_guide(table):
    assert table["sha256"] == hashlib.sha256(wordnet_pairs.PAIRS.read_bytes()).hexdigest()
    guide = senses.GUIDE.read_text(encoding="utf-8")
    start, end = (guide.index(mark) for mark in senses.MARKS)
    assert guide[start + len(senses.MARKS[0]) : end].strip() == senses.markdown(table)
    words = " ".join(guide.split())
    assert f"[{table['pairs']} pairs]" in words
    assert f"one of {table['words']} nouns and verbs" in words
    assert f"{table['held_out_pairs']} pairs of {table['held_out_words']} words" in words


def test_the_table_has_what_the_guide_says_of_it(table):
    gains = {}
    for row in table["rows"]:
        if row["score"].startswith("best"):
            gains.setdefault(row["score"], []).append((row["gain_low"], row["gain_high"]))
    both = gains.pop("best layer and other words")
    assert len(both) == len(gains["best layer"]) == 3
    assert all(low > 0 for low, _ in both)
    assert all(low < 0 < high for of_score in gains.values() for low, high in of_score)
