"""Without head {first} of SmolLM2, “Paris” loses {most:.1f} of its lead over “London”

The output of each head was set to its mean over the text, everything after it was recomputed,
and the logits of “Paris” and “London” were compared again: {count} runs on “{text}”. Without head
{first} “Paris” loses {most:.1f} of its lead, without head {second} {less:.1f}. A small effect does
not say that a head does nothing: heads can stand in for each other. The gradient estimates all
effects from one run, without a guarantee: of head {first} it expects only {expected:.1f}.
"""

import attnviz

text = "The Eiffel Tower is in the city of"
ablation = attnviz.ablate(text, target="Paris", against="London", model="smollm2")

lost, count = ablation.mean, len(ablation.names)
at, after = ablation.strongest[:2]
first, second, most, less = ablation.names[at], ablation.names[after], lost[at], lost[after]
expected = ablation.estimate[0, at]
assert most > 2 * expected

fig = attnviz.plot.ablate(ablation)
