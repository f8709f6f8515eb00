"""A word's vector adds to what the words around it tell about its sense

{table[held_out_pairs]} pairs of WordNet's example sentences with one of {table[held_out_words]}
words, in one sense or in two. Left is the AUC: how often a pair of one sense has a larger cosine
than a pair of two (guessing {chance:.0%}; lines: intervals of {level:.0%}, bootstrapped over
words). The words around it are the mean of their static embeddings, which needs no attention:
{minilm.others[auc]:.1%} in all-MiniLM-L6-v2 and {once.others[auc]:.1%} in SmolLM2. The vector is
that of the layer that is best on other pairs ({minilm.alone[layer]}, {once.alone[layer]} and
{twice.alone[layer]}). Alone it has {minilm.alone[auc]:.1%} in all-MiniLM-L6-v2,
{once.alone[auc]:.1%} in SmolLM2, and {twice.alone[auc]:.1%} if the text is read twice, so that the
word follows all of it; no interval of its difference from the words around it excludes 0 (right).
The cosines of both, standardized and summed, have {minilm.both[auc]:.1%}, {once.both[auc]:.1%} and
{twice.both[auc]:.1%}, and all three intervals of the difference are above 0. Of the
{count} intervals for vectors of single layers, {above} are above 0, about as many as expected by
chance.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import matplotlib.pyplot as plt
from panels import CLAIM, panels

import attnviz

table = json.loads((Path(__file__).parent / "data/wordnet_senses.json").read_text("utf-8"))
are_above = [row["gain_low"] > 0 for row in table["rows"] if row["score"] == "vector"]
count, above, chance, level = len(are_above), sum(are_above), 0.5, 0.95
SCORES = "other words, static", "best layer", "best layer and other words"
KINDS = {"the words around it": "0.45", "the word's vector": "C0", "both together": CLAIM}


def compare(model, twice):  # the rows of the words around a word, of its vector, and of both
    found = {(row["score"], row["model"], row["twice"]): row for row in table["rows"]}
    others, alone, both = (found[s, model, twice if s != SCORES[0] else None] for s in SCORES)
    assert alone["gain_low"] < 0 < both["gain_low"]
    return SimpleNamespace(others=others, alone=alone, both=both)


models = list(dict.fromkeys(row["model"] for row in table["rows"] if row["model"]))
minilm, once, twice = (compare(models[n], flag) for n, flag in ((0, False), (1, False), (1, True)))
readings = {models[0]: minilm, "SmolLM2": once, "SmolLM2, text read twice": twice}
names, colors = [one for name in readings for one in (name, *KINDS)], (None, *KINDS.values())
with attnviz.plot.style():
    beside, stacked = ("ab", (1, 1), (1,), 0.43), ("a;b", (1,), (1, 1), 1.5)
    fig, *axes = panels(__doc__.splitlines()[0], beside, stacked, sharey=True)
    for n, reading in enumerate(readings.values()):
        for ax, of in zip(axes, ("", "gain_"), strict=True):
            for y, row in enumerate(vars(reading).values(), 1):
                ends = [100 * (row[of + end] or 0) for end in ("low", "high")]
                at = 100 * (row[of[:-1] or "auc"] or 0)  # of the words around it no difference
                ax.plot(ends, [4 * n + y] * 2, at, 4 * n + y, "o", color=colors[y], ms=4.5)
        ax.text(ends[1] + 0.4, 4 * n + y, f"+{at:.0f}", color=CLAIM, weight="bold", va="center")
    for ax, worst in zip(axes, (50, 0), strict=True):
        ax.axvline(worst, color="0.5", lw=0.8, ls=":")
        ax.set(ylim=(11.6, -0.6), yticks=range(12), yticklabels=names)
        ax.tick_params(axis="y", length=0)
        plt.setp(ax.get_yticklabels()[::4], weight="bold")
    axes[0].set(title="Pairs told apart: one sense or two", xlabel="AUC, % (50: guessing)")
    ax.set(title="Better than the words alone", xlabel="difference, percentage points")
    ax.set(xlim=(-7.5, 12.5), xticks=(-5, 0, 5, 10), xticklabels=("−5", "0", "+5", "+10"))
text = "Example sentences of WordNet 3.0; lines: 95% intervals over words"
fig = attnviz.plot.add_caption(fig, text=text)
