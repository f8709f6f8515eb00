"""`scripts/bench.py models` measures an analysis in its own process."""

from benchmarks import models


def test_the_texts_of_the_survey_differ():
    texts = models.texts()
    assert len(set(texts)) == models.SURVEYED == 100
