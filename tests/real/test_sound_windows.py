"""Whisper is explained by the windows of time in which the words are spoken."""

import json
from itertools import pairwise

import pytest
import torch
from fetched import SCRIPTS, load

import attnviz
from attnviz.attribution.reference import Media

pytestmark = pytest.mark.real
SOUND = SCRIPTS.parent / "gallery" / "speech.flac"
ABOUT = json.loads(SOUND.with_suffix(".json").read_text("utf-8"))


@pytest.fixture(scope="module")
def whisper():
    return load("whisper-tiny.en", torch.float32)


def found(why):
    """Return whether the window of each word is in it, or half a window beside it."""
    ends = [*ABOUT["onsets"], why.waveform.seconds]
    windows = [(why.edges[0][n], why.edges[0][n + 1]) for n in why.by_answer.argmax(1).tolist()]
    words = zip(pairwise(ends), windows, strict=True)
    return [a - (d - c) / 2 <= (c + d) / 2 <= b + (d - c) / 2 for (a, b), (c, d) in words]


def test_words_come_from_where_they_are_spoken(whisper):
    why = attnviz.explain(audio=SOUND, generate=30, model=whisper)
    assert [word.strip(",.") for word in why.answer] == ABOUT["words"]
    assert sum(found(why)) >= 5
    assert why.headline == "1.4–1.6 s of the sound raises “but” most"
    assert "lowers that of “but” by 6.18 nats; any other, by 0.07 or less." in why.finding
    assert why.checked_agreement.verdict == "verified"
    torch.testing.assert_close(why.by_answer.sum(0), why.effect)


def test_windows_in_the_wrong_place_do_not_show_it(whisper, monkeypatch):
    own = Media.without
    monkeypatch.setattr(Media, "without", lambda media, n, *of: own(media, (n + 5) % 13, *of))
    why = attnviz.explain(audio=SOUND, generate=30, model=whisper)
    assert sum(found(why)) <= 2


def test_a_named_token_is_the_last_of_those_that_are_written(whisper):
    why = attnviz.explain(audio=SOUND, generate=4, target="but", model=whisper)
    assert (why.kind, why.target, why.against) == ("next token", "but", None)
    assert any("the model wrote “We waited" in note for note in why.notes)
