"""Among words, {ahead} heads of layer {layer} look one ahead, {behind} one back, {own} at itself

All {heads} heads of layer {layer} on the same words; these {named} are red. [CLS] and [SEP] are
removed and the rows renormalized. Each head has its own matrices for queries, keys and values, so
each relates the words in its own way. Of the words that have such a neighbor, head {previous_head}
gives {before:.0%} of its weight to the previous word and head {next_head} {after:.0%} to the next
word; head {self_head} gives {itself:.0%} to the word itself. Uniform weights would give {even:.0%}
each. In {specialized} heads one of the three receives more than all other words together. The
others mix more widely.
"""

import matplotlib.pyplot as plt
import numpy as np
from panels import CLAIM, FAINT

import attnviz

layer = 1
text = "the train left the station on time"
result = attnviz.attend(text)
maps = attnviz.head_maps(result, layer=layer, special="remove")
weights, words = maps.weights[0], len(maps.rows)
heads = len(weights)


def mean_weight(step):
    """Return the mean weight of each head on the word at this offset, where there is one."""
    return weights.diagonal(step, 1, 2).mean(1)


relations = [mean_weight(step) for step in (-1, 1, 0)]
previous_head, next_head, self_head = (int(by_head.argmax()) for by_head in relations)
before, after, itself = (by_head.max() for by_head in relations)
even, least = 1 / words, 1 / words + 1 / 4  # what “looks” means in guides/heatmaps.md
most = np.max(relations, 0)  # of each head
specialized = (most > 1 / 2).sum()

fig = attnviz.plot.heads(maps, caption="none")
ax, *_ = fig.axes
numbers, names = ax.texts[::2], ax.texts[1::2]  # above each map: its head, and what it attends to
kinds = [name.get_text().partition(" ")[0] for name in names]
ahead, behind, own = map(kinds.count, ("next", "previous", "itself"))
named = ahead + behind + own
assert named == sum(map(bool, kinds)) == (most >= least).sum()
frames = [(CLAIM, 1.4) if kind else (FAINT, 0.3) for kind in kinds]
ax.collections[0].set(edgecolor=[color for color, _ in frames], lw=[width for _, width in frames])
for number, name in zip(numbers, names, strict=True):
    if name.get_text():
        plt.setp((number, name), color=CLAIM)
title = fig.texts[0]
title.set_text(__doc__.splitlines()[0].format_map(globals()))
x, y = title.get_position()
key = f"Layer {layer}. Red: a mean weight of {least:.0%} or more (even weights: {even:.0%})"
look = {"color": "0.36", "size": 7, "va": "top", "transform": title.get_transform()}
fig.text(x, y + 0.2, key, **look)
source = f"“{text}”, read by all-MiniLM-L6-v2"
parts = source, f"in each tile the {words} queries run down and the keys across", *maps.notes
fig = attnviz.plot.add_caption(fig, text=parts, agreement=maps.agreement)
