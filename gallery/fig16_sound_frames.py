"""Frames of a sound as tokens (random weights)

This wav2vec2 divides a sound into {frames} frames, one every {step:.0f} ms, and each attends to all
others. Its weights are random, with W_Q and W_K drawn {widening} times as wide as usual so that
attention is not flat. Nothing was learned; the figure shows only the mechanics. Above is
the pitch: a tone, a pause, a higher tone, the first tone again. Frames that sound alike have
similar keys, hence the blocks: the sound explains {explained:.0%} of the variance of a query's
scores, in the median over queries and {heads} heads ({chance:.0%} if shuffled). The head shown is
the one where it explains most.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from transformers import Wav2Vec2Config, Wav2Vec2FeatureExtractor, Wav2Vec2Model

import attnviz

torch.manual_seed(0)
size = {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 6, "conv_dim": (32,) * 7}
wav2vec2, widening = Wav2Vec2Model(Wav2Vec2Config(**size)), 6
for name, weight in wav2vec2.named_parameters():
    if name.endswith(("q_proj.weight", "k_proj.weight")):
        torch.nn.init.normal_(weight, 0, widening * wav2vec2.config.initializer_range)

tones, turns = np.array([200, 0, 800, 200]), (0.5, 0.8, 1.3)  # pitch in Hz; changes in seconds
time = np.arange(0, 1.8, 1 / 16_000)
pitch = tones[np.digitize(time, turns)]
sound = 0.5 * np.sin(2 * np.pi * pitch * time)
model = attnviz.load(wav2vec2, processor=Wav2Vec2FeatureExtractor())
result = attnviz.attend(audio=sound, sampling_rate=16_000, model=model)

starts = np.array(result.record(0).key_axis.seconds)
frames, step = len(starts), 1000 * starts[1]
frame_pitch = tones[np.digitize(starts, turns)]
scores = torch.cat([record.scores() for record in result]).detach().numpy()
heads = len(scores)


def explained_shares(kinds):  # variance of a query's scores between kinds, as a share of all
    means = np.stack([scores[..., kinds == kind].mean(-1) for kind in kinds], axis=-1)
    return np.median(means.var(-1) / scores.var(-1), axis=-1)  # (heads)


shares = explained_shares(frame_pitch)
explained = np.median(shares)
chance = np.median(explained_shares(np.random.default_rng(0).permutation(frame_pitch)))
layer, head = divmod(int(shares.argmax()), size["num_attention_heads"])

with attnviz.plot.style():
    grid = {"height_ratios": (1, 5), "sharex": True, "layout": "constrained"}
    fig, (above, ax) = plt.subplots(2, 1, figsize=(4.72, 5.3), **grid)
    above.plot(time / starts[1], pitch, color="C3")
    attnviz.plot.heatmap(result, layer=layer, head=head, ax=ax)
    for turn in turns:
        for line in (ax.axhline, ax.axvline):
            line(turn / starts[1], color="0.4", lw=0.6, ls=":")
    above.set(title="Frames that sound alike are attended alike", ylabel="Hz", yticks=tones[1:3])
    above.set_xlim(0, frames)
fig = attnviz.plot.add_caption(fig, text="wav2vec2, random weights", agreement=result.agreement)
