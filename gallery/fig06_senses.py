"""“check” tells its senses apart, but not clearly better than the words around it

Each line is “check” in one of {n} sentences. Without context, the nearest centroid of a sense,
computed without that sentence, is correct for {static:.0%} (chance {check.chance:.0%}); in each
layer from {check.since} on for {least:.0%} or more, and at the output for {last:.0%} ({low:.0%} to
{high:.0%}). This need not be attention: the mean static embedding of the other words is correct for
{context:.0%}, and no difference can be shown (p = {p:.2f}). Nor does it show that the most attended
words, underlined, determine the sense. Over all {words} bundled words, accuracy is {start:.0%}
without context, {others:.0%} by the other words, and {end:.0%} at the output (chance {chance:.0%}):
there the word is right and the other words are not in {more} sentences, the reverse in {less} (p =
{p_all:.3f}). The sentences were written with clear cues and are few: this is an illustration, not a
benchmark.
"""

from scipy.stats import binomtest

import attnviz

NAMES = ["check", "bank", "apple", "bat", "crane", "spring", "mouse", "seal", "light", "pitcher"]
model = attnviz.load()
results = [attnviz.senses(name, model=model) for name in NAMES]
check, n, words = results[0], len(results[0].occurrences), len(results)


def mean(values):
    return sum(values) / words


chance = mean(result.chance for result in results)
start, end = (mean(result.scores[at].accuracy for result in results) for at in (0, -1))
others = mean(result.context.accuracy for result in results)
last, low, high = (getattr(check.scores[-1], of) for of in ("accuracy", "low", "high"))
static, context = check.scores[0].accuracy, check.context.accuracy
least = min(score.accuracy for score in check.scores[check.since :])
beyond = [gain for r in results for gain in (r.right[-1] - r.context_right).tolist()]
more, less = sum(gain > 0 for gain in beyond), sum(gain < 0 for gain in beyond)
p, p_all = check.p_beyond[-1], binomtest(more, more + less).pvalue
assert start < others < end  # the caption claims this order
assert p_all < 0.05 < p  # and which differences are shown
fig = attnviz.plot.senses(check)
