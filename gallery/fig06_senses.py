"""The words around it settle the sense of a word

Each dot is “check” in its own sentence, {n} in all, as it enters a layer. Layer 0 knows only its
place in the sentence: the nearest centroid of a sense, made without that sentence, is right for
{static:.0%} (guessing: {check.chance:.0%}). {where[0]} it is right for {best:.0%} (from
{low:.0%} to {high:.0%}), and of the two senses of “bank”, {where[1]}, for {bank_best:.0%} after
{bank_static:.0%}. Over all {words} words that come along, layer 0 gives {start:.0%}, the output
{end:.0%} (guessing: {chance:.0%}). Not all of that is attention: the mean static embedding of the
other words is right for {context:.0%}, with “bank” for {bank_context:.0%}. Nor does it prove that
the words it attends to most settle its sense. The sentences were written with clear cues, and are
few: an illustration and not a benchmark.
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
best, low, high = (getattr(check.scores[check.best], of) for of in ("accuracy", "low", "high"))
bank_best, bank_context = bank.scores[bank.best].accuracy, bank.context.accuracy
static, bank_static = check.scores[0].accuracy, bank.scores[0].accuracy
assert start < context < end  # as the caption says
fig = attnviz.plot.senses(check)
