"""On a long text, one head has stripes that come from positions, not from words

The first {tokens} tokens of this project's license. No map was stored: while the model ran, each
was reduced to {cells} × {cells} cells of {cell} × {cell} weights (columns summed, rows averaged),
and each query to a few numbers. The same works for {long_text:,} tokens, where one map would take
{gigabytes:.0f} GB. Head {head} of layer {layer}, drawn large, reads nearest: its mean distance is
{nearest:.0f} tokens, where the mean of all heads is {usual:.0f}. Cells more than
{far} tokens from the diagonal with {least:.0%} or more, most of them on its parallel stripes, have
{stripes:.0%} of its weight. If the words are shuffled, these cells have {shuffled:.0%}: the stripes
come from the positions and not from the words. Head {sink_head} of layer {sink_layer} gives most
weight to the first token, [CLS]: {most:.0%}, the line at the left edge of its tile.
"""

import random
from pathlib import Path

import torch
from panels import CLAIM

import attnviz

long_text, far, least = 100_000, 60, 0.01
gigabytes = 4 * long_text**2 / 1e9
license_text = (Path(__file__).parent.parent / "LICENSE").read_text(encoding="utf-8")
model, streamed = attnviz.load(), {"mode": "streamed", "cells": 125}
result = model.attend(license_text[:2300], **streamed)
first, *ids, last = model.tokenizer(license_text[:2300]).input_ids
random.Random(0).shuffle(ids)
of_words, of_shuffled = (
    [attention.summary for attention in one.streamed]
    for one in (result, model.attend([first, *ids, last], **streamed))
)
one = of_words[0]
tokens, cells, cell = one.entropy.shape[1], one.mean.shape[1], one.cell

distances, first_weights = (
    torch.stack([getattr(summary, name).mean(1) for summary in of_words])  # layers × heads
    for name in ("distance", "first")
)
layer, head = divmod(int(distances.argmin()), distances.shape[1])
sink_layer, sink_head = divmod(int(first_weights.argmax()), first_weights.shape[1])
nearest, usual, most = distances.min(), distances.mean(), first_weights.max()
means = [cell * summaries[layer].mean[head] for summaries in (of_words, of_shuffled)]
apart = cell * (torch.arange(cells)[:, None] - torch.arange(cells)).abs()
is_stripe = (apart > far) & (means[0] > least)
is_stripe[:, 0] = False
stripes, shuffled = (float(mean[is_stripe].sum() / cells) for mean in means)
assert abs(shuffled - stripes) < stripes / 5

title = "Stripes far from the diagonal come from positions, not from words"
look = {"overview": True, "caption": "none", "title": title}
ax = attnviz.plot.heatmap(result, layer=layer, head=head, **look)
label = "← both stay →\nif words are\nshuffled"
ax.text(67, 8, label, color=CLAIM, weight="bold", size=6, ha="center", va="center")
fig = ax.figure
text = f"The first {tokens} tokens of this project's license, read by all-MiniLM-L6-v2"
scale = f"each cell joins {cell} × {cell} weights, on a logarithmic scale"
fig = attnviz.plot.add_caption(fig, text=(text, scale), agreement=result.agreement)
