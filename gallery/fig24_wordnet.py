"""No layer tells senses apart best, but vectors add to the words around them

{table[held_out_pairs]} pairs of WordNet's example sentences with one of {table[held_out_words]}
words, in one sense or in two. The height is the AUC: how often a pair of one sense has a larger
cosine than a pair of two (guessing {chance}; bands: bootstrapped over words). The dashed line needs
no attention: it is the mean static embedding of the other words ({minilm.others[auc]:.2f} and
{once.others[auc]:.2f}). The intervals of {above} of the {count} vectors lie above it, about
as many as expected by chance.
No layer is best: {minilm.vector[layer]}, {once.vector[layer]} and {twice.vector[layer]}
are on other pairs, {minilm.first[layer]}, {once.first[layer]} and {twice.first[layer]} on these.
The former have {minilm.vector[auc]:.2f} in all-MiniLM-L6-v2, {once.vector[auc]:.2f} in SmolLM2, and
{twice.vector[auc]:.2f} if the text is read twice, so that the word follows all of it. Their cosines
and those of the other words, standardized and summed, have {minilm.both[auc]:.2f},
{once.both[auc]:.2f} and {twice.both[auc]:.2f}, which is above the line: the vectors have something
beyond the other words.
"""

import json
from pathlib import Path
from types import SimpleNamespace

from panels import panels

import attnviz

table = json.loads((Path(__file__).parent / "data/wordnet_senses.json").read_text("utf-8"))
are_above = [row["gain_low"] > 0 for row in table["rows"] if row["score"] == "vector"]
count, above, chance = len(are_above), sum(are_above), 0.5


def rows(model, score, twice=None):
    """Return the rows of a score of a model, in the order of the layers."""
    wanted = {"model": model, "score": score, "twice": twice}
    return [row for row in table["rows"] if wanted.items() <= row.items()]


def compare(model, twice):
    """Return the rows of the best layer on other pairs and here, of the words, and of both."""
    (vector,), (both,) = (rows(model, f"best layer{of}", twice) for of in ("", " and other words"))
    assert vector["gain_low"] < 0 < both["gain_low"]
    (others,), first = rows(model, "other words, static"), rows(model, "vector", twice)
    first = max(first, key=lambda row: row["auc"])
    return SimpleNamespace(vector=vector, first=first, others=others, both=both)


models = list(dict.fromkeys(row["model"] for row in table["rows"] if row["model"]))
minilm, once, twice = (compare(models[n], flag) for n, flag in ((0, False), (1, False), (1, True)))
with attnviz.plot.style():
    title = "No layer tells senses apart best, but vectors add to the words around them"
    fig, *axes = panels(title, ("ab", (1, 1), (1,), 0.41), ("a;b", (1,), (1, 1), 1.5), sharey=True)
    for ax, model, flags in zip(axes, models, ([False], [False, True]), strict=True):
        for flag in flags:
            vectors, color = rows(model, "vector", flag), f"C{2 * flag}"
            auc, low, high = ([row[key] for row in vectors] for key in ("auc", "low", "high"))
            ax.plot(auc, color, label=("the word's vector", "the same, text read twice")[flag])
            ax.fill_between(range(len(auc)), low, high, color=color, alpha=0.15, lw=0)
            (both,) = rows(model, "best layer and other words", flag)
            ax.plot(both["layer"], both["auc"], f"{color}o", label="with the words around it")
        (others,) = rows(model, "other words, static")
        ax.axhline(others["auc"], color="C1", ls="--", label="words around it alone")
        ax.axhline(chance, color="0.5", lw=0.5)
        ax.text(ax.get_xlim()[1], chance, "chance ", color="0.5", ha="right", va="bottom")
        ax.set(title=model, xlabel="layer that the vector enters (last: output)", ylim=(0.34, 0.78))
        ax.set_ylabel("AUC, same or different sense")
        ax.legend(loc="lower right")
fig = attnviz.plot.add_caption(fig, text="Example sentences of WordNet 3.0")
