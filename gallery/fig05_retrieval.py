"""Each word retrieves others, as from a database

A query is matched with the key of every word, and what comes back is all words ranked by weight:
one card for each query. Blue are the first that together hold {part:.0%} of the weight. A database
returns one record, attention returns a mixture: head {best.layer}.{best.head}, which of all {count}
heads relates the content words most, needs {mean:.1f} of {n} words on average for {part:.0%}, for
“{sharp}” the fewest ({fewest}). Some heads are nearer to a database: of all {lists} cards
{single:.0%} need one word only, {nearer:.0%} need {few} or fewer. Equal weights would need
{even}. [CLS] and [SEP] are removed and the rows renormalised to sum to 1.
"""

import math

import matplotlib.pyplot as plt
import seaborn as sns

import attnviz

result, part, few = attnviz.attend("the train left the station on time"), 0.8, 3
best = attnviz.rank_heads(result).best
drawn = attnviz.make_map(result, layer=best.layer, head=best.head, special="remove")
maps = attnviz.make_maps(result, special="remove").weights
needed = (maps.sort(descending=True).values.cumsum(-1) < part).sum(-1) + 1  # words on each card
ours, lists, count = needed[best.layer, best.head].tolist(), needed.numel(), result.agreement.heads
n, mean, fewest, even = len(ours), sum(ours) / len(ours), min(ours), math.ceil(part * len(ours))
single, nearer = ((needed <= most).double().mean() for most in (1, few))
sharp, names = drawn.rows[ours.index(fewest)], ["the₁", *drawn.rows[1:3], "the₂", *drawn.rows[4:]]

with attnviz.style():
    fig, axes = plt.subplots(2, 4, figsize=(7.2, 3.3), layout="constrained")
    titles = [*(f"query: {name}" for name in names), f"cards of all {count} heads"]
    for ax, title in zip(axes.flat, titles, strict=True):
        ax.set_title(title, x=-0.335, size=8, weight="bold").axes.spines[:].set_color("none")
        ax.plot([-0.335, 1], [1, 1], "0.4", lw=0.5, transform=ax.transAxes, clip_on=False)
    for query, ax in enumerate(axes.flat[:n]):
        values, order = drawn.weights[query].sort(descending=True)
        shades = ["C0" if rank < ours[query] else "#b9bcc6" for rank in range(n)]
        bars = ax.barh(range(n), (100 * values).tolist(), 0.7, color=shades)
        ax.bar_label(bars, fmt="%.0f%%", padding=2, size=6)
        ax.set(xlim=(0, 41), ylim=(n - 0.4, -0.6), xticks=[])
        ax.set_yticks(range(n), [names[key] for key in order], ha="left")
        ax.tick_params(axis="y", length=0, pad=30)
    sns.histplot(x=needed.flatten(), stat="percent", discrete=True, shrink=0.7, lw=0, color="C4")
    (ax := axes[-1, -1]).margins(y=0.15)
    ax.bar_label(ax.containers[0], fmt="%.0f%%", padding=2, size=6)
    ax.set(xlabel=f"words that hold {part:.0%}", ylabel="", xticks=range(1, n), yticks=[])
text = f"“{result.provenance.text}”, read by all-MiniLM-L6-v2; layer {best.layer}, head {best.head}"
fig = attnviz.add_caption(fig, text=[text, *drawn.notes], agreement=result.agreement)
