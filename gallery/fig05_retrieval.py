"""Each word retrieves others, as from a database

A query is compared with the key of every word. The result is all words ranked by weight, one card
for each query. Blue words are the first that together have {part:.0%} of the weight. A database
returns one record; attention returns a mixture. Head {best.layer}.{best.head}, which of all {heads}
heads relates the content words most, needs {mean:.1f} of {n} words on average for {part:.0%}, and
fewest for “{sharpest}” ({fewest}). Some heads are closer to a database: of all {cards} cards
{single:.0%} need one word, and {nearer:.0%} need {few} or fewer. Uniform weights would need {even}.
[CLS] and [SEP] are removed and the rows renormalized to sum to 1.
"""

import math

import matplotlib.pyplot as plt
import torch

import attnviz

part, few = 0.8, 3
result = attnviz.attend("the train left this station on time")
best = attnviz.rank_heads(result).best
drawn = attnviz.attention_map(result, layer=best.layer, head=best.head, special="remove")
words, n = drawn.rows, len(drawn.rows)

ranked = attnviz.head_maps(result, special="remove").weights.sort(descending=True).values
too_few = ranked.cumsum(-1) < part
needed = too_few.sum(-1) + 1  # words on each card, (layers, heads, queries)
single, nearer = (needed == 1).double().mean(), (needed <= few).double().mean()
cards, heads = needed.numel(), result.agreement.heads
ours = needed[best.layer, best.head].tolist()
mean, fewest, even = sum(ours) / n, min(ours), math.ceil(part * n)
assert ours.count(fewest) == 1
sharpest = words[ours.index(fewest)]

with attnviz.plot.style():
    fig, axes = plt.subplots(2, 4, figsize=(7.2, 3.2), layout="constrained")
    *queries, last = axes.flat
    for ax, word, weights, blue in zip(queries, words, drawn.weights, ours, strict=True):
        order = weights.argsort(descending=True)
        colours = ["C0"] * blue + ["0.75"] * (n - blue)
        lengths = (100 * weights[order]).tolist()
        bars = ax.barh([words[key] for key in order], lengths, color=colours)
        ax.bar_label(bars, fmt="%.0f%%", padding=2, size=6)
        ax.set(title=f"query: {word}", xlim=(0, 41), xticks=[])
        ax.invert_yaxis()
    shares = 100 * torch.bincount(needed.flatten()) / cards
    bars = last.bar(range(1, len(shares)), shares[1:].tolist(), color="0.6")
    last.bar_label(bars, fmt="%.0f%%", padding=2, size=6)
    last.set(title=f"all {heads} heads", xlabel=f"words that hold {part:.0%}", yticks=[])
    last.set_xticks(range(1, n))
    last.margins(y=0.15)
    for ax in axes.flat:
        ax.spines[:].set_visible(False)
        ax.tick_params(length=0)
text = f"“{result.provenance.text}”, read by all-MiniLM-L6-v2; layer {best.layer}, head {best.head}"
fig = attnviz.plot.add_caption(fig, text=[text, *drawn.notes], agreement=result.agreement)
