"""A decoder, too, separates the senses of “bank”, from the words before it

A decoder reads only the words before “bank”, so here it ends all {count} sentences, half of them
about rivers and half about money. Each is classified by the nearest centroid of the others. At the
output {minilm.right} are correct in all-MiniLM-L6-v2 ({minilm.low:.0%} to {minilm.high:.0%}, an
interval of {level:.0%}, as the bands) and {smollm2.right} in SmolLM2 ({smollm2.low:.0%} to
{smollm2.high:.0%}); guessing is correct for {chance:.0%}. The senses are separated from layer
{minilm.since} of {minilm.layers} on, and from layer {smollm2.since} of {smollm2.layers}. The mean
static embedding of the words before it (dashed) needs no attention and is correct for
{minilm.words:.0%} and {smollm2.words:.0%}: each model has embeddings of its own, and those of
SmolLM2 are hardly better than guessing here. It is below the band in {minilm.beyond} (inputs of
layers, output) of MiniLM and in {smollm2.beyond} of SmolLM2. The sentences were written for this
figure and are few.
"""

from types import SimpleNamespace

from panels import from_here, panels, path, shares

import attnviz

RIVER = """They rowed the boat to|The canoe landed at|The boys were fishing from
Reeds and lilies grew by|The ducks swam near|The waves washed away part of
The stream flooded the meadow behind|The beaver dug a tunnel into|The river rose and spilled over
The fisherman slept on|The swimmer headed for|The current was level with"""
MONEY = """They took the money to|The cashier worked at|The couple got a loan from
The mortgage was refused by|The customers queued near|The shareholders elected the director of
The robbers hid their car behind|The thieves broke into|The creditors fought over
The auditor wrote a report on|The accountant works for|The company opened an account with"""
ends = [[f"{start} the bank" for start in s.replace("\n", "|").split("|")] for s in (RIVER, MONEY)]
sentences = dict(zip(("river", "money"), ends, strict=True))
results = [attnviz.senses("bank", sentences, model=name) for name in (None, "smollm2")]
chance, count, level = results[0].chance, len(results[0].occurrences), 0.95
NAMES = "MiniLM, an encoder: its embeddings do, too", "SmolLM2, a decoder: its embeddings do not"
BAND = "accuracy", "low", "high"


def summary(result):  # the numbers of the caption
    last, words, layers = result.scores[-1], result.context.accuracy, len(result.scores) - 1
    beyond = f"{sum(one.low > words for one in result.scores)} of {layers + 1} states"
    one = {"words": words, "since": result.since, "layers": layers, "beyond": beyond}
    return SimpleNamespace(**one, low=last.low, high=last.high, right=round(last.accuracy * count))


minilm, smollm2 = map(summary, results)
beside, stacked = ("ab", (1, 1), (1,), 0.39), ("a;b", (1,), (1, 1), 1.3)
with attnviz.plot.style():
    fig, *axes = panels(__doc__.splitlines()[0], beside, stacked)
    for ax, result, name in zip(axes, results, NAMES, strict=True):
        path(ax, *([getattr(state, of) for state in result.scores] for of in BAND), "C0")
        words, last, end = result.context.accuracy, result.scores[-1], len(result.scores) - 1
        ax.plot([0, end], [words] * 2, "C1--", [0, end], [chance] * 2, "0.5")
        from_here(ax, result.since, 0.05)
        look = {"ha": "right", "va": "top"}
        ax.text(end, 0.83, f"vector of “bank”: {last.accuracy:.0%}", color="C0", **look)
        ax.text(end, words - 0.015, f"embeddings of words before: {words:.0%}", color="C1", **look)
        ax.text(end, chance - 0.015, f"guessing: {chance:.0%}", color="0.4", **look)
        ax.set(title=name, xlabel="layer (last: output)", ylabel="correct sense")
    shares(*axes)
proof, other = (result.agreement for result in reversed(results))
text = f"{count} texts. MiniLM is {other.verdict}; the next line is about SmolLM2 (4-bit weights)"
fig = attnviz.plot.add_caption(fig, text=(text, "Bands: 95% intervals"), agreement=proof)
