"""“{cause}” moves “bank” most

“bank” enters the model as one vector in every sentence. In “{text}” it ends elsewhere than alone.
What moved it there? Every other word was changed in separate runs, in {ways} ways each: masked,
replaced, knocked out, deleted. Changing “{cause}” takes {lost:.0%} of the shift away, changing the
next word, “{second}”, {less:.0%}. Beside these effects stands a split of the shift over all words,
layers and heads. It credits “{cause}” with {credit:.0%}, and its parts sum to the shift up to
{error:.0e}. Effects and split are told apart because they need not agree: their rank correlation is
{low:.2f} to {high:.2f}, depending on the change.
"""

import attnviz

text = "We sat on the bank of the river."
moved = attnviz.shift("bank", text)

effects, credits = moved.shares(moved.effect), moved.shares(moved.credit)
first, after = sorted(moved.sources, key=lambda index: -effects[index])[:2]
cause, lost, credit = moved.names[first], effects[first], credits[first]
second, less = moved.names[after], effects[after]
ways, error = len(moved.causal), moved.decomposition.credit_error
low, *_, high = sorted(moved.rank_correlations.values())

fig = attnviz.plot.shift(moved)
