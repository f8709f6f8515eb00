"""Softmax copies from one symbol, linear attention with spread, signed weights

One layer of a decoder has softmax attention, a gated delta network and {third} side by side. They
took turns in a training to repeat {symbols} symbols, and alone copy {softmax:.0%}, {delta:.0%} and
{mamba:.0%} of them right. Weights of the last two are signed and their rows need not sum to 1: the
matrix that mixes the values, found by calling the function of the layer with the identity in their
place. Each is drawn as a share of the sizes of all weights of its row. In the second half the
symbol to copy is what followed the same symbol before (red). Drawn is the head of each that gives
it the largest share: head {heads[0]} with {of_softmax:.0%}, head {heads[1]} with {of_delta:.0%} and
head {heads[2]} with {of_mamba:.0%}.
"""

import matplotlib.pyplot as plt
import torch
from panels import CLAIM, signed_map
from toy import letters_tokenizer, train_hybrid

import attnviz

symbols, period = 24, 8
model, accuracy = train_hybrid(symbols=symbols)
softmax, delta, mamba = accuracy["softmax"], accuracy["delta"], accuracy["mamba"]
letters, tokenizer = letters_tokenizer(symbols)
text = " ".join(letters[n] for n in torch.randperm(symbols)[:period].tolist() * 2)
result = attnviz.attend(text, model=attnviz.load(model, tokenizer=tokenizer))
assert result.stacks == ("decoder", "linear")
kinds = {"softmax": ("decoder", 0), "gated delta": ("linear", 0), "Mamba-2": ("linear", 1)}
third, rows = [*kinds][-1], torch.arange(period, 2 * period)
heads, shares = [], []
with attnviz.plot.style():
    fig, axes = plt.subplots(1, 3, figsize=(7.2, 2.65), layout="constrained", sharey=True)
    for ax, (name, (stack, layer)), right in zip(
        axes, kinds.items(), (softmax, delta, mamba), strict=True
    ):
        weights = result.stack(stack).weights(layer)
        sizes = weights.abs()
        share = (sizes[:, rows, rows - period + 1] / sizes[:, rows].sum(-1)).mean(-1)
        head, found = int(share.argmax()), float(share.max())
        heads.append(head)
        shares.append(found)
        title = f"{name}: copies {right:.0%} right"
        copied = zip(rows.tolist(), (rows - period + 1).tolist(), strict=True)
        names = {"title": title, "xlabel": "key (attended to)"}
        mesh = signed_map(ax, weights[head].numpy(), text.split(), copied, **names)
        look = {"color": CLAIM, "weight": "bold", "ha": "right", "va": "top"}
        ax.text(2 * period - 0.3, 0.4, f"{found:.0%} of the weight\non the symbol to copy", **look)
    axes[0].set_ylabel("query (attending)")
    fig.colorbar(mesh, ax=axes, format="{x:.0%}", label="weight, as a share of its row", pad=0.01)
of_softmax, of_delta, of_mamba = shares
assert of_softmax > 0.8 > 0.5 > max(of_delta, of_mamba)
title = "Softmax copies from one symbol, linear attention with spread, signed weights"
marks = "Red: the symbol to copy, in the second half", "hatched: later symbols"
text = "A tiny decoder, trained to copy, heads {}, {} and {}".format(*heads), *marks
fig = attnviz.plot.add_caption(fig, title=title, text=text, agreement=result.agreement)
