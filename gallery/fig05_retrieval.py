"""Unlike a database, a query retrieves a mixture of words, seldom a single one

A query is compared with the key of every word. The result is all words ranked by weight, one card
for each query. Blue words are the first that together have {share:.0%} of the weight. A database
returns one record; attention returns a mixture. Head {best.layer}.{best.head}, which of all {heads}
heads relates the content words most beyond what their distance and the key explain, needs
{mean:.1f} of {n} words on average for {share:.0%}, and fewest for “{sharpest_word}” ({fewest}).
Some heads are closer to a database: of all {cards} cards {single:.0%} need one word, and
{few_words:.0%} need {few} or fewer. Uniform weights would need {uniform}. [CLS] and [SEP] are
removed and the rows renormalized to sum to 1.
"""

import math

import matplotlib.pyplot as plt
import torch
from panels import CLAIM, bare, bracket, point

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
    for ax, word, weights, blue in zip(queries, words, head_map.weights, counts, strict=True):
        order = weights.argsort()  # from below
        colors = ["0.75"] * (n - blue) + ["C0"] * blue
        bars = ax.barh([words[k] for k in order], (100 * weights[order]).tolist(), color=colors)
        ax.bar_label(bars, fmt="%.0f%%", padding=2, size=6)
        ax.set(title=f"query “{word}”: {blue} words", xlim=(0, 107), xticks=[])
    name = f"first words\nthat together\nhave {share:.0%}"
    bracket(queries[0], 45, n - counts[0] - 0.4, n - 0.6, name, "C0", size=6, weight="normal")
    shares = 100 * torch.bincount(words_needed.flatten()) / cards
    bars = histogram.bar(range(1, len(shares)), shares[1:].tolist(), color="0.6")
    bars[0].set_color(CLAIM)
    histogram.bar_label(bars, fmt="%.0f%%", padding=2, size=6)
    point(histogram, (1, 11), (0.6, 24), "one word\nis enough")
    histogram.set(xlabel=f"words needed for {share:.0%}", ylabel="share of queries", yticks=[])
    histogram.set(title=f"All {heads} heads", xticks=range(1, n), ymargin=0.15)
    bare(*axes.flat)
text = [f"“{result.provenance.text}”, layer {best.layer}, head {best.head}", *head_map.notes]
title = "Unlike a database, a query retrieves a mixture of words, seldom a single one"
fig = attnviz.plot.add_caption(fig, title=title, text=text, agreement=result.agreement)
