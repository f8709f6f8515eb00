"""Attention that is too global: sinks

Content words give {share:.0%} of their weight to tokens without content: {cls:.0%} to [CLS],
{sep:.0%} to [SEP], {marks:.0%} to punctuation (means over {count} heads and {words} content words).
With equal weights it would be {uniform:.0%} (dashed). {heads} of {count} heads give more than half,
{less} less than with equal weights. It does not just grow with depth: layer {low} gives least
({lowest:.0%}), layer {high} most ({highest:.0%}); its correlation with the layer is {r:.2f}.
"""

import matplotlib.pyplot as plt
import numpy as np
import seaborn as sns

import attnviz
from attnviz.metrics import FUNCTION_WORDS

texts = """The train left the station on time.|After dinner, the children washed the dishes.|Go on!
Why did the engine stop so suddenly?|She plays the violin; her brother plays the drums.
The museum (closed on Mondays) shows old maps.|“Stay here,” he said, “until the storm is over.”
Bees visit flowers to make honey.|Fresh snow covered the village: roofs, roads, fields.
When the bell rang, nobody moved.|Rain fell all night, and the river rose.|Come in!"""
given, equal, results = [], [], attnviz.attend(texts.replace("\n", "|").split("|"))
for maps in map(attnviz.make_maps, results):
    marks = [not any(map(str.isalnum, label)) for label in maps.columns]
    sinks = np.stack([np.equal(maps.columns, "[CLS]"), np.equal(maps.columns, "[SEP]"), marks])
    keep = ~sinks.any(0) & [label.lower() not in FUNCTION_WORDS for label in maps.rows]
    given += [*np.einsum("lhqk,sk->qslh", maps.weights[:, :, keep].numpy(), sinks)]
    equal += [sinks.any(0).mean()] * sum(keep)
mean, words, uniform = np.mean(given, 0), len(given), np.mean(equal)  # (3, layers, heads)
(cls, sep, marks), total, layers = mean.mean((1, 2)), mean.sum(0), mean.sum(0).mean(1)
share, count, heads, less = total.mean(), total.size, (total > 0.5).sum(), (total < uniform).sum()
(low, *_, high), (lowest, *_, highest) = layers.argsort(), sorted(layers)
r = np.corrcoef(np.indices(total.shape)[0].ravel(), total.ravel())[0, 1]

with attnviz.style():
    fig, (left, ax) = plt.subplots(1, 2, figsize=(7.2, 2.4), layout="constrained")
    look = {"vmin": 0, "vmax": 100, "cmap": "cmc.devon_r", "linewidths": 0.4, "cbar": False}
    sns.heatmap(100 * total, annot=True, fmt=".0f", **look, ax=left)
    left.set(xlabel="head", ylabel="layer", title="% of the weight")
    left.tick_params(axis="y", rotation=0)
    ax.axvline(100 * uniform, color="k", lw=0.8, ls="--", label="equal weights")
    for n, name in enumerate(("[CLS]", "[SEP]", "punctuation")):
        here, before = 100 * mean[n].mean(1), 100 * mean[:n].sum(0).mean(1)
        ax.barh(np.arange(6) + 0.5, here, 0.7, before, label=name)
    ax.set(xlabel="mean over heads, %", xlim=(0, 100), yticks=[], ylim=(6, 0))
    ax.legend(ncols=4, loc="lower left", bbox_to_anchor=(-0.03, 1), handlelength=1)
text = f"Weight from content words in {len(results)} sentences, read by all-MiniLM-L6-v2"
proof = attnviz.AgreementReport.joined(one.agreement for one in results)
fig = attnviz.add_caption(fig, text=text, agreement=proof)
