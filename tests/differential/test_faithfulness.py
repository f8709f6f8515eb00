"""Words that the split names are words whose change matters, sense axes fitted without them.

On a part of the sentences; `scripts/bench.py faithfulness` judges all, and other methods too.
"""

import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import faithfulness  # noqa: E402
from faithfulness import methods  # noqa: E402

ALL = faithfulness.ALL


@pytest.fixture(scope="module")
def judged():
    with pytest.MonkeyPatch.context() as patch:
        kept = {"rollout": methods.METHODS["rollout"], "split": methods.split_gate}
        patch.setattr(methods, "METHODS", kept)
        sentences = faithfulness.read(ROOT / "tests" / "data" / "sense_sentences.json")
        return faithfulness.judge_all(sentences, step=4)


def mean_rho(judged, said, change):
    rhos = [faithfulness.rho(each.attributions[said], each.effects[change]) for each in judged]
    return sum(rhos) / len(rhos)


def test_the_split_ranks_words_as_changing_them_does(judged):
    assert len(judged) >= 45
    assert mean_rho(judged, "split", "consensus") >= 0.62
    assert min(mean_rho(judged, "split", change) for change in ALL) >= 0.50
    assert mean_rho(judged, "rollout", "consensus") < 0.3  # the same yardstick finds others wanting


def test_the_first_word_takes_more_than_a_random_one(judged):
    top, usual = faithfulness.first_and_random(
        [each.attributions["split"] for each in judged], judged
    )
    assert top.sum() / usual.sum() >= 2.5
    assert top.shape == usual.shape == (len(judged), 4)


def test_what_is_printed(judged, capsys):
    faithfulness.show(judged, "ten words", faithfulness.Console(width=160))
    out = capsys.readouterr().out
    assert "rank correlation with interventions" in out
    assert f"{mean_rho(judged, 'split', 'consensus'):.2f}" in out
    assert f"{len(judged)} occurrences of ten words" in out


def test_intervals_hold_the_mean_and_narrow_with_the_sentences():
    values = torch.randn(400, generator=torch.Generator().manual_seed(0)).tolist()

    def ends(said):
        mean, low, high = (
            float(part) for part in said.replace("(", "").replace(")", "").split() if part != "–"
        )
        assert low <= mean <= high
        return high - low

    assert (
        ends(faithfulness.mean_interval(values)) < ends(faithfulness.mean_interval(values[:25])) / 2
    )
