"""Sense separation on vectors with a known outcome, and the position of the word in a sentence."""

import pytest
import torch

import attnviz
from attnviz import InputError
from attnviz.analyses.senses import bundled, compute, read_sentences
from attnviz.analyses.senses.compute import (
    Design,
    classify,
    interval,
    nearest,
    p_value,
    score,
)

TWO = [0] * 8 + [1] * 8


def noise(n, d=24, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed)).double()


def one_by_one(vectors, labels, sentences, centered):
    """Return the result of `nearest`, computed directly for one assignment of the senses."""
    found = []
    for i in range(len(vectors)):
        rest = sentences != sentences[i]
        middle = vectors[rest].mean(0) if centered else 0
        means = torch.stack([vectors[rest & (labels == s)].mean(0) for s in labels.unique()])
        cosines = torch.cosine_similarity(vectors[i] - middle, means - middle, dim=-1)
        found.append(float(cosines.argmax() == labels[i]))
    return torch.tensor(found).double()


@pytest.mark.parametrize("centered", [True, False])
@pytest.mark.parametrize("repeated", [False, True])
def test_batched_assignments_match_single_ones(centered, repeated):
    labels = torch.tensor([0] * 5 + [1] * 4 + [2] * 6)
    sentences = torch.arange(15) // 2 if repeated else torch.arange(15)
    ways = torch.stack([labels, labels.flip(0), labels.roll(1)])
    vectors = noise(15) + 3
    found = nearest(vectors, ways, sentences, centered=centered)
    for row, way in zip(found, ways, strict=True):
        assert torch.equal(row, one_by_one(vectors, way, sentences, centered))


def test_clear_senses_are_separated_except_a_misplaced_vector():
    vectors = noise(16) * 0.1
    vectors[:8, 0] += 1
    vectors[8:, 0] -= 1
    design = Design.of(TWO, list(range(16)), shuffles=500)
    outcome = classify(vectors, design)
    assert outcome.right.tolist() == [1] * 16
    found = score(vectors, design, outcome)
    assert found.p_value < 0.01
    assert found.shuffled < 0.9
    assert found.silhouette > 0.8
    vectors[3, 0] -= 2
    outcome = classify(vectors, design)
    assert outcome.right.tolist() == [1, 1, 1, 0] + [1] * 12
    assert score(vectors, design, outcome).recalls == (7 / 8, 1)


def test_a_rare_sense_that_is_never_found_shows_in_its_recall_and_not_in_the_accuracy():
    vectors = noise(30, seed=3) * 0.1
    vectors[:, 0] += 1
    vectors[:26, 1] += 1
    vectors[26:, 1] += torch.tensor([1, 1, 1, -9.0])
    design = Design.of([0] * 26 + [1] * 4, list(range(30)), shuffles=200)
    found = score(vectors, design, classify(vectors, design))
    assert found.accuracy > 0.8
    assert found.recalls[1] <= 0.25
    assert found.macro_recall == pytest.approx(sum(found.recalls) / 2)


@pytest.mark.parametrize("k", [2, 3])
def test_equal_vectors_are_ties_and_count_as_chance(k):
    labels = torch.arange(4 * k) % k
    same = torch.ones(4 * k, 5)
    assert nearest(same, labels[None], torch.arange(4 * k)).mean().item() == pytest.approx(1 / k)


def test_shuffled_senses_reach_chance_and_noise_gives_even_p_values():
    values = []
    for seed in range(150):
        design = Design.of(TWO, list(range(16)), shuffles=199)
        outcome = classify(noise(16, seed=1000 + seed), design)
        assert outcome.shuffled.mean().item() == pytest.approx(0.5, abs=0.08)
        values.append(p_value(outcome.right.mean().item(), outcome.shuffled))
    values = torch.tensor(values)
    for level in (0.05, 0.25, 0.5):  # never too small: ties only make it larger
        assert (values <= level).double().mean() <= level + 0.07
    assert 0.4 < values.mean() < 0.75


def test_whole_sentences_are_shuffled():
    design = Design.of([0, 0, 0, 1, 1, 0, 1], [0, 0, 1, 2, 2, 3, 4], shuffles=50)
    for row in design.shuffled:
        assert row[0] == row[1]
        assert row[3] == row[4]
        assert sorted(row[[0, 2, 3, 5, 6]].tolist()) == [0, 0, 0, 1, 1]
    again = Design.of([0, 0, 0, 1, 1, 0, 1], [0, 0, 1, 2, 2, 3, 4], shuffles=50)
    assert torch.equal(design.shuffled, again.shuffled)


@pytest.mark.parametrize("centered", [True, False])
def test_a_weighted_sentence_counts_like_as_many_occurrences(centered):
    labels = torch.tensor([0] * 5 + [1] * 4 + [2] * 6)
    times = torch.randint(1, 10, (15,), generator=torch.Generator().manual_seed(0))
    vectors = noise(15) + 3
    weighted = nearest(
        vectors, labels[None], torch.arange(15), weights=times[None].double(), centered=centered
    )
    repeated = nearest(
        vectors.repeat_interleave(times, 0),
        labels.repeat_interleave(times)[None],
        torch.arange(15).repeat_interleave(times),
        centered=centered,
    )
    assert torch.equal(weighted.repeat_interleave(times, 1), repeated)
    plain = nearest(vectors, labels[None], torch.arange(15), centered=centered)
    assert not torch.equal(weighted, plain)


def test_the_interval_has_about_its_nominal_coverage():
    """Intervals of fixed hits cover the truth in 0.39 to 0.85 of such draws."""
    labels = torch.arange(6) % 2
    design = Design.of(labels.tolist(), list(range(6)), shuffles=200)
    found = []
    for seed in range(400):
        vectors = noise(6, seed=seed)
        vectors[:, 0] += 1.11 * (2 * labels - 1)
        outcome = classify(vectors, design)
        accuracy = outcome.right.mean().item()
        found.append((accuracy, *interval(accuracy, outcome.refitted, 6)))
    accuracy, low, high = torch.tensor(found).T
    assert accuracy.mean() == pytest.approx(0.7, abs=0.03)
    assert ((low <= accuracy) & (accuracy <= high)).all()
    assert 0.92 < ((low <= 0.7) & (high >= 0.7)).double().mean() < 0.99


@pytest.mark.parametrize("sentences", [4, 16])
def test_perfect_accuracy_still_has_an_interval(sentences):
    same = torch.ones(100).double()
    low, high = interval(1.0, same, sentences)
    assert (low, high) == (pytest.approx(sentences / (sentences + 1.96**2), abs=1e-4), 1)
    assert interval(0.0, same, sentences) == (0, pytest.approx(1 - low))
    for n in range(4, 60):
        assert interval(1.0, same, n)[1] == 1
        assert interval(0.0, same, n)[0] == 0
    # Refits that differ show that the sentences share their centroids.
    assert interval(1.0, torch.tensor([0.2, 1.0] * 50), sentences)[0] < low - 0.1


def test_shared_centroids_cost_half_of_the_sentences_at_most():
    refits = torch.tensor([0.0, 1.0] * 50)  # no sentence is classified independently of another
    half = 1.96**2 / 8
    expected = (half * 1 + half**2) ** 0.5 / (1 + half) / 2  # Wilson's interval of 8 sentences
    assert interval(0.5, refits, 16) == pytest.approx((0.5 - expected, 0.5 + expected), abs=1e-4)


def test_occurrences_of_one_sentence_make_the_interval_no_narrower():
    vectors, senses = noise(16, d=6), [0, 1] * 8
    alone = Design.of(senses, list(range(16)), shuffles=300)
    repeated = torch.arange(16).repeat_interleave(5)
    often = Design.of([senses[n] for n in repeated], repeated.tolist(), shuffles=300)
    one = score(vectors, alone, classify(vectors, alone))
    other = score(vectors[repeated], often, classify(vectors[repeated], often))
    assert (other.accuracy, other.low, other.high) == pytest.approx(
        (one.accuracy, one.low, one.high)
    )


def test_the_bundled_sentences_are_enough_and_balanced():
    assert list(bundled()) == [
        "bank", "check", "apple", "bat", "crane", "spring", "mouse", "seal", "light", "pitcher",
    ]  # fmt: skip
    for word, senses in bundled().items():
        sentences = read_sentences(word, None)
        assert len(sentences) == sum(map(len, senses.values()))  # no duplicates
        assert all(len(sentence.places) == 1 for sentence in sentences)
        assert len({len(texts) for texts in senses.values()}) == 1
        early = []
        for sense in senses:
            mine = [s for s in sentences if s.sense == sense]
            assert len(mine) >= 8
            early.append(sum(len(s.text[: s.places[0][0]].split()) for s in mine) / len(mine))
        assert max(early) - min(early) < 0.6, (word, early)


RIVER = ["We sat on the bank.", "The bank was muddy."]
MONEY = ["The bank lent money.", "She owns a bank."]


@pytest.mark.parametrize(
    ("senses", "said"),
    [
        ({"river": RIVER}, "At least two senses of 'bank' are needed, not 1"),
        (
            {"river": RIVER, "money": MONEY[:1]},
            "tells fewer than two sentences of 'money' from the others",
        ),
        ({}, "are needed, not 0. Add another one: --sentences"),
        ({"river": RIVER, "money": []}, "The sense 'money' has no sentences"),
        (
            {"river": RIVER, "money": [*MONEY, "The bnak lends."]},
            r"not in 'The bnak lends.' \(money 3\). Did you mean bnak\?",
        ),
        ({"river": RIVER, " ": MONEY}, "The name of a sense is empty"),
    ],
)
def test_sentences_that_cannot_be_used(senses, said):
    with pytest.raises(InputError, match=said):
        attnviz.senses("bank", senses)


def test_vectors_that_are_not_those_of_the_model_as_loaded_are_not_verified(monkeypatch, model):
    honest = compute.hidden_states

    def off(module, inputs, *, as_loaded=False):
        states = honest(module, inputs, as_loaded=as_loaded)
        return states if as_loaded else (*states[:3], 1.001 * states[3], *states[4:])

    monkeypatch.setattr(compute, "hidden_states", off)
    report = attnviz.senses("bank", {"river": RIVER, "money": MONEY}, model=model).agreement
    assert "NOT VERIFIED: the hidden states are off by 0.1\xa0%" in report.summary()
