"""Heads that share their keys attend little more alike than other heads

In each layer of SmolLM2 {heads} query heads read {groups} sets of keys and values, {size} heads
each. The overlap of two heads is the sum of the smaller weight of each word, from nothing in common
to the same weights. Heads with the same keys have an overlap of {same:.0%}, heads of the same layer
with other keys {other:.0%} (left: mean of {layers} layers and {texts} texts). The difference is
{gain:.1%} ({low:.1%} to {high:.1%}, an interval of {level:.0%} from resampled texts). It is
positive in {more} of {layers} layers, and {most:.0%} where it is largest (right; bands are such
intervals). Weights on the first word, on which most heads rest, are left out. So most of what two
heads have in common does not come from shared keys.
"""

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns
import torch
from panels import panels

import attnviz

TEXTS = """The train left the station on time.|Rain fell all night, and the river rose.
She plays the violin and her brother plays the drums.|When the bell rang, nobody moved.
The doctor told the nurse that she would call the family in the morning.
After the war, the two brothers opened a bakery near the old market.|The soup is far too hot to eat.
The dog that chased the cat ran across the road and into the park.""".replace("\n", "|")
model, level = attnviz.load("smollm2"), 0.95
results, config = model.attend(TEXTS.split("|")), model.module.config
heads, groups, texts = config.num_attention_heads, config.num_key_value_heads, len(results)
weights = [w / w.sum(-1, keepdim=True) for w in (one.weights()[..., 2:, 1:] for one in results)]
overlap = np.stack([torch.minimum(w[:, :, None], w[:, None]).sum(-1).mean(-1) for w in weights])
size, layers, group = heads // groups, overlap.shape[1], np.arange(heads) * groups // heads
other_keys, itself = group != group[:, None], np.eye(heads, dtype=bool)
alike = [overlap[..., pairs].mean(-1) for pairs in (~other_keys & ~itself, other_keys)]
(same, other), gains = (kind.mean() for kind in alike), alike[0] - alike[1]  # (texts, layers)
gain, more, most = gains.mean(), (gains.mean(0) > 0).sum(), gains.mean(0).max()
low, high = sns.utils.ci(sns.algorithms.bootstrap(gains.mean(1), seed=0), 100 * level)
assert 0 < low < high < 0.1

beside, stacked = ("ML", (1, 1), (1,), 0.43), ("M;L", (1,), (3, 2), 1.5)
with attnviz.plot.style():
    fig, by_layer, ax = panels(__doc__.splitlines()[0], beside, stacked)
    look = {"annot": True, "fmt": ".0f", "cbar": False, "cmap": "Greys", "vmin": 50, "vmax": 95}
    sns.heatmap(100 * overlap.mean((0, 1)), mask=itself, ax=ax, **look).tick_params("y", rotation=0)
    for kind, name, color in zip(alike, ("same keys", "other keys"), ("C0", "C1"), strict=True):
        ends = {"errorbar": ("ci", 100 * level), "seed": 0, "color": color}
        sns.lineplot(x=np.tile(range(layers), texts), y=kind.ravel(), ax=by_layer, **ends)
        by_layer.text(layers, kind.mean(0)[-1], f"{name}: {kind.mean():.0%}", color=color)
    for start in range(0, heads, size):
        ax.add_patch(plt.Rectangle((start, start), size, size, ec="C0", fc="none", lw=2))
    ax.set(xlabel="head", ylabel="head", title="Overlap in % (blue boxes: same keys)")
    by_layer.set(xlabel="layer", ylim=(0, 1), xlim=(0, layers - 1), title="Overlap by layer")
    by_layer.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
proof = attnviz.AgreementReport.joined(result.agreement for result in results)
text = f"{texts} texts, SmolLM2-135M-Instruct (4-bit weights), first word left out"
fig = attnviz.plot.add_caption(fig, text=text, agreement=proof)
