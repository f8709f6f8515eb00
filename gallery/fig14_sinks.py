"""Content words give {share:.0%} of their attention to tokens without content

Content words give {share:.0%} of their weight to tokens without content: {cls:.0%} to [CLS],
{sep:.0%} to [SEP], {marks:.0%} to punctuation (means over {count} heads and {words} content words).
Uniform weights would give {uniform:.0%} (dashed). {heads} of {count} heads give more than half,
{less} less than uniform weights. The share does not simply grow with depth: it is lowest in layer
{low} ({lowest:.0%}) and highest in layer {high} ({highest:.0%}).
"""

import matplotlib.pyplot as plt
import numpy as np
from panels import CLAIM, gray_map, stacked_bars, write

import attnviz
from attnviz.results.axis import content_words, token_groups

TEXTS = """The train left the station on time.|After dinner, the children washed the dishes.
Why did the engine stop so suddenly?|She plays the violin; her brother plays the drums.
The museum (closed on Mondays) shows old maps.|“Stay here,” he said, “until the storm is over.”
When the bell rang, nobody moved.|Rain fell all night, and the river rose.|Sit down, Tom!"""
results = attnviz.attend(TEXTS.replace("\n", "|").split("|"))
names, received, equal = ("[CLS]", "[SEP]", "punctuation"), [], []
for result in results:
    tokens = token_groups(result.record(0).key_axis)
    is_mark = [not any(map(str.isalnum, label)) for label in tokens.labels]
    weights = attnviz.head_maps(result).weights[:, :, (content := content_words(tokens))].numpy()
    parts = weights[..., 0], weights[..., -1], weights[..., is_mark].sum(-1)
    received.append(np.stack(parts))  # (names, layers, heads, words)
    equal += [(2 + sum(is_mark)) / len(is_mark)] * int(content.sum())
mean = dict(zip(names, np.concatenate(received, axis=-1).mean(-1), strict=True))
cls, sep, marks = (values.mean() for values in mean.values())
total = sum(mean.values())  # (layers, heads)
share, count, words, uniform = total.mean(), total.size, len(equal), np.mean(equal)
heads, less, layers = (total > 0.5).sum(), (total < uniform).sum(), total.mean(1)
low, high, lowest, highest = layers.argmin(), layers.argmax(), layers.min(), layers.max()

with attnviz.plot.style():
    fig, (left, right) = plt.subplots(1, 2, figsize=(7.2, 2.7), layout="constrained")
    title = f"a  {heads} of {count} heads give more than half (numbers: %)"
    gray_map(left, total, xlabel="head", ylabel="layer", title=title)
    by_layer = {name: 100 * values.mean(1) for name, values in mean.items()}
    stacked_bars(right, by_layer, ("#7d7d7d", "#ababab", "C5"))
    for x, color, name in ((uniform, "k", "if even"), (share, CLAIM, "mean of all heads")):
        right.plot([100 * x] * 2, [-0.4, 6.1], color=color, ls="--" if color == "k" else "-")
        write(right, (100 * x, 5.9, f" {name}: {x:.0%}", color), weight="bold", size=6)
    right.set(title="b  The mean by layer", xlim=(0, 100), ylim=(6.2, -0.9), ylabel="layer")
    right.set(xlabel="share of the weight of content words (%)", yticks=range(len(layers)))
proof = attnviz.AgreementReport.joined(result.agreement for result in results)
title = f"Content words give {share:.0%} of their attention to tokens without content"
fig = attnviz.plot.add_caption(fig, title=title, text="Model: all-MiniLM-L6-v2", agreement=proof)
