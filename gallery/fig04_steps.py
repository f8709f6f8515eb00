"""Stage by stage, “{read}” becomes nearly all of the attention vector of “{word}”

One head of a real model, from its input to its output, with the shape of every stage. Each of the
{tokens} tokens enters as a vector of {d_model} numbers (X). Three matrices map it to a query, a key
and a value of {d_k} numbers each. The product of every query with every key gives {tokens} ×
{tokens} scores. Divided by √{d_k} and passed through a softmax, they become weights, and every row
sums to 1. The weighted sums of the values are the attention vectors of this head. Those of all
{heads} heads are concatenated and mixed by one more matrix. The frame follows “{word}”,
which gives “{read}” {weight:.0%} of its weight; “{read}” contributes {share:.0%} of its attention
vector. attnviz computed every number from the formula; none differs from the model's by more than
{largest:.0e}.
"""

import attnviz

word = "station"
result = attnviz.attend("the train left the station")
taken = attnviz.steps(result, layer=0, head=4, word=word)

tokens, d_model = taken["X"].values.shape
d_k, heads = taken["Q"].values.shape[1], taken.heads
largest = max(stage.difference for stage in taken.stages if stage.difference is not None)
key = int(taken.shares.argmax())
read, share = taken.keys[key], taken.shares[key]
weight = taken["weights"].values[taken.row, key]
assert all(stage.passed for stage in taken.stages if stage.why_not != "given")

fig = attnviz.plot.steps(taken)
