"""Frames of a sound as tokens (random weights)

This wav2vec2 cuts a sound into {frames} frames, one every {step:.0f} ms, and each asks all others.
Its weights are random, with W_Q and W_K drawn {times} times as wide as usual so that attention is
not flat; nothing was learned, and only the mechanics are shown. Above is what it hears: a tone, a
pause, a higher tone, the first again. Frames that sound alike have like keys, hence the blocks:
what is heard makes {explained:.0%} of the variance of a query's scores, in the median over queries
and {count} heads; shuffled, {chance:.0%}. Shown is, of each layer, the head where it makes most.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from transformers import Wav2Vec2Config, Wav2Vec2FeatureExtractor, Wav2Vec2Model

import attnviz

torch.manual_seed(0)
size = {"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 6, "conv_dim": (32,) * 7}
wav2vec2, times = Wav2Vec2Model(Wav2Vec2Config(**size)), 6
for name, weight in wav2vec2.named_parameters():
    if name.endswith(("q_proj.weight", "k_proj.weight")):
        torch.nn.init.normal_(weight, 0, times * wav2vec2.config.initializer_range)

turns, time = (0.5, 0.8, 1.3), np.arange(0, 1.8, 1 / 16_000)  # seconds
pitch = np.array([200, 0, 800, 200])[np.digitize(time, turns)]
sound = 0.5 * np.sin(2 * np.pi * pitch * time)
model = attnviz.load(wav2vec2, processor=Wav2Vec2FeatureExtractor())
result = attnviz.attend(audio=sound, sampling_rate=16_000, model=model)
starts = np.array(result.record(0).key_axis.seconds)
frames, step, heard = len(starts), 1000 * starts[1], np.digitize(starts, turns) % 3
scores = np.stack([record.scores().detach().double() for record in result])
shares = []  # of the variance of each query's scores, what lies between the kinds of frames
for kinds in (heard, np.random.default_rng(0).permutation(heard)):
    means = np.stack([scores[..., kinds == kind].mean(-1) for kind in kinds], -1)
    shares.append(np.median(means.var(-1) / scores.var(-1), -1))  # (layers, heads)
(explained, chance), count = (np.median(share) for share in shares), shares[0].size

with attnviz.style():
    fig, axes = plt.subplots(2, 2, figsize=(7.2, 4), layout="constrained", height_ratios=(1, 5))
    for layer, (above, ax) in enumerate(axes.T):
        head = int(shares[0][layer].argmax())
        attnviz.heatmap(result, layer=layer, head=head, ax=ax)
        above.sharex(ax)
        above.plot(time / starts[1], pitch, color="C3")
        above.set(ylabel="Hz", yticks=(0, 800), title=f"Layer {layer}, head {head}")
        ax.set_title("", loc="left")
fig = attnviz.add_caption(fig, text="wav2vec2, random weights", agreement=result.agreement)
