"""Changing the words named by the decomposition has an effect; the axes exclude the sentence.

On a subset of the sentences; `scripts/bench.py faithfulness` evaluates all sentences and methods.
"""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import faithfulness  # noqa: E402
from faithfulness import methods  # noqa: E402

ALL = faithfulness.ALL


@pytest.fixture(scope="module")
def judged():
    """Return what every 24th sentence gives."""
    with pytest.MonkeyPatch.context() as patch:
        selected = {"rollout": methods.METHODS["rollout"], "split": methods.split_gate}
        patch.setattr(methods, "METHODS", selected)
        sentences = faithfulness.read(ROOT / "tests" / "data" / "sense_sentences.json")
        found = faithfulness.evaluate_all(sentences, step=24)
    assert len(found) >= 8
    return found


def mean_rho(judged, method, change):
    rhos = [faithfulness.rho(each.attributions[method], each.effects[change]) for each in judged]
    return sum(rhos) / len(rhos)


def test_the_decomposition_ranks_words_like_interventions(judged):
    assert mean_rho(judged, "split", "consensus") >= 0.62
    assert min(mean_rho(judged, "split", change) for change in ALL) >= 0.50
    assert mean_rho(judged, "rollout", "consensus") < 0.3  # other methods score lower


def test_the_top_word_has_more_effect_than_a_random_one(judged):
    top, usual = faithfulness.first_and_random(
        [each.attributions["split"] for each in judged], judged
    )
    assert top.sum() / usual.sum() >= 2.5
    assert top.shape == usual.shape == (len(judged), 4)
