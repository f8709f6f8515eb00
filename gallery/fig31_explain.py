"""“{cause}” makes SmolLM2 say “Paris” and not “London”

The text is “{text}”, and the number is the logit of “Paris” minus that of “London”: {here:.1f} in
this text, and {alone:.1f} where each token reads only itself and the sink. Each word is colored by
what changing it takes away in separate runs: “{cause}” {effect:.1f}, and “{second}” {less:.1f}. The
split of the difference over all words changes none of them. It credits “{cause}” with {credit:.1f}.
The rank correlation of the split with the effects is {rho:.2f} here; with {words} words its
interval is wide ({low:.2f} to {high:.2f}).
"""

import attnviz

text = "The Eiffel Tower is in the city of"
why = attnviz.explain(text, target="Paris", against="London", model="smollm2")

effects, credits = why.effect.tolist(), why.credit.tolist()
first, after = sorted(why.sources, key=lambda index: -effects[index])[:2]
cause, effect, credit = why.names[first], effects[first], credits[first]
second, less, words = why.names[after], effects[after], len(why.sources)
here, alone = why.value, why.baseline
rho, low, high = why.rank_correlations["split"]

fig = attnviz.plot.explain(why)
