"""A first heatmap

Rows are queries, columns keys, and colour is weight: how much of each word goes into the new vector
of the one on the left. Every row sums to 1. On the right are all {heads} heads of the model; of
these, head {best.layer}.{best.head} (framed) relates the content words of the sentence most, with
{best.score:.0%} of their weight. Under the picture stands its proof: attnviz computed the weights
of all heads by itself, and they differ from the model's own by at most {largest:.0e}.
"""

import attnviz

result = attnviz.attend("the train left the station")
best = attnviz.rank_heads(result).best
heads = result.agreement.heads
largest = result.agreement.largest_difference()

fig = attnviz.plot.heatmap(result).figure
