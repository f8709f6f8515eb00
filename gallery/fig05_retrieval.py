"""Unlike a database, a query retrieves a mixture of words, seldom a single one

A query is compared with the key of every word. The result is all words ranked by weight, one card
for each query, sorted by how few words it needs. Blue words are the first that together have
{share:.0%} of the weight. A database returns one record; attention returns a mixture. Head
{best.layer}.{best.head}, which of all {heads} heads relates the content words most beyond what
their distance and the key explain, needs {mean:.1f} of {n} words on average for {share:.0%}, and
fewest for “{sharpest_word}” ({fewest}). Some heads are closer to a database: of all {cards} cards
{single:.0%} need one word, and {few_words:.0%} need {few} or fewer. Uniform weights would need
{uniform}. [CLS] and [SEP] are removed and the rows renormalized to sum to 1.
"""

import math

import matplotlib.pyplot as plt
import torch

import attnviz

share, few = 0.8, 3
result = attnviz.attend("the train left this station on time")
best = attnviz.rank_heads(result).best
head_map = attnviz.attention_map(result, layer=best.layer, head=best.head, special="remove")
words, n = head_map.rows, len(head_map.rows)

ranked = attnviz.head_maps(result, special="remove").weights.sort(descending=True).values
words_needed = (ranked.cumsum(-1) < share).sum(-1) + 1  # on each card, (layers, heads, queries)
single, few_words = (words_needed == 1).double().mean(), (words_needed <= few).double().mean()
cards, heads = words_needed.numel(), result.agreement.heads
counts = words_needed[best.layer, best.head].tolist()
mean, fewest, uniform = sum(counts) / n, min(counts), math.ceil(share * n)
assert counts.count(fewest) == 1
sharpest_word = words[counts.index(fewest)]

with attnviz.plot.style():
    fig, axes = plt.subplots(2, 4, figsize=(7.2, 3.2), layout="constrained")
    *queries, histogram = axes.flat
    for ax, card in zip(queries, sorted(range(n), key=counts.__getitem__), strict=True):
        word, weights, blue = words[card], head_map.weights[card], counts[card]
        order = weights.argsort()  # from below
        colors = ["0.75"] * (n - blue) + ["C0"] * blue
        bars = ax.barh([words[k] for k in order], (100 * weights[order]).tolist(), color=colors)
        ax.bar_label(bars, fmt="%.0f%%", padding=2, size=6)
        ax.set(title=f"query: {word}", xlim=(0, 135 * float(head_map.weights.max())), xticks=[])
    shares = 100 * torch.bincount(words_needed.flatten()) / cards
    bars = histogram.bar(range(1, len(shares)), shares[1:].tolist(), color="0.6")
    bars[0].set_color(attnviz.figures.style.LIGHT.claim)
    histogram.bar_label(bars, fmt="%.0f%%", padding=2, size=6)
    histogram.set(title=f"all {heads} heads", yticks=[], ylabel="queries", xticks=range(1, n))
    histogram.set(xlabel=f"words needed for {share:.0%}", ymargin=0.15)
    for ax in axes.flat:
        ax.spines[:].set_visible(False)
        ax.tick_params(length=0)
text = [f"“{result.provenance.text}”, layer {best.layer}, head {best.head}", *head_map.notes]
text[1:1] = [f"blue: the first words that have {share:.0%} of the weight, {mean:.1f} on average"]
title = "Unlike a database, a query retrieves a mixture of words, seldom a single one"
fig = attnviz.plot.add_caption(fig, title=title, text=text, agreement=result.agreement)
