"""Cross-attention of Whisper shows when each word is spoken, and planted faults hide it."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import soundfile
import torch
from fetched import SCRIPTS, load, speech

GALLERY = SCRIPTS.parent / "gallery"
if str(SCRIPTS) not in sys.path:
    sys.path.insert(0, str(SCRIPTS))

pytestmark = pytest.mark.real
HEADS = (13, 17, 20, 21, 22)  # that `scripts/bench.py speech` chooses without onsets


@pytest.fixture(scope="module")
def utterances():
    from benchmarks.speech import listen, sentences

    model = load("whisper-tiny.en", torch.float32)
    speech()  # skips without espeak-ng
    return listen(model, sentences()[:8])


def share(utterances, place):
    from benchmarks.speech import errors, share_near

    return share_near([errors(one, place(one)) for one in utterances])[0]


def by_these(utterance):
    from benchmarks.speech import by_heads

    return by_heads(utterance, HEADS)


def test_shifted_onsets_do_not(utterances):
    assert share(utterances, lambda one: by_these(one) + 0.3) < 0.2


def test_shuffled_heads_do_not(utterances):
    order = np.random.default_rng(0).permutation(24)
    shuffled = [replace(one, weights=one.weights[order]) for one in utterances]
    assert share(shuffled, by_these) < 0.7


def test_heads_are_chosen_without_onsets(utterances):
    from benchmarks.speech import heads_in_agreement

    silent = [replace(one.speech, onsets=()) for one in utterances]
    chosen = heads_in_agreement(
        [replace(one, speech=said) for one, said in zip(utterances[:4], silent[:4], strict=True)]
    )
    assert {17, 20, 21} <= set(chosen) < set(range(24))
    assert len(chosen) < 9


def test_a_word_begins_after_the_pause_before_it():
    from real_models.speech import speak

    speech()
    said = speak("We waited, but the boat never came.")
    loudness = np.abs(said.samples)
    assert said.words[2:4] == ("but", "the")
    for word, least in (("but", 0.1), ("came", 0.02)):
        onset = round(said.onsets[said.words.index(word)] * said.rate)
        pause = loudness[onset - round(least * said.rate) : onset - said.rate // 200]
        assert pause.max() < 0.01 * loudness.max()
        assert loudness[onset : onset + said.rate // 50].max() > 0.1 * loudness.max()


def test_the_recording_of_the_gallery_is_what_espeak_says():
    speech()
    about = json.loads((GALLERY / "speech.json").read_text(encoding="utf-8"))
    samples, rate = soundfile.read(GALLERY / "speech.flac")
    code = """
import json, sys
from real_models.speech import speak
said = speak(sys.argv[1], words_per_minute=150)
print(json.dumps([said.words, said.onsets, said.rate, said.seconds]))
"""
    command = [sys.executable, "-c", code, about["text"]]  # other voices may have changed pauses
    run = subprocess.run(command, cwd=SCRIPTS, capture_output=True, text=True, check=True)
    words, onsets, said_rate, seconds = json.loads(run.stdout)
    assert (words, said_rate) == (about["words"], rate)
    np.testing.assert_allclose(onsets, about["onsets"], atol=0.005)
    assert len(samples) / rate == pytest.approx(seconds, abs=0.005)
