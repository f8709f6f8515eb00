"""All {count} heads of SmolLM2 on one sentence

Maps of {count} heads would be too small to read, so each head is one cell, colored by what it
attends to. Layers and heads count from 0. On “{text}” {resting} heads give the first token more
than half of the weight of all later tokens: they rest on it, whatever it says. Only {early} of them
are in the first {start} layers. {previous} heads give more than half of their weight to the
previous token. A color is what a head does on this one sentence and not yet a role: that takes a
corpus.
"""

import attnviz

text, start = "The cat saw the dog, and the dog saw the cat.", 4
result = attnviz.attend(text, model="smollm2")

weights = result.weights()[:, :, 1:]  # of the queries that have a choice
first = weights[..., 0].mean(-1)
before = weights.diagonal(dim1=-2, dim2=-1).mean(-1)
count, resting = first.numel(), int((first > 1 / 2).sum())
early, previous = int((first[:start] > 1 / 2).sum()), int((before > 1 / 2).sum())
assert resting > count / 3
assert early < resting / 4

fig = attnviz.plot.heads(result)
