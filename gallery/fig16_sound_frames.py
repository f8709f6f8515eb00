"""A head of Whisper reads each word where it is spoken

A synthetic voice says “{said}” Whisper tiny.en writes the sentence; each row is the step that
writes one word, and what it attends to among {frames} frames of the sound. Red frames last
from where a word begins to where the next one does, as the synthesizer reports it. In head
{shown[0]}.{shown[1]} the largest weight lies within the word that is written for {hits} of {count}
words. That word gets {inside:.0%} of the weight on the sound, and would get {even:.0%} of even
weights. The silence after “{before}” is skipped. Not drawn is the silence up to {window:.0f} s,
with which Whisper pads every sound; it gets {padding:.0%} of the weight. No onset was used to
choose the head: of the {few} heads that agree on when words begin (guides/models.md), it has the
sharpest weights.
"""

import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import soundfile
from panels import bar_below, frame_words

import attnviz
from attnviz.results.axis import locate, token_groups

IN_AGREEMENT = ((2, 1), (2, 5), (3, 2), (3, 3), (3, 4))  # by scripts/bench.py speech
here, few = Path(__file__).parent, len(IN_AGREEMENT)
spoken = json.loads((here / "speech.json").read_text())
samples, rate = soundfile.read(here / "speech.flac")
result = attnviz.attend(audio=here / "speech.flac", model="whisper-tiny.en").stack("cross")

said, words, seconds = spoken["text"], spoken["words"], len(samples) / rate
begins, ends = np.array(spoken["onsets"]), np.array([*spoken["onsets"][1:], seconds])
tokens = token_groups(result.record(0).query_axis, words=False)
steps = [locate(word, tokens) - 1 for word in words]  # a token is written by the step before it
starts = np.array(result.record(0).key_axis.seconds)
heads = np.stack([result.weights(*head)[steps] for head in IN_AGREEMENT])
whole, shown = max(zip(heads, IN_AGREEMENT, strict=True), key=lambda pair: (pair[0] ** 2).sum())
is_sound = starts < seconds
weights = whole[:, is_sound] / whole[:, is_sound].sum(1, keepdims=True)
padding, count, frames = whole[:, ~is_sound].sum(1).mean(), *weights.shape
middles, window, before = starts[is_sound] + starts[1] / 2, starts[-1] + starts[1], words[2]
is_word = (middles > begins[:, None]) & (middles < ends[:, None])
hits = is_word[range(count), weights.argmax(1)].sum()
by_word, even = (weights * is_word).sum(1), is_word.mean()
inside = by_word.mean()

with attnviz.plot.style():
    grid = {"height_ratios": (1, 5), "sharex": True, "layout": "constrained"}
    fig, (above, ax) = plt.subplots(2, 1, figsize=(4.72, 3.8), **grid)
    above.plot(np.arange(len(samples)) / rate, samples, lw=0.3, color="0.4")
    place = (0, seconds, count - 0.5, -0.5)
    cells = ax.imshow(weights, "cmc.devon_r", extent=place, aspect="auto", vmin=0)
    frame_words(above, ax, words, begins, ends, by_word)
    bar_below((above, ax), cells, "of the weight of a row, in 20 ms of sound")
    ax.set(xlabel="time, s", ylabel="word written", yticks=range(count), yticklabels=words)
note = "Red: where the word of a row is spoken, and how much of the weight of the row lies there"
title = "A head of Whisper reads each word where it is spoken"
fig = attnviz.plot.add_caption(fig, title=title, text=note, agreement=result.agreement)
