"""Softmax copies from one symbol, linear attention with spread, signed weights

One layer of a decoder has softmax attention, a gated delta network and {third} side by side. They
took turns in a training to repeat {symbols} symbols, and alone copy {softmax:.0%}, {delta:.0%} and
{mamba:.0%} of them right. Weights of the last two are signed and their rows need not sum to 1: the
matrix that mixes the values, found by calling the function of the layer with the identity in their
place. Drawn is the head of each in which, in the second half, what followed the same symbol before
(outlined) has the largest share of the sizes of all weights: head {heads[0]} with {of_softmax:.0%},
head {heads[1]} with {of_delta:.0%} and head {heads[2]} with {of_mamba:.0%}.
"""

import matplotlib.pyplot as plt
import torch
from panels import CLAIM
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
    fig, axes = plt.subplots(1, 3, figsize=(7.2, 2.2), layout="constrained")
    for ax, (name, (stack, layer)) in zip(axes, kinds.items(), strict=True):
        part = result.stack(stack)
        sizes = part.weights(layer).abs()
        share = (sizes[:, rows, rows - period + 1] / sizes[:, rows].sum(-1)).mean(-1)
        head, found = int(share.argmax()), float(share.max())
        heads.append(head)
        shares.append(found)
        drawn = attnviz.attention_map(part, layer=layer, head=head)
        attnviz.plot.heatmap(
            drawn, ax=ax, title=f"{name}, head {head}: {found:.0%} outlined", annot=False
        )
        for row in rows.tolist():
            look = {"ec": CLAIM, "fill": False, "lw": 0.8, "clip_on": False}
            ax.add_patch(plt.Rectangle((row - period + 1, row), 1, 1, **look))
of_softmax, of_delta, of_mamba = shares
assert of_softmax > 0.8 > 0.5 > max(of_delta, of_mamba)
title = "Softmax copies from one symbol, linear attention with spread, signed weights"
text = (
    "Outlined: what followed the same symbol before, and its share of the sizes of all weights of "
    "the second half. Gray: the first symbol. A tiny decoder, trained to copy"
)
fig = attnviz.plot.add_caption(fig, title=title, text=text, agreement=result.agreement)
