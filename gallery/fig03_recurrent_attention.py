"""Recurrent attention and self-attention

What is made of what. (a) Recurrent attention: the states h of an encoder follow each other; for
every symbol to say, a state s of the decoder weighs them all into a context c (dark: the last). (d)
Self-attention: every token weighs all tokens at once. (b, e) The weights of two small networks that
learned to say {T} symbols backwards ({right[0]:.2%} and {right[1]:.2%} right on new ones). In
{mirrored[0]} and {mirrored[1]} of {T} rows the mirrored place has most weight; recurrent attention
gives {later:.0%} to later states, which have heard the symbol too. (c) States joined by red arrows
wait for each other, {waits[0]} in a row at {far} tokens; self-attention takes {waits[1]} step. (f)
It is {paths[0]} steps from the first token to the last one's state, or {paths[1]}; to the decoder's
last context {near}.
"""

import matplotlib.pyplot as plt
import torch
from toy import Parallel, Recurrent, count_steps, draw_states, train

import attnviz

T, symbols, far = 6, 10, 24
torch.manual_seed(3)
networks = Recurrent(symbols), Parallel(symbols, T)
right, weights = zip(*(train(each, symbols, T, steps=200) for each in networks), strict=True)
assert min(right) >= 0.99
mirrored = [(each.flip(1).argmax(1) == torch.arange(T)).sum() for each in weights]
later = weights[0].flip(1).tril(-1).sum() / T

lengths, lasts = range(1, far + 1), zip(networks, "ha", strict=True)
counts = [[count_steps(net.states(n), (kind, n - 1)) for n in lengths] for net, kind in lasts]
waits, paths = zip(*(each[-1] for each in counts), strict=True)
near = count_steps(networks[0].states(far), ("c", far - 1))[1]

with attnviz.style():
    fig, axes = plt.subplots(2, 3, figsize=(7.2, 4.0), layout="constrained", width_ratios=(5, 3, 4))
    (a, b, c), (d, e, f) = axes
    draw_states(a, networks[0].states(T), ("tokens x", "encoder h", "context c", "decoder s"))
    draw_states(d, networks[1].states(T), ("tokens x", "outputs a"))
    for ax, W in zip((b, e), weights, strict=True):
        edges = (0.5, T + 0.5, T + 0.5, 0.5)
        image = ax.imshow(W.numpy(), cmap="cmc.devon_r", vmin=0, vmax=1, extent=edges)
        ax.set(xticks=range(1, T + 1), yticks=range(1, T + 1))
    for n, (name, colour, x) in enumerate((("recurrent", "C1", 12), ("self-attention", "C0", 24))):
        for m, ax in enumerate((c, f)):
            line = [count[m] for count in counts[n]]
            ax.plot(lengths, line, color=colour)
            ax.text(x, line[x - 1], name + " ", color=colour, ha="right", va="bottom")
    a.set_title("a  Recurrent attention")
    b.set(title="b  Weights", xlabel="encoder state", ylabel="decoder state")
    c.set(title="c  Steps that must wait", xlabel="tokens", ylabel="steps", ylim=0)
    d.set_title("d  Self-attention")
    e.set(title="e  Weights", xlabel="token", ylabel="token")
    f.set(title="f  From first to last", xlabel="tokens", ylabel="steps", ylim=0)
    fig.colorbar(image, ax=axes[:, 1], label="weight", aspect=40)
attnviz.add_caption(fig, text=f"Two toy networks that say {T} of {symbols} symbols backwards")
