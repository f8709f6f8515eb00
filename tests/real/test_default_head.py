"""The head that is shown by default relates words, patches or sounds, and is not set by a sink."""

from functools import cache

import numpy as np
import pytest
import torch
from fetched import PHOTO, REACTION, SCRIPTS, attended, inputs

from attnviz import attention_map, rank_heads
from attnviz.figures.cells import WeightScale
from attnviz.figures.claims import is_logarithmic

pytestmark = pytest.mark.real
TRAIN = "the train left the station on time"
WATER = "She poured the water into the glass because the child was thirsty."
PARIS = "Paris is the capital of France, and Rome is the capital of Italy."
KEYS = "The keys to the old cabinet near the window were lost, so the lawyer left."
CODE = "def add(first, second):\n    return first + second"
SPEECH = str(SCRIPTS.parent / "gallery" / "speech.flac")
CASES = [
    ("minilm", {"text": TRAIN}),
    ("minilm", {"text": WATER}),
    pytest.param("minilm", {"text": PARIS}, marks=pytest.mark.long),
    ("smollm2", {"text": TRAIN}),
    pytest.param("smollm2", {"text": WATER}, marks=pytest.mark.long),
    pytest.param("whisper-tiny.en", {"audio": SPEECH}, marks=pytest.mark.long),  # 1,500 frames
    ("dinov2-small", {"image": PHOTO}),
    ("rxnmapper", {"text": REACTION}),
    pytest.param("rxnmapper", {"text": "CCO.CC(=O)O>>CCOC(C)=O"}, marks=pytest.mark.long),
    ("minilm", {"text": CODE}),
    pytest.param("smollm2", {"text": PARIS}, marks=pytest.mark.long),
    pytest.param("smollm2", {"text": CODE}, marks=pytest.mark.long),
    pytest.param("smollm2", {"text": KEYS}, marks=pytest.mark.long),
]


def shown(name, given):
    """Return the ranking of heads, and the map of the first."""
    return _shown(name, *() if given == inputs(name) else given.items())


@cache
def _shown(name, *given):
    result = attended(name, torch.float32, "sample", *given)
    ranking = rank_heads(result)
    best = ranking.scores[0]
    return ranking, attention_map(result, layer=best.layer, head=best.head)


@pytest.mark.parametrize(("name", "given"), CASES)
def test_less_than_half_of_the_weight_is_on_the_first_or_special_tokens(name, given):
    _, drawn = shown(name, given)
    sinks = np.array(drawn.special_columns)
    sinks[0] = True
    rows = ~np.array(drawn.special_rows)
    assert drawn.weights.numpy()[rows][:, sinks].sum(1).mean() < 0.5


@pytest.mark.parametrize(("name", "given"), CASES)
def test_its_score_is_well_above_the_median_and_its_colors_do_not_end_at_a_sink(name, given):
    ranking, drawn = shown(name, given)
    scores = [head.score for head in ranking.scores]
    assert scores[0] > 1.4 * np.median(scores)
    weights = drawn.weights.numpy()
    if drawn.starts_with_sink or any(drawn.special_columns):
        sinks = np.array(drawn.special_columns)
        sinks[0] |= drawn.starts_with_sink
        between = weights[~np.array(drawn.special_rows)][:, ~sinks]
        top = WeightScale.of(drawn).norm.vmax
        assert top <= between.max() * (1 + 1e-6) or is_logarithmic(weights.shape[1])
