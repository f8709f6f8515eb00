"""In head {best.layer}.{best.head}, “station” looks back at “train” with {share:.0%} of its weight

Rows are queries and columns are keys. The color is the attention weight, and every row sums to 1;
special tokens are gray. On the right are all {heads} heads of the model. Head
{best.layer}.{best.head} (framed, and drawn large) relates content words most: they give each other
{best.score:.0%} more of their weight than other words at the same distance do. attnviz recomputed
the weights of all heads; they differ from the model's own by at most {largest:.0e}.
"""

import attnviz

result = attnviz.attend("the train left the station")
best = attnviz.rank_heads(result).best
heads = result.agreement.heads
largest = result.agreement.largest_difference()

drawn = attnviz.attention_map(result, layer=best.layer, head=best.head)
share = drawn.weights[drawn.rows.index("station"), drawn.columns.index("train")].item()

fig = attnviz.plot.heatmap(result).figure
