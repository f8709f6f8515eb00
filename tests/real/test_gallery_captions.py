"""Titles and captions of the gallery about fetched models name what their own code returns."""

import pytest
from figures.sentences import gallery
from figures.sentences.gallery_fetched import CAPTIONS
from figures.sentences.reading import read_all
from figures.test_sentences import planted

pytestmark = pytest.mark.real


@pytest.mark.parametrize("stem", CAPTIONS)
def test_a_caption_about_a_fetched_model_names_what_its_code_returns(stem):
    texts, patterns = gallery.texts(stem), CAPTIONS[stem]
    problems = [one for text in texts for one in read_all(text, None, patterns)]
    assert not problems, "\n".join(problems)
    wrong = [*planted(texts[1])]
    chosen = wrong[:: max(1, len(wrong) // 6)]
    missed = [text for text in chosen if not read_all(text, None, patterns)]
    assert not missed, "\n".join(missed)
