"""A head's stripes come from positions: they stay when the words are shuffled

Head {head} of layer {layer} reads the first {tokens} tokens of this project's license (a), and the
same tokens in random order (b). Of all heads it reads nearest: its mean distance is {nearest:.0f}
tokens, where the mean of all heads is {usual:.0f}. Red cells are more than {far} tokens from the
diagonal and have {least:.0%} or more in (a), most of them on stripes parallel to it. They are
{area:.0%} of all cells and have {stripes:.0%} of the weight. If the words are shuffled, the same
cells have {shuffled:.0%}: the stripes come from the positions and not from the words. No map was
stored: while the model ran, each was reduced to {cells} × {cells} cells of {cell} × {cell} weights
(columns summed, rows averaged), and each query to a few numbers. The same works for {long_text:,}
tokens, where one map would take {gigabytes:.0f} GB.
"""

import random
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from panels import maps_with_claim

import attnviz

long_text, far, least = 100_000, 60, 0.01
gigabytes = 4 * long_text**2 / 1e9
text = (Path(__file__).parent.parent / "LICENSE").read_text(encoding="utf-8")[:2300]
model = attnviz.load()
first, *ids, last = model.tokenizer(text).input_ids
random.Random(0).shuffle(ids)
both = [model.attend(one, mode="streamed", cells=125) for one in (text, [first, *ids, last])]
of_words, of_shuffled = ([attention.summary for attention in result.streamed] for result in both)
one = of_words[0]
tokens, cells, cell = one.entropy.shape[1], one.mean.shape[1], one.cell

distances = torch.stack([summary.distance.mean(1) for summary in of_words])  # layers × heads
layer, head = divmod(int(distances.argmin()), distances.shape[1])
means = [cell * summaries[layer].mean[head] for summaries in (of_words, of_shuffled)]
apart = cell * (torch.arange(cells)[:, None] - torch.arange(cells)).abs()
is_stripe = (apart > far) & (means[0] > least)
is_stripe[:, 0] = False
stripes, shuffled = (float(mean[is_stripe].sum() / cells) for mean in means)
nearest, usual, area = distances.min(), distances.mean(), is_stripe.double().mean()
assert abs(shuffled - stripes) < stripes / 5

with attnviz.plot.style():
    fig, axes = plt.subplots(1, 2, figsize=(7.2, 3.5), sharey=True, layout="constrained")
    label = f"weight, by cells of {cell} × {cell} (red: on the stripes)"
    maps_with_claim(fig, axes, means, is_stripe, least / 4, tokens, label)
    names = f"a  The license: {stripes:.0%}", f"b  Its words, shuffled: {shuffled:.0%}"
    for ax, name in zip(axes, names, strict=True):
        ax.set(title=f"{name} of the weight is on the stripes", xlabel="key, position")
    axes[0].set_ylabel("query, position")
title = "A head's stripes come from positions: they stay when the words are shuffled"
about = f"Layer {layer}, head {head} of all-MiniLM-L6-v2, {tokens} tokens of this project's license"
where = f"red: the cells over {far} tokens from the diagonal that have {least:.0%} or more in a"
proof = attnviz.AgreementReport.joined(result.agreement for result in both)
fig = attnviz.plot.add_caption(fig, title=title, text=(about, where), agreement=proof)
