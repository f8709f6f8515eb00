"""Among words, some heads look at the next, the previous, or the word itself

All {heads} heads of layer {layer} on the same words. [CLS] and [SEP] are removed and the rows
renormalized. Each head has its own matrices for queries, keys and values, so each relates the words
in its own way. Of the words that have such a neighbor, head {previous_head} gives {before:.0%} of
its weight to the previous word and head {next_head} {after:.0%} to the next word; head {self_head}
gives {itself:.0%} to the word itself. Uniform weights would give {even:.0%} each. In {specialized}
heads one of the three receives more than all other words together. The others mix more widely.
"""

import attnviz

layer = 1
result = attnviz.attend("the train left the station on time")
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

fig = attnviz.plot.heads(maps)
