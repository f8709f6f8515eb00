"""No vector tells senses apart clearly better than its context; both together do

{held_out_pairs} pairs of WordNet's example sentences with one of {held_out_words} words, in one
sense or in two. The height is the AUC: how often a pair of one sense has a larger cosine than a
pair of two (guessing {chance}; bands: bootstrapped over words). The dashed line needs no
attention: it is the mean static embedding of the other words ({minilm.others} and {once.others}).
The best layer, chosen with other pairs, is not above it by more than chance: {minilm.vector} in
all-MiniLM-L6-v2, {once.vector} in SmolLM2, and {twice.vector} if the text is read twice, so that
the word follows all of it. The sum of both cosines, standardized, is: {minilm.both}, {once.both}
and {twice.both}. So the vectors have something beyond the other words.
"""

import json
from pathlib import Path
from types import SimpleNamespace

from panels import panels

import attnviz

table = json.loads((Path(__file__).parent / "data/wordnet_senses.json").read_text("utf-8"))
held_out_pairs, held_out_words = table["held_out_pairs"], table["held_out_words"]


def rows(model, score, twice=None):
    """Return the rows of a score of a model, in the order of the layers."""
    wanted = {"model": model, "score": score, "twice": twice}
    return [row for row in table["rows"] if wanted.items() <= row.items()]


def compare(model, twice):
    """Return the AUC of the best layer, of the other words and of both; check the title."""
    (vector,), (both,) = (rows(model, f"best layer{of}", twice) for of in ("", " and other words"))
    (others,) = rows(model, "other words, static")
    assert vector["gain_low"] < 0 < both["gain_low"]
    auc = (f"{row['auc']:.2f}" for row in (vector, others, both))
    return SimpleNamespace(**dict(zip(("vector", "others", "both"), auc, strict=True)))


models = list(dict.fromkeys(row["model"] for row in table["rows"] if row["model"]))
minilm, once, twice = (compare(models[n], flag) for n, flag in ((0, False), (1, False), (1, True)))
names, chance = ("the word's vector", "the same, text read twice"), 0.5
with attnviz.plot.style():
    title = "No vector is clearly better than the words around it; both together are"
    fig, *axes = panels(title, ("ab", (1, 1), (1,), 0.41), ("a;b", (1,), (1, 1), 1.5), sharey=True)
    for ax, model, flags in zip(axes, models, ([False], [False, True]), strict=True):
        for flag in flags:
            vectors, color = rows(model, "vector", flag), f"C{2 * flag}"
            auc, low, high = ([row[key] for row in vectors] for key in ("auc", "low", "high"))
            ax.plot(auc, color, label=names[flag])
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
