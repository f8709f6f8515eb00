"""Attention without positions ignores word order

A model reads a sentence and the same words shuffled (a). (b) How far is the vector of a token in
one order from its vector in the other? The figure shows the largest difference of any number (their
median size is {typical:.2f}). BERT adds a position vector to every word. With these set to zero the
difference is at most {blind:.0e}, which is rounding: shuffled words give the same vectors,
shuffled. With positions it is {least:.2f} to {most:.2f}. This model knows the order only from its
position vectors.
"""

from copy import deepcopy

import matplotlib.pyplot as plt
import torch

import attnviz

model, text = attnviz.load(device="cpu"), "the train left the station on time"
blind_model = deepcopy(model.module)  # the loaded model keeps its positions
torch.nn.init.zeros_(blind_model.embeddings.position_embeddings.weight)

ids = model.tokenizer(text, return_tensors="pt").input_ids
T, words = ids.shape[1], model.tokenizer.convert_ids_to_tokens(ids[0])
inner = torch.randperm(T - 2, generator=torch.Generator().manual_seed(10)) + 1
order = [0, *inner.tolist(), T - 1]  # [CLS] and [SEP] stay in place
texts = torch.cat([ids, ids[:, order]])
with torch.no_grad():
    original, shuffled = model.module(texts).last_hidden_state
    blind_original, blind_shuffled = blind_model(texts).last_hidden_state
sighted = (shuffled - original[order]).abs().amax(1)  # largest difference of each token
blinded = (blind_shuffled - blind_original[order]).abs().amax(1)
blind, least, most, typical = blinded.max(), sighted.min(), sighted.max(), original.abs().median()
assert blind <= 1e-5 < least

with attnviz.plot.style(words):
    fig, (a, b) = plt.subplots(1, 2, figsize=(7.2, 2.6), layout="constrained", width_ratios=(1, 2))
    a.plot([0, 1], [order, range(T)], color="0.75", clip_on=False)
    a.set(title="a  Two orders", xlim=(0, 1), xticks=[0, 1], xticklabels=["original", "shuffled"])
    a.set_yticks(range(T), words)
    b.axvspan(1e-7, 1e-5, color="0.95", lw=0)
    b.text(1.2e-7, T - 0.6, "rounding", color="0.4")
    b.hlines(range(T), blinded, sighted, color="0.9")
    for x, name, color in ((blinded, "without positions", "C0"), (sighted, "with positions", "C1")):
        b.semilogx(x, range(T), "o", color=color)
        b.text(x.median(), -0.8, name, color=color, ha="center")
    b.set(title="b  How far its vector moves", xlabel="largest difference", xlim=(1e-7, 10))
    b.set_yticks(range(T), [words[n] for n in order])
    b.xaxis.set_major_formatter(lambda x, _: attnviz.figures.style.power(x))
    b.minorticks_off()
    for ax in (a, b):
        ax.set_ylim(T - 0.5, -1.3)
        ax.spines[:].set_visible(False)
source = f"Last hidden states of {model.name} on “{text}”"
title = "Without positions, shuffling the words changes no vector"
fig = attnviz.plot.add_caption(fig, title=title, text=[source, "No attention is shown"])
