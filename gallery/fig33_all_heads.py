"""Most heads of SmolLM2 that rest on the first word are in its second half

Maps of {count} heads would be too small to read, so each head is one cell, colored by what it
attends to. Layers and heads count from 0. On “{text}” {resting} heads rest on the first word: they
give it much more of their weight than evenly, whatever it says (red). {late} of them are in the
second half of the layers. {previous} heads attend to the previous word, and {others} to words of no
such kind. Below is the clearest head of each kind. A color is what a head does on this one sentence
and not yet a role: that takes a corpus.
"""

from collections import Counter

from panels import CLAIM

import attnviz
from attnviz.figures.cells import frame
from attnviz.heads import resting_heads, where_heads_look

text = "The cat saw the dog, and the dog saw the cat."
maps = attnviz.head_maps(attnviz.attend(text, model="smollm2"))

kinds = Counter(kind for kind, _ in where_heads_look(maps))
rests = resting_heads(maps)
count, resting, late = len(rests), sum(rests), sum(rests[len(rests) // 2 :])
previous, others = kinds["previous"], kinds["other words"]
assert late > resting / 2
assert previous

fig = attnviz.plot.heads(maps, caption="none")
fig.texts[0].set_text(__doc__.splitlines()[0])  # in place of the heads of two kinds
ax, half = fig.axes[0], len(maps.layers) // 2
for n in range(count):
    if rests[n]:
        frame(ax, divmod(n, len(maps.numbers)), (1, 1), linewidth=0.8)
ax.axvline(half, color=CLAIM, lw=2)
look = {"color": CLAIM, "weight": "bold", "size": 7, "va": "center"}
look["transform"] = ax.get_xaxis_transform()
ax.text(half + 0.9, -0.077, f"{late} of the {resting} heads that rest on the first word →", **look)
ax.text(half - 1.9, -0.077, f"← {resting - late} of them", ha="right", **look)
shown = [text.get_text() for text in fig.axes[1].texts[1::2]].index("first")
fig.axes[1].texts[2 * shown + 1].set(color=CLAIM, weight="bold")
source = f"“{text}”, read by SmolLM2-135M-Instruct (4-bit weights)"
fig = attnviz.plot.add_caption(fig, text=source, agreement=maps.agreement)
