"""“it” looks back at “trophy”, in the text itself

Each word stands on the color of the weight that “it” (dashed box) gives it. Special tokens are
gray. This is head {head} of layer {layer}: of all {count} heads, the one in which “it” gives
“trophy” the largest weight, {first:.0%}, and “suitcase” {second:.0%}. “trophy” gets more than
“suitcase” in {more} of the {count} heads: this is what one head does, not what the model concludes.
"""

import attnviz

text = "The trophy does not fit into the suitcase, because it is too big."
result = attnviz.attend(text)
trophy, suitcase = (
    {(one.layer, one.head): one.score for one in attnviz.find_heads(result, query="it", key=key)}
    for key in ("trophy", "suitcase")
)
layer, head = best = max(trophy, key=trophy.__getitem__)
first, second, count = trophy[best], suitcase[best], len(trophy)
more = sum(trophy[one] > suitcase[one] for one in trophy)

drawn = attnviz.attention_map(result, layer=layer, head=head)
fig = attnviz.plot.text(drawn, query="it", width=120)
