"""“{cause}” moves “bank” most

“bank” enters the model as one vector in every sentence. The black path is that of “bank” in
“{text}”, the gray one that of “bank” alone, where every token reads only itself and special tokens.
Where they end, the gap between them is {far:.0%} of the length of the vector. The bricks split this
gap over all words, layers and heads: “{cause}” adds {credit:.0%}, the next word, “{second}”,
{less:.0%}, and all parts sum to the gap up to {error:.0e}. A split changes no word, so each other
word was also masked in a separate run (the thin bars): masking “{cause}” takes {lost:.0%} of the
gap away, masking “{second}” {lost_too:.0%}. Split and effects need not agree: here their rank
correlation is {rho:.2f}.
"""

import attnviz

text = "We sat on the bank of the river."
moved = attnviz.shift("bank", text)

credits, takes = moved.shares(moved.credit), moved.shares(moved.causal["mask"])
first, after = sorted(moved.sources, key=lambda index: -credits[index])[:2]
cause, credit, lost = moved.names[first], credits[first], takes[first]
second, less, lost_too = moved.names[after], credits[after], takes[after]
far, error = moved.decomposition.total / moved.size, moved.decomposition.credit_error
rho = moved.rank_correlations["mask"]
assert moved.headline == f"“{cause}” moves “bank” most"  # because masking it confirms that

fig = attnviz.plot.shift(moved)
