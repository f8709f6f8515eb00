"""Scaled dot-product attention, stage by stage

One head of a real model, from its input to its output, with the shape of every stage. Each of the
{tokens} tokens enters as a vector of {d_model} numbers (X). Three matrices make of it a query, a
key and a value of {d_k} numbers. Every query is multiplied with every key, which gives {tokens} ×
{tokens} scores; divided by √{d_k} and put through a softmax they become weights, and every row sums
to 1. The weighted values, added up, are the attention vectors of this head. Those of all {heads}
heads stand side by side and are mixed by one more matrix. The frame follows “{word}”. attnviz
computed every number from the formula, and none is further than {largest:.0e} from what the model
computed.
"""

import attnviz

word = "train"
result = attnviz.attend("the train left the station")
taken = attnviz.steps(result, layer=5, head=3, word=word)

tokens, d_model = taken["X"].values.shape
d_k, heads = taken["Q"].values.shape[1], taken.heads
largest = max(stage.difference for stage in taken.stages if stage.difference is not None)
assert all(stage.passed for stage in taken.stages if stage.why_not != "given")

fig = attnviz.plot.steps(taken)
