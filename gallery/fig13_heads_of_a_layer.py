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
previous_head, next_head, self_head = (
    int(weights_by_head.argmax()) for weights_by_head in relations
)
before, after, itself = (weights_by_head.max() for weights_by_head in relations)
even = 1 / words
specialized = sum(
    max(weights_by_head[head] for weights_by_head in relations) > 1 / 2 for head in range(heads)
)

fig = attnviz.plot.heads(maps, caption="none")
ax, *_ = fig.axes
numbers, names = ax.texts[::2], ax.texts[1::2]  # above each map: its head, and what it attends to
kinds = [name.get_text().partition(" ")[0] for name in names]
ahead, behind, own = map(kinds.count, ("next", "previous", "itself"))
named = ahead + behind + own
assert named == sum(map(bool, kinds))
frames = [(CLAIM, 1.4) if kind else (FAINT, 0.3) for kind in kinds]
ax.collections[0].set(edgecolor=[color for color, _ in frames], lw=[width for _, width in frames])
for number, name in zip(numbers, names, strict=True):
    if name.get_text():
        plt.setp((number, name), color=CLAIM)
fig.texts[0].set_text(__doc__.splitlines()[0].format_map(globals()))
parts = (
    f"“{text}”, read by all-MiniLM-L6-v2",
    f"the {heads} heads of layer {layer}",
    f"in each tile the {words} queries run down and the keys across",
)
fig = attnviz.plot.add_caption(fig, text=(*parts, *maps.notes), agreement=maps.agreement)
