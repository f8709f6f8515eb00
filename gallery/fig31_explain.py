"""“{cause}” raises “Paris” over “London” most

The text is “{text}”, after which SmolLM2 says “Paris”. The number is the logit of “Paris” minus
that of “London”: {here:.1f} in this text, and {alone:.1f} where each token reads only itself and
the sink. Each word is colored by what changing it takes away, the mean over separate runs of {ways}
kinds. One kind is to delete it: without “{cause}” {lost:.1f} is lost and “London” is ahead, without
“{second}” {less:.1f}, and without each other word {rest:.1f} or less. The split changes no word.
Its contributions over all paths sum to the difference of both numbers, {total:.2f}.
"""

import attnviz

text = "The Eiffel Tower is in the city of"
why = attnviz.explain(text, target="Paris", against="London", model="smollm2")

deleted = why.causal["delete"].tolist()
first, after, third = sorted(why.sources, key=lambda index: -deleted[index])[:3]
cause, second = why.names[first], why.names[after]
lost, less, rest = deleted[first], deleted[after], deleted[third]
here, alone, total, ways = why.value, why.baseline, why.value - why.baseline, len(why.causal)
assert first == max(why.sources, key=lambda index: why.effect[index])
assert lost > here  # so that “London” is ahead without the word

fig = attnviz.plot.explain(why)
