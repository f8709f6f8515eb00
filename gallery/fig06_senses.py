"""Context determines the sense of a word

Each dot is “check” in one of {n} sentences, at the input of a layer. At layer 0 the vector contains
only the position of the word. There the nearest centroid of a sense, computed without that
sentence, is correct for {static:.0%} (guessing: {check.chance:.0%}). {where[0]} it is correct for
{best:.0%}; that layer is chosen on the same sentences. At the output it is correct for {last:.0%}
({low:.0%} to {high:.0%}). For the two senses of “bank”, {where[1]}, it is correct for
{bank_best:.0%} after {bank_static:.0%}. Over all {words} bundled words, accuracy is {start:.0%} at
layer 0 and {end:.0%} at the output (guessing: {chance:.0%}). Not all of this is attention: the mean
static embedding of the other words is correct for {context:.0%}, and for “bank” {bank_context:.0%}.
Nor does it show that the most attended words determine the sense. The sentences were written with
clear cues and are few: this is an illustration, not a benchmark.
"""

import attnviz

NAMES = ["bank", "check", "apple", "bat", "crane", "spring", "mouse", "seal", "light", "pitcher"]
model = attnviz.load()
results = [attnviz.senses(name, model=model) for name in NAMES]
bank, check, *_ = results
n, words = len(check.occurrences), len(results)


def mean(values):
    return sum(values) / words


chance = mean(result.chance for result in results)
start, end = (mean(result.scores[at].accuracy for result in results) for at in (0, -1))
context = mean(result.context.accuracy for result in results)
where = [f"Entering layer {check.best}", f"entering layer {bank.best}"]
best = check.scores[check.best].accuracy
last, low, high = (getattr(check.scores[-1], of) for of in ("accuracy", "low", "high"))
bank_best, bank_context = bank.scores[bank.best].accuracy, bank.context.accuracy
static, bank_static = check.scores[0].accuracy, bank.scores[0].accuracy
assert start < context < end  # the caption claims this order
fig = attnviz.plot.senses(check)
