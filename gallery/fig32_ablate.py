"""What “Paris” loses without each of the {count} heads of SmolLM2

The output of each head was replaced by its mean over the text, everything after it was recomputed,
and the logits of “Paris” and “London” were compared again: {count} runs on “{text}”. Without head
{first} “Paris” loses {most:.1f} of its lead, without head {second} {less:.1f}, and each of {small}
heads alone changes it by less than {little}. A small effect does not say that a head does nothing:
heads can stand in for each other. The gradient estimates all effects from one run. The estimates
have a rank correlation of {rho:.2f} with the effects; of head {first} they expect only
{expected:.1f}.
"""

import attnviz

text, little = "The Eiffel Tower is in the city of", 1 / 10
ablation = attnviz.ablate(text, target="Paris", against="London", model="smollm2")

lost, count, rho = ablation.mean, len(ablation.names), ablation.rank_correlation
at, after = ablation.strongest[:2]
first, second, most, less = ablation.names[at], ablation.names[after], lost[at], lost[after]
expected, small = ablation.estimate[0, at], int((lost.abs() < little).sum())
assert most > 2 * expected
assert small > count / 2

fig = attnviz.plot.ablate(ablation)
