"""Titles and captions of the gallery about fetched models name what their own code returns."""

import pytest
from figures.sentences import gallery, gallery_fetched  # noqa: F401
from figures.test_sentences import planted

pytestmark = pytest.mark.real


@pytest.mark.parametrize("stem", gallery.FETCHED)
def test_a_caption_about_a_fetched_model_names_what_its_code_returns(stem, model):
    text = gallery.text_of(stem)
    found = gallery.problems(stem, model, text) + gallery.problems_of_file(stem, model)
    assert not found, "\n".join(found)
    wrong = [*planted(text)]
    chosen = wrong[:: max(1, len(wrong) // 6)]
    missed = [one for one in chosen if not gallery.problems(stem, model, one)]
    assert not missed, "\n".join(missed)
