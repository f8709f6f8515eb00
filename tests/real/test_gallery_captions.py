"""Titles and captions of the gallery about fetched models name what their own code returns."""

import pytest
from figures.sentences import gallery
from figures.sentences.gallery_fetched import CAPTIONS
from figures.sentences.reading import read_all
from figures.test_sentences import planted

pytestmark = pytest.mark.real


@pytest.mark.parametrize("stem", CAPTIONS)
def test_a_caption_about_a_fetched_model_names_what_its_code_returns(stem):
    figure = gallery.built()[stem]
    caption = " ".join(figure["caption"].split())
    problems = [one for text in (figure["title"], caption)
                for one in read_all(text, None, CAPTIONS[stem])]  # fmt: skip
    assert not problems, "\n".join(problems)
    wrong = [*planted(caption)]
    missed = [text for text in wrong[:: max(1, len(wrong) // 6)]
              if not read_all(text, None, CAPTIONS[stem])]  # fmt: skip
    assert not missed, "\n".join(missed)
